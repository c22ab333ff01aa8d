package main

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft/kernel"
)

// longestFirstLoad is the longest time that the collector rests.
const longestFirstLoad = 5 * time.Second

// firstLoad stops the garbage collector while the proxy makes the first program.
// Nearly all memory that is allocated then stays in use, and marking it again and
// again takes time while Services wait. The rest begins at most once, and the first
// call of end finishes it for good. It is safe for concurrent use.
type firstLoad struct {
	// rest stops the collector. resume starts it again.
	rest func() (resume func())

	mu sync.Mutex
	// resume is set while the collector rests.
	resume func()
	timer  *time.Timer
	over   bool
}

func newFirstLoad(rest func() (resume func())) *firstLoad { return &firstLoad{rest: rest} }

// begin starts the rest. Call it when all objects are listed and not yet compiled.
func (f *firstLoad) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.resume != nil {
		return
	}
	f.resume = f.rest()
	f.timer = time.AfterFunc(longestFirstLoad, f.end)
}

// end starts the collector again. A later begin has no effect.
func (f *firstLoad) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	if f.resume != nil {
		f.timer.Stop()
		f.resume()
		f.resume = nil
	}
}

// beforeRead ends the rest if there are tables: reading them makes much garbage.
func (f *firstLoad) beforeRead(tables func() (found bool)) {
	f.mu.Lock()
	resting := f.resume != nil
	f.mu.Unlock()
	if resting && tables() {
		f.end()
	}
}

// observe ends the rest with the first sync, successful or not.
func (f *firstLoad) observe(proxy.Sync) { f.end() }

// restCollector switches the collector off. Only when memory reaches a limit, which
// is never above the operator's GOMEMLIMIT, does the collector work. resume restores
// the operator's settings.
func restCollector() (resume func()) {
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

// guard returns the limit for memory, from the bytes in use and GOGC in percent. The
// load about doubles the live memory, so GOGC would soon let it grow by twice as
// much as now.
func guard(inUse uint64, percent int) int64 {
	grown := float64(inUse) * (1 + 2*float64(percent)/100)
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

// tablesThere says whether an earlier run left tables. If that is unknown, it says
// yes.
func (d *daemon) tablesThere(conn *kernel.Conn) bool {
	tables, err := conn.Tables(d.ruleset.Table)
	return err != nil || len(tables) > 0
}
