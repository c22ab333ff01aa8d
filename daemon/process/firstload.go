package process

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// longestFirstLoad is the longest time that the garbage collector is off.
const longestFirstLoad = 5 * time.Second

// releaseDelay is how long after the first sync the process gives memory back. By then the
// observers have taken in the sync, and nothing waits for the CPU time.
const releaseDelay = time.Second

// FirstLoad switches the garbage collector off while the proxy makes the first program: nearly all memory that is
// allocated then stays in use. The collector is off at most once. FirstLoad is safe for concurrent use.
type FirstLoad struct {
	// switchOff switches the collector off. switchOn restores it.
	switchOff func() (switchOn func())
	// release gives memory that is no longer in use back to the kernel.
	release func()

	mu sync.Mutex
	// switchOn is set while the collector is off.
	switchOn func()
	timer    *time.Timer
	over     bool
	// observed says that a sync was observed; released is the timer of release.
	observed bool
	released *time.Timer
}

// NewFirstLoad makes the first load of this process.
func NewFirstLoad() *FirstLoad { return newFirstLoad(switchCollectorOff, debug.FreeOSMemory) }

func newFirstLoad(switchOff func() (switchOn func()), release func()) *FirstLoad {
	return &FirstLoad{switchOff: switchOff, release: release}
}

// Begin switches the collector off. Call it when all objects are listed and not yet compiled.
func (f *FirstLoad) Begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.switchOn != nil {
		return
	}
	f.switchOn = f.switchOff()
	f.timer = time.AfterFunc(longestFirstLoad, f.end)
}

// end switches the collector on again. A later Begin has no effect.
func (f *FirstLoad) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	if f.switchOn != nil {
		f.timer.Stop()
		f.switchOn()
		f.switchOn = nil
	}
}

// BeforeRead switches the collector on if there are tables: reading them makes much garbage.
func (f *FirstLoad) BeforeRead(tables func() (found bool)) {
	f.mu.Lock()
	off := f.switchOn != nil
	f.mu.Unlock()
	if off && tables() {
		f.end()
	}
}

// Synced switches the collector on after the first sync, successful or not. A second later it has memory released,
// once: most of what the load took is garbage by then.
func (f *FirstLoad) Synced() {
	f.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.observed {
		f.observed = true
		f.released = time.AfterFunc(releaseDelay, f.release)
	}
}

// Stop ends the load for good. It releases nothing from then on.
func (f *FirstLoad) Stop() {
	f.end()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.observed = true
	if f.released != nil {
		f.released.Stop()
	}
}

// switchCollectorOff switches the collector off. It works nevertheless when memory reaches a limit, which is never
// above the operator's GOMEMLIMIT. switchOn restores the operator's settings.
func switchCollectorOff() (switchOn func()) {
	percent := debug.SetGCPercent(-1)
	limit := debug.SetMemoryLimit(-1) // A negative limit only reads the current one.
	if percent >= 0 {
		debug.SetMemoryLimit(min(limit, guard(memoryInUse(), percent)))
	}
	return func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}

// leastLoad is how many bytes a load may take with the default GOGC, however little is in use. 10,000 Services of ten
// endpoints take 80 MB. With three times what was in use, the collector worked in half of their starts, 40 ms each.
const leastLoad = 96 << 20

// guard returns the limit for memory, from the bytes in use and GOGC in percent. The load about doubles the live
// memory, so GOGC would soon let it grow by twice as much as now.
func guard(inUse uint64, percent int) int64 {
	grown := float64(inUse) + max(2*float64(inUse), leastLoad)*float64(percent)/100
	if grown >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(grown)
}

// memoryInUse returns the bytes that count for a memory limit.
func memoryInUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// CPUTime returns the CPU time of the process so far. It returns 0 if the kernel gives no
// answer, which does not happen.
func CPUTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
