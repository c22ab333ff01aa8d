package control

import (
	"context"
	"sync"
	"time"

	"nftproxy/test/lib/child"
)

// meter watches a process and its children.
type meter struct {
	pid  int
	stop context.CancelFunc
	done sync.WaitGroup

	mu   sync.Mutex
	peak int64 // in bytes
}

// samplePeriod is the time between two samples of the memory.
const samplePeriod = 20 * time.Millisecond

// newMeter starts to watch. stopNow ends the watch.
func newMeter(pid int) *meter {
	ctx, cancel := context.WithCancel(context.Background())
	m := &meter{pid: pid, stop: cancel}
	m.done.Go(func() {
		ticks := time.NewTicker(samplePeriod)
		defer ticks.Stop()
		for {
			m.sample()
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
		}
	})
	return m
}

func (m *meter) stopNow() {
	m.stop()
	m.done.Wait()
}

// The fields of proc_pid_status(5) for the most resident memory so far, and that of now.
const (
	highWater = "VmHWM:"
	resident  = "VmRSS:"
)

// sample adds up the most memory that each present process has had so far.
func (m *meter) sample() {
	sum := m.memory(highWater)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.peak = max(m.peak, sum)
}

// memory adds up a field of each present process, in bytes.
func (m *meter) memory(field string) int64 {
	sum := child.StatusBytes(m.pid, field)
	for _, pid := range child.Descendants(m.pid) {
		sum += child.StatusBytes(pid, field)
	}
	return sum
}

// residentMB is the resident memory of now, in MB (10^6 bytes).
func (m *meter) residentMB() float64 { return float64(m.memory(resident)) / 1e6 }

// peakMB is the largest sum so far, in MB (10^6 bytes).
func (m *meter) peakMB() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return float64(m.peak) / 1e6
}

// settledCPU returns CPUTime once no child runs, or when the context ends. The kernel
// counts only children that have been waited for.
func (m *meter) settledCPU(ctx context.Context) (time.Duration, error) {
	ticks := time.NewTicker(samplePeriod / 4)
	defer ticks.Stop()
	for len(child.Descendants(m.pid)) > 0 {
		select {
		case <-ctx.Done():
			return child.CPUTime(m.pid)
		case <-ticks.C:
		}
	}
	return child.CPUTime(m.pid)
}
