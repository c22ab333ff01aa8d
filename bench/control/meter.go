package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
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
	sum := statusBytes(m.pid, field)
	for _, pid := range descendants(m.pid) {
		sum += statusBytes(pid, field)
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

// statusBytes returns a field of a process's status, in bytes; 0 if the process has gone.
func statusBytes(pid int, field string) int64 {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), field); found {
			kilobytes, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}

// descendants returns a process's children and their children. Each thread lists its own
// children (CONFIG_PROC_CHILDREN).
func descendants(pid int) []int {
	var pids []int
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has gone
		}
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				pids = append(append(pids, child), descendants(child)...)
			}
		}
	}
	return pids
}

// CPUTime returns the CPU time of a process, to the nanosecond, and that of its children
// that have ended, in the kernel's ticks of 10 ms.
func CPUTime(pid int) (time.Duration, error) {
	// The clock of another process's CPU time: clock_getcpuclockid(3).
	const schedulerClock = 2
	var now unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedulerClock), &now); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("CPU time of process %d's children: %w", pid, err)
	}
	children, err := childTicks(string(stat))
	if err != nil {
		return 0, fmt.Errorf("CPU time of process %d's children: %w", pid, err)
	}
	const perSecond = 100 // USER_HZ, whatever the kernel's own
	return time.Duration(now.Nano()) + time.Duration(children)*time.Second/perSecond, nil
}

// childTicks reads cutime and cstime, the 16th and 17th field of proc_pid_stat(5).
func childTicks(stat string) (int64, error) {
	// The second field is a name in parentheses. It may hold spaces and parentheses
	// itself.
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 15 {
		return 0, fmt.Errorf("cannot read %q", stat)
	}
	user, userErr := strconv.ParseInt(fields[13], 10, 64)
	system, systemErr := strconv.ParseInt(fields[14], 10, 64)
	return user + system, errors.Join(userErr, systemErr)
}

// settledCPU returns CPUTime once no child runs, or when the context ends. The kernel
// counts only children that have been waited for.
func (m *meter) settledCPU(ctx context.Context) (time.Duration, error) {
	ticks := time.NewTicker(samplePeriod / 4)
	defer ticks.Stop()
	for len(descendants(m.pid)) > 0 {
		select {
		case <-ctx.Done():
			return CPUTime(m.pid)
		case <-ticks.C:
		}
	}
	return CPUTime(m.pid)
}
