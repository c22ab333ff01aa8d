// Package wake promises a call soon after the machine has slept. It does not say what to do then.
//
// The timers of a process stand still while the machine sleeps, and go on where they were. What
// tells of the sleep is the wall clock: it is ahead of the monotonic clock by so much more. The
// same is true after a virtual machine was paused and its clock set, and after any other step of
// the clock ahead. All these count as sleep.
package wake

import (
	"context"
	"time"
)

const (
	// period is how often the clocks are compared: the tables are to be right within a second
	// of waking, and connecting anew takes a part of it. Each time wakes a process that is
	// otherwise at rest.
	period = time.Second / 2
	// least is the shortest sleep that counts. Connections outlive a shorter one.
	least = 5 * time.Second
)

// Follow calls awoke after each sleep of five seconds or more, with its length, until the context
// ends.
func Follow(ctx context.Context, awoke func(slept time.Duration)) {
	follow(ctx, ahead(time.Now()), awoke)
}

// ahead returns a function that says by how much the wall clock has run ahead of the monotonic clock
// since the start.
func ahead(start time.Time) func() time.Duration {
	return func() time.Duration {
		now := time.Now()
		wall := now.Round(0).Sub(start.Round(0)) // Round strips the monotonic reading
		return wall - now.Sub(start)
	}
}

// follow is Follow with the difference of the clocks as an argument.
func follow(ctx context.Context, ahead func() time.Duration, awoke func(slept time.Duration)) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	last := ahead()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := ahead()
		if slept := now - last; slept >= least {
			awoke(slept)
		}
		last = now
	}
}
