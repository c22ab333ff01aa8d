// Package pace decides when work beside the syncs may run next. A pass of such work goes over a
// whole table. It is due soon after a request, and again after an error, but all passes together
// take a bounded share of a core. (What is bounded to a number in each period, such as log lines,
// uses golang.org/x/time/rate.)
//
// The package reads no clock and starts no work itself.
package pace

import "time"

// The first and the longest wait after a failed pass.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// Schedule decides when passes are due. Set its exported fields before the first call
// and do not change them later. It is not safe for concurrent use.
type Schedule struct {
	// Pause is the least time from the end of a pass to the beginning of the next, in
	// durations of the earlier pass. It keeps the work below 1/(1+Pause) of a core.
	Pause int
	// Every is the least time from the beginning of a pass to the beginning of the
	// next.
	Every time.Duration
	// IdlePause is the Pause before a pass that no urgent request asked for.
	IdlePause int
	// IdleMost is the greatest IdlePause as a time; 0 sets no limit.
	IdleMost time.Duration
	// Late has the waits before further passes that follow an urgent one, each from the end of the
	// pass before it. They find what was not visible before. An urgent pass starts them again.
	Late []time.Duration

	// urgent and idle say which requests wait for a pass.
	urgent, idle bool
	// lateDue is the time when the next late pass is due, or zero.
	lateDue time.Time
	// lateWaits are the waits of Late that are still to come. inRow says that the
	// pass under way is urgent or late, so that the next of them follows it.
	lateWaits []time.Duration
	inRow     bool

	began    time.Time     // of the last pass, or of the one under way
	ended    time.Time     // of the last pass
	duration time.Duration // of the last pass
	retry    time.Duration // 0 if the last pass succeeded
}

// Request asks for a pass. A request before the end of the first pass is always
// urgent.
func (s *Schedule) Request(urgent bool) {
	if urgent || s.ended.IsZero() {
		s.urgent = true
	} else {
		s.idle = true
	}
}

// Next returns the time when the next pass is due. ok is false if none is.
func (s *Schedule) Next() (due time.Time, ok bool) {
	rested := func(pause time.Duration) time.Time {
		return Later(s.began.Add(s.Every), s.ended.Add(max(pause, s.retry)))
	}
	pause, idlePause := time.Duration(s.Pause)*s.duration, time.Duration(s.IdlePause)*s.duration
	if s.IdleMost > 0 {
		idlePause = min(idlePause, s.IdleMost)
	}
	switch {
	case s.urgent:
		return rested(pause), true
	case !s.lateDue.IsZero():
		due, ok = Later(s.lateDue, rested(pause)), true
	}
	if idle := rested(idlePause); s.idle && (!ok || idle.Before(due)) {
		due, ok = idle, true
	}
	return due, ok
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Soonest returns the earliest of those times that are not zero, and zero if there is none.
func Soonest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if !t.IsZero() && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// Earlier returns the earlier of two times.
func Earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// Begin notes that a pass starts now.
func (s *Schedule) Begin(now time.Time) {
	s.began = now
	s.inRow = s.urgent || !s.lateDue.IsZero() && !now.Before(s.lateDue)
	if s.urgent {
		s.lateWaits = s.Late
	}
	if s.inRow {
		s.lateDue = time.Time{}
	}
	s.urgent, s.idle = false, false
}

// End notes that the pass ends now, and its duration. After a failed pass an urgent one
// is due, after a wait that grows from 1 s to 1 min with each failure in a row.
func (s *Schedule) End(now time.Time, duration time.Duration, failed bool) {
	s.ended, s.duration = now, duration
	if failed {
		s.urgent = true
		s.retry = min(max(2*s.retry, firstRetry), lastRetry)
		return
	}
	s.retry = 0
	if s.inRow && len(s.lateWaits) > 0 {
		s.lateDue, s.lateWaits = now.Add(s.lateWaits[0]), s.lateWaits[1:]
	}
}
