package conntrack

import "time"

const (
	// pause is the least time between two passes, in durations of the earlier
	// one. It keeps the cleaner below 1/(1+20), 5 %, of a core, however large
	// the table is and however often there is a sync.
	pause = 20
	// idlePause is the same for a pass after syncs that claimed nothing new:
	// most syncs change endpoints only. Such a pass finds something only if
	// the rules had been away or a service had been held back, and it must not
	// make the next one that matters wait.
	idlePause = 10 * pause
	// late is how long after a pass that followed new claims there is another,
	// for entries made without the rules although after them. nat decides about
	// a packet in prerouting or output, but its entry is in the table, for us
	// to see, only at the end of postrouting or input. For a packet that runs
	// through, these are microseconds: in 1,300 commits under 80,000 to 260,000
	// new flows a second, each followed by a dump at once, 4 million entries
	// were found and not one came later. But a packet can be held on the way,
	// as by a network policy engine that judges first packets in user space
	// (NFQUEUE): then its entry comes when it is let go, and as a UDP flow that
	// keeps talking it would miss its service until the next sync, which may be
	// days. TestCleanerFindsHeldPacket shows it. One more pass costs no more
	// than the first, and there is only one for any number of syncs.
	late = time.Second
	// The first and the longest wait after a pass that failed.
	firstRetry, lastRetry = time.Second, time.Minute
)

// schedule decides when the next pass is due. It reads no clock.
type schedule struct {
	// What there is to do: since syncs claimed something, and since they did not.
	urgent, idle bool
	// again is when to look once more for late entries, if not zero.
	again time.Time
	// follow says that the pass under way needs an again.
	follow bool

	ended    time.Time     // of the last pass
	duration time.Duration // of the last pass
	retry    time.Duration // 0 if the last pass succeeded
}

// synced notes a sync; grown is whether it made more flows stale.
func (s *schedule) synced(grown bool) {
	if grown || s.ended.IsZero() {
		s.urgent = true
	} else {
		s.idle = true
	}
}

// next returns when the next pass is due, and false if none is.
func (s *schedule) next() (due time.Time, ok bool) {
	rested := func(pauses time.Duration) time.Time {
		return s.ended.Add(max(pauses*s.duration, s.retry))
	}
	switch {
	case s.urgent:
		return rested(pause), true
	case !s.again.IsZero():
		due, ok = later(s.again, rested(pause)), true
	}
	if idle := rested(idlePause); s.idle && (!ok || idle.Before(due)) {
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

// begin notes that a pass starts now.
func (s *schedule) begin(now time.Time) {
	s.follow = s.urgent
	if !now.Before(s.again) {
		s.again = time.Time{}
	}
	s.urgent, s.idle = false, false
}

// end notes that the pass is over.
func (s *schedule) end(now time.Time, duration time.Duration, failed bool) {
	s.ended, s.duration = now, duration
	if failed {
		s.urgent = true
		s.retry = min(max(2*s.retry, firstRetry), lastRetry)
		return
	}
	s.retry = 0
	if s.follow {
		s.again = now.Add(late)
	}
}
