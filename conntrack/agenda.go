package conntrack

import "time"

// secondPassAfter is the time between a change and the second pass for it. The
// second pass finds entries that were made without the new rules and yet appeared
// after them. nat decides about a packet in prerouting or output, but a dump shows
// its entry only from the end of postrouting or input on. For a packet that runs
// through, these are microseconds: in 1,300 commits under 80,000 to 260,000 new
// flows a second, each commit followed by a dump at once, the dumps found 4 million
// entries and not one late one. But a program can hold a packet on its way, such as
// a network policy engine that judges first packets in user space (NFQUEUE). The
// entry appears when the program releases the packet. Without a second pass, a UDP
// flow that keeps talking would miss its service until the next sync, which may be
// days. TestCleanerFindsHeldPacket shows it.
const secondPassAfter = time.Second

// change is the part of the table that one or more syncs can have made stale.
type change struct {
	scope Scope
	// epoch is the index's epoch after these syncs.
	epoch uint64
	// since is the time of the first report of these syncs. The rules of all of
	// them are in force since at.
	since, at time.Time
}

// agenda decides what is due: where in the table a pass has to look. Every change
// needs two passes, the first as soon as possible and the second from
// secondPassAfter on. One pass serves all changes that wait for it. The agenda
// knows neither the clock nor the cost of a pass.
type agenda struct {
	// changes are in order of age. The first pass for the oldest once changes is
	// over.
	changes []change
	once    int
	// underWay counts the oldest changes that the pass under way can serve. It is
	// 0 between passes.
	underWay int
}

// add takes up a change. Changes that no pass has begun to serve become one: the
// agenda never holds more changes than passes began within a few times
// secondPassAfter.
func (a *agenda) add(c change) {
	if n := len(a.changes); n > max(a.once, a.underWay) {
		last := &a.changes[n-1]
		last.scope.merge(c.scope)
		if last.epoch = c.epoch; last.at.Before(c.at) {
			last.at = c.at
		}
		return
	}
	a.changes = append(a.changes, c)
}

// addNothing takes up syncs that have made nothing stale. It returns the epoch up to
// which nothing is due: theirs, or 0 if an earlier change is still due. That change then
// counts for them.
func (a *agenda) addNothing(epoch uint64) uint64 {
	if n := len(a.changes); n > 0 {
		a.changes[n-1].epoch = epoch
		return 0
	}
	return epoch
}

// firstSince returns the time since which a change waits for its first pass. ok is
// false if no change does.
func (a *agenda) firstSince() (since time.Time, ok bool) {
	if a.once == len(a.changes) {
		return time.Time{}, false
	}
	return a.changes[a.once].since, true
}

// secondDue returns the time from which on a second pass serves a change, and zero
// if no change waits for one.
func (a *agenda) secondDue() time.Time {
	if a.once == 0 {
		return time.Time{}
	}
	return a.changes[0].at.Add(secondPassAfter)
}

// begin returns the scope of a pass that begins now: the changes without a first
// pass and, if second is true, also those that are due for their second one.
func (a *agenda) begin(now time.Time, second bool) Scope {
	var s Scope
	for i, c := range a.changes {
		if i >= a.once || second && c.old(now) {
			s.merge(c.scope)
		}
	}
	a.underWay = len(a.changes)
	return s
}

// end notes that the pass which began at start is complete. It returns the epoch
// up to which nothing is due any more.
func (a *agenda) end(start time.Time, second bool) (epoch uint64) {
	n := 0
	for n < a.underWay && a.changes[n].old(start) && (second || n >= a.once) {
		epoch = a.changes[n].epoch
		n++
	}
	a.changes, a.once, a.underWay = a.changes[n:], a.underWay-n, 0
	return epoch
}

// fail notes that the pass under way may have missed any entry. Everything is due
// again, as if it had become stale now.
func (a *agenda) fail(now time.Time, epoch uint64) {
	since, waiting := a.firstSince()
	if !waiting {
		since = now
	}
	*a = agenda{changes: []change{{Scope{Everything: true}, epoch, since, now}}}
}

// old says that a pass which begins now can be the change's second pass.
func (c *change) old(now time.Time) bool { return !now.Before(c.at.Add(secondPassAfter)) }
