package wake

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestFollow: each sleep is told once, within a period after it. A clock that is set back, or that is
// corrected little by little, is no sleep.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64 // a time.Duration; the race detector does not know the order of time in a bubble
		var told []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		go follow(ctx, func() time.Duration { return time.Duration(ahead.Load()) }, func(slept time.Duration) { told = append(told, slept) })
		step := func(by time.Duration) {
			synctest.Wait()
			ahead.Add(int64(by))
			time.Sleep(period)
			synctest.Wait()
		}
		step(0)
		step(8 * time.Hour)
		step(0)
		step(-9 * time.Hour)
		for range 3600 {
			step(time.Second)
		}
		step(least)
		cancel()
		synctest.Wait()
		step(time.Hour)
		if want := []time.Duration{8 * time.Hour, least}; !slices.Equal(told, want) {
			t.Errorf("told of %v, want %v", told, want)
		}
	})
}

// TestAhead: while nobody sets the clock, the wall clock is not ahead by as much as the shortest sleep.
func TestAhead(t *testing.T) {
	clock := ahead(time.Now())
	for range 1000 {
		if d := clock(); d.Abs() >= least {
			t.Fatalf("the wall clock is ahead by %v", d)
		}
	}
	if d := ahead(time.Now().Add(-time.Hour).Round(0))(); d != 0 {
		t.Errorf("without a monotonic reading the wall clock is ahead by %v", d)
	}
}
