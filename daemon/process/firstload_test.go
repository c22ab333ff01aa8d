package process

import (
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// collector records the calls of a FirstLoad.
type collector struct {
	mu   sync.Mutex
	said []string
}

func (c *collector) say(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, what)
}

func (c *collector) switchOff() func() {
	c.say("off")
	return func() { c.say("on") }
}

// TestFirstLoad: the collector is switched off once. The first event that switches it on
// does so for good.
func TestFirstLoad(t *testing.T) {
	found := func(there bool) func() bool { return func() bool { return there } }
	late := func(*FirstLoad) {
		time.Sleep(longestFirstLoad)
		synctest.Wait()
	}
	begin := (*FirstLoad).Begin
	applied := func(f *FirstLoad) { f.Synced() }
	nothing := func(f *FirstLoad) { f.BeforeRead(found(false)) }
	tables := func(f *FirstLoad) { f.BeforeRead(found(true)) }
	for name, c := range map[string]struct {
		events []func(*FirstLoad)
		want   string
	}{
		"begun":                       {[]func(*FirstLoad){begin}, "off"},
		"begun twice":                 {[]func(*FirstLoad){begin, begin}, "off"},
		"nothing to read":             {[]func(*FirstLoad){begin, nothing}, "off"},
		"applied":                     {[]func(*FirstLoad){begin, nothing, applied}, "off on"},
		"applied twice":               {[]func(*FirstLoad){begin, nothing, applied, applied}, "off on"},
		"tables were there":           {[]func(*FirstLoad){begin, tables, applied}, "off on"},
		"took too long":               {[]func(*FirstLoad){begin, late}, "off on"},
		"took too long, then applied": {[]func(*FirstLoad){begin, late, nothing, applied}, "off on"},
		"applied, and a long time on": {[]func(*FirstLoad){begin, applied, late}, "off on"},
		"begun again":                 {[]func(*FirstLoad){begin, applied, begin}, "off on"},
		"over before it begins":       {[]func(*FirstLoad){(*FirstLoad).end, begin, applied}, ""},
		"tables while it is on":       {[]func(*FirstLoad){tables, begin, applied}, "off on"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var worker collector
				f := newFirstLoad(worker.switchOff, func() {})
				for _, event := range c.events {
					event(f)
				}
				if got := strings.Join(worker.said, " "); got != c.want {
					t.Errorf("the collector does %q, want %q", got, c.want)
				}
				f.Stop()
			})
		})
	}
}

// TestFirstLoadReleases: memory is released once, a while after the first sync, and not
// after the end.
func TestFirstLoadReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released atomic.Int64 // the race detector does not know the order of time in a bubble
		f := newFirstLoad(func() func() { return func() {} }, func() { released.Add(1) })
		wait := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		f.Begin()
		wait(longestFirstLoad)
		if released.Load() != 0 {
			t.Error("released before the first sync")
		}
		f.Synced()
		f.Synced()
		if wait(releaseDelay - 1); released.Load() != 0 {
			t.Error("released right after the first sync")
		}
		if wait(1); released.Load() != 1 {
			t.Errorf("released %d times, want once", released.Load())
		}
		f.Synced()
		if wait(time.Hour); released.Load() != 1 {
			t.Errorf("released %d times after a later sync, want once", released.Load())
		}
	})
	synctest.Test(t, func(t *testing.T) {
		var released atomic.Int64 // the race detector does not know the order of time in a bubble
		f := newFirstLoad(func() func() { return func() {} }, func() { released.Add(1) })
		f.Synced()
		f.Stop()
		time.Sleep(time.Hour)
		synctest.Wait()
		if released.Load() != 0 {
			t.Error("released after the end")
		}
	})
}

// TestFirstLoadFromEverywhere: many goroutines begin and end it at the same time. The
// collector is switched on once.
func TestFirstLoadFromEverywhere(t *testing.T) {
	switched := 0
	for range 200 {
		var c collector
		f := newFirstLoad(c.switchOff, func() {})
		var all sync.WaitGroup
		for _, event := range []func(){f.Begin, f.Begin, f.end, f.end, func() { f.Synced() },
			func() { f.BeforeRead(func() bool { return true }) }} {
			all.Go(event)
		}
		all.Wait()
		switch {
		case slices.Equal(c.said, []string{"off", "on"}):
			switched++
		case c.said != nil:
			t.Fatalf("the collector does %q", c.said)
		}
	}
	if switched == 0 {
		t.Error("it was never switched off")
	}
}

// settings reads the settings of the operator.
func settings() (percent int, limit int64) {
	percent = debug.SetGCPercent(-1)
	debug.SetGCPercent(percent)
	return percent, debug.SetMemoryLimit(-1)
}

// TestRestCollector: the collector is off, under a limit for memory. Later the operator's
// settings come back, whatever they are.
func TestRestCollector(t *testing.T) {
	percent, limit := settings()
	defer func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}()
	for name, c := range map[string]struct {
		percent int
		limit   int64
		guarded bool
	}{
		"Go's own":       {100, math.MaxInt64, true},
		"GOGC":           {37, math.MaxInt64, true},
		"a large limit":  {100, 1 << 50, true},
		"a small limit":  {100, 1 << 20, false},
		"off":            {-1, math.MaxInt64, false},
		"off in a limit": {-1, 1 << 40, false},
	} {
		debug.SetGCPercent(c.percent)
		debug.SetMemoryLimit(c.limit)
		switchOn := switchCollectorOff()
		percent, limit := settings()
		if percent != -1 {
			t.Errorf("%s: the collector works at %d %%", name, percent)
		}
		if limit > c.limit || c.guarded != (limit < c.limit) {
			t.Errorf("%s: memory may grow to %d, and %d is the operator's", name, limit, c.limit)
		}
		switchOn()
		if percent, limit = settings(); percent != c.percent || limit != c.limit {
			t.Errorf("%s: %d %% and %d come back, want %d %% and %d", name, percent, limit, c.percent, c.limit)
		}
	}
}

func TestGuard(t *testing.T) {
	for _, c := range []struct {
		inUse   uint64
		percent int
		want    int64
	}{
		{1 << 30, 100, 3 << 30}, {1 << 30, 50, 2 << 30}, {1 << 30, 0, 1 << 30}, {1 << 40, 1 << 30, math.MaxInt64},
		{1 << 20, 100, 97 << 20}, {1 << 20, 50, 49 << 20}, {1 << 20, 0, 1 << 20},
	} {
		if got := guard(c.inUse, c.percent); got != c.want {
			t.Errorf("from %d at %d %%: %d, want %d", c.inUse, c.percent, got, c.want)
		}
	}
	if n := memoryInUse(); n == 0 || n > 1<<40 {
		t.Errorf("%d bytes are in use", n)
	}
}
