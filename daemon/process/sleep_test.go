package process

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestFollowSleep: each sleep is told once, within a period after it. A clock that is set back, or that is
// corrected little by little, is no sleep.
func TestFollowSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ahead atomic.Int64 // a time.Duration; the race detector does not know the order of time in a bubble
		var told []time.Duration
		ctx, cancel := context.WithCancel(t.Context())
		go followSleep(ctx, func() time.Duration { return time.Duration(ahead.Load()) }, func(slept time.Duration) {
			told = append(told, slept)
		})
		step := func(by time.Duration) {
			synctest.Wait()
			ahead.Add(int64(by))
			time.Sleep(sleepPeriod)
			synctest.Wait()
		}
		step(0)
		step(8 * time.Hour)
		step(0)
		step(-9 * time.Hour)
		for range 3600 {
			step(time.Second)
		}
		step(leastSleep)
		cancel()
		synctest.Wait()
		step(time.Hour)
		if want := []time.Duration{8 * time.Hour, leastSleep}; !slices.Equal(told, want) {
			t.Errorf("told of %v, want %v", told, want)
		}
	})
}

// TestClockAhead: while nobody sets the clock, the wall clock is not ahead by as much as the shortest sleep.
func TestClockAhead(t *testing.T) {
	clock := clockAhead(time.Now())
	for range 1000 {
		if d := clock(); d.Abs() >= leastSleep {
			t.Fatalf("the wall clock is ahead by %v", d)
		}
	}
	if d := clockAhead(time.Now().Add(-time.Hour).Round(0))(); d != 0 {
		t.Errorf("without a monotonic reading the wall clock is ahead by %v", d)
	}
}
