package process

import (
	"context"
	"time"
)

const (
	// sleepPeriod is how often the clocks are compared: the tables are to be right within a second of waking, and
	// connecting again takes a part of it. Each time wakes a process that is otherwise at rest.
	sleepPeriod = time.Second / 2
	// leastSleep is the shortest sleep that counts. Connections outlive a shorter one.
	leastSleep = 5 * time.Second
)

// FollowSleep calls awoke after each sleep of five seconds or more, with its length, until the context ends. The timers
// of a process and its monotonic clock stand still while the machine sleeps, so the wall clock is ahead then. The same
// is true after a virtual machine was paused and its clock set, and after any other step of the clock ahead: all these
// count as sleep.
func FollowSleep(ctx context.Context, awoke func(slept time.Duration)) {
	followSleep(ctx, clockAhead(time.Now()), awoke)
}

// clockAhead returns a function that says by how much the wall clock has run ahead of the monotonic clock
// since the start.
func clockAhead(start time.Time) func() time.Duration {
	return func() time.Duration {
		now := time.Now()
		wall := now.Round(0).Sub(start.Round(0)) // Round strips the monotonic reading
		return wall - now.Sub(start)
	}
}

// followSleep is FollowSleep with the difference of the clocks as an argument.
func followSleep(ctx context.Context, ahead func() time.Duration, awoke func(slept time.Duration)) {
	tick := time.NewTicker(sleepPeriod)
	defer tick.Stop()
	last := ahead()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := ahead()
		if slept := now - last; slept >= leastSleep {
			awoke(slept)
		}
		last = now
	}
}
