// Package pace promises when the next pass is due of work that is done beside
// the syncs, over a whole table at a time: soon after a sync that calls for it,
// but never more than a share of a core, and again after an error. It reads no
// clock and starts nothing itself.
package pace

import "time"

// The first and the longest wait after a pass that failed.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Schedule decides when passes are due. A field that is set stays as it is from
// the first call on.
type Schedule struct {
	// Pause is the least time between two passes, in durations of the earlier
	// one: work is kept below 1/(1+Pause) of a core.
	Pause int
	// IdlePause is the same for a pass that nothing urgent calls for.
	IdlePause int
	// Late are the waits before further passes that follow an urgent one, each
	// from the end of the pass before it, for what could not be seen at its time
	// yet. They begin anew with each urgent pass.
	Late []time.Duration

	// What calls for a pass.
	urgent, idle bool
	// again is when the next late pass is due, if not zero.
	again time.Time
	// row are the waits that follow the pass under way or again; follow says
	// that it is the former, a pass of the row.
	row    []time.Duration
	follow bool

	ended    time.Time     // of the last pass
	duration time.Duration // of the last pass
	retry    time.Duration // 0 if the last pass succeeded
}

// Request asks for a pass. The first pass of all is urgent in any case.
func (s *Schedule) Request(urgent bool) {
	if urgent || s.ended.IsZero() {
		s.urgent = true
	} else {
		s.idle = true
	}
}

// Next returns when the next pass is due, and false if none is.
func (s *Schedule) Next() (due time.Time, ok bool) {
	rested := func(pauses int) time.Time {
		return s.ended.Add(max(time.Duration(pauses)*s.duration, s.retry))
	}
	switch {
	case s.urgent:
		return rested(s.Pause), true
	case !s.again.IsZero():
		due, ok = later(s.again, rested(s.Pause)), true
	}
	if idle := rested(s.IdlePause); s.idle && (!ok || idle.Before(due)) {
		due, ok = idle, true
	}
	return due, ok
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Begin notes that a pass starts now.
func (s *Schedule) Begin(now time.Time) {
	s.follow = s.urgent || !s.again.IsZero() && !now.Before(s.again)
	if s.urgent {
		s.row = s.Late
	}
	if s.follow {
		s.again = time.Time{}
	}
	s.urgent, s.idle = false, false
}

// End notes that the pass is over. One that failed is as urgent as before, but
// waits longer each time.
func (s *Schedule) End(now time.Time, duration time.Duration, failed bool) {
	s.ended, s.duration = now, duration
	if failed {
		s.urgent = true
		s.retry = min(max(2*s.retry, firstRetry), lastRetry)
		return
	}
	s.retry = 0
	if s.follow && len(s.row) > 0 {
		s.again, s.row = now.Add(s.row[0]), s.row[1:]
	}
}
