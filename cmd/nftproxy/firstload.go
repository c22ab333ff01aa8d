package main

import (
	"math"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"

	"nftproxy/internal/proxy"
	"nftproxy/nft/kernel"
)

// longestFirstLoad ends the collector's rest whatever happens.
const longestFirstLoad = 5 * time.Second

// firstLoad gives the garbage collector a rest while the first program is made:
// nearly all that is allocated then stays, and to mark it over and over takes
// time while services wait. It begins at most once and ends for good, whoever
// is first to end it. It is safe for concurrent use.
type firstLoad struct {
	// rest stops the collector and returns what puts it to work again.
	rest func() (resume func())

	mu sync.Mutex
	// resume is there while the collector rests.
	resume func()
	timer  *time.Timer
	over   bool
}

func newFirstLoad(rest func() (resume func())) *firstLoad { return &firstLoad{rest: rest} }

// begin is for when everything has been listed and nothing made of it.
func (f *firstLoad) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || f.resume != nil {
		return
	}
	f.resume = f.rest()
	f.timer = time.AfterFunc(longestFirstLoad, f.end)
}

// end puts the collector to work again. Without a begin there will be none.
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

// beforeRead ends it where there are tables: to read them makes much garbage.
func (f *firstLoad) beforeRead(tables func() (found bool)) {
	f.mu.Lock()
	resting := f.resume != nil
	f.mu.Unlock()
	if resting && tables() {
		f.end()
	}
}

// observe ends it with the first sync, however that went.
func (f *firstLoad) observe(proxy.Sync) { f.end() }

// restCollector switches the collector off, but for a limit on memory that it
// works to keep, never above the operator's GOMEMLIMIT. Resume restores what
// the operator set.
func restCollector() (resume func()) {
	percent := debug.SetGCPercent(-1)
	limit := debug.SetMemoryLimit(-1) // reads it
	if percent >= 0 {
		debug.SetMemoryLimit(min(limit, guard(memoryInUse(), percent)))
	}
	return func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}
}

// guard is what memory may grow to from what is in use. The load about doubles
// what lives, so that GOGC would soon let it grow by twice as much as now.
func guard(inUse uint64, percent int) int64 {
	grown := float64(inUse) * (1 + 2*float64(percent)/100)
	if grown >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(grown)
}

// memoryInUse is what a memory limit counts.
func memoryInUse() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// tablesThere says whether an earlier run has left tables; unknown counts as yes.
func (d *daemon) tablesThere(conn *kernel.Conn) bool {
	tables, err := conn.Tables(d.ruleset.Table)
	return err != nil || len(tables) > 0
}
