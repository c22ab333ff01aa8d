package conntrack

import (
	"time"

	"nftproxy/model/service"
)

// silentFor is how long nothing comes from the sender of a connection that has been given up. A sender repeats what is
// not acknowledged, at first after some 200 ms and then after twice as long each time (RFC 6298): one that pauses for
// so long has had no answer for about as long, unless the other end answers only that it takes nothing
// (docs/internals/conntrack.md).
const silentFor = 30 * time.Second

// lookEvery is the time between two looks for connections to departed endpoints. It is the least time after a
// departure, too, and half of the most.
const lookEvery = 15 * time.Second

// maxSighted bounds the connections that are remembered. What is not, ends by the kernel's time-outs.
const maxSighted = 4096

// coarse is how much the time of an entry's end varies although no packet comes: the kernel says it in whole seconds.
const coarse = 2 * time.Second

// silence knows the connections of TCP to departed endpoints in which something is not acknowledged, and since when no
// packet has come. The time that an entry has left does not say that: it depends on the kernel's settings, on those of
// the Service, and on whether something is not acknowledged.
type silence struct {
	sighted map[connection]sighting
	// after is silentFor, but for tests.
	after time.Duration
	// next is when a sighting is to be looked at again; zero for never.
	next time.Time
}

// connection is an entry.
type connection struct {
	original Tuple
	id       uint32
}

type sighting struct {
	// since is when the connection was sighted. No packet has come since then if the entry still ends at ends.
	since, ends time.Time
	endpoint    Filter
	// asked says that a look at it has been asked for.
	asked bool
}

func (s sighting) same(ends time.Time) bool { return ends.Sub(s.ends).Abs() <= coarse }

// givenUp says that the connection has been given up.
func (s *silence) givenUp(f *Flow, now time.Time) bool {
	seen, ok := s.sighted[connection{f.Original, f.ID}]
	return ok && f.Unacknowledged && seen.same(now.Add(f.Timeout)) && now.Sub(seen.since) >= s.after
}

// see notes a connection.
func (s *silence) see(f *Flow, now time.Time) {
	key, ends := connection{f.Original, f.ID}, now.Add(f.Timeout)
	seen, ok := s.sighted[key]
	if ok && seen.same(ends) || !ok && len(s.sighted) >= maxSighted {
		return
	}
	if s.sighted == nil {
		s.sighted = map[connection]sighting{}
	}
	s.sighted[key] = sighting{since: now, ends: ends, endpoint: Filter{Protocol: f.Protocol, Endpoint: f.Reply.Src}}
	s.plan(now.Add(s.after))
}

func (s *silence) plan(at time.Time) {
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// due adds the endpoints whose connections may have been given up by now.
func (s *silence) due(now time.Time, scope *Scope) {
	if s.next.IsZero() || now.Before(s.next) {
		return
	}
	s.next = time.Time{}
	for key, seen := range s.sighted {
		at := seen.since.Add(s.after)
		switch {
		case now.After(seen.ends.Add(coarse)):
			delete(s.sighted, key)
		case seen.asked:
			s.plan(seen.ends.Add(2 * coarse)) // to forget it
		case now.Before(at):
			s.plan(at)
		default:
			scope.add(seen.endpoint)
			seen.asked = true
			s.sighted[key] = seen
			s.plan(seen.ends.Add(2 * coarse))
		}
	}
}

// sight notes a connection to a departed endpoint that may be given up.
func (x *Index) sight(f *Flow) {
	if f.Protocol != service.TCP || !f.Unacknowledged || expendable(f) {
		return
	}
	if d := x.departure(f); d != nil && !d.cut.kept {
		d.seen = x.departed.now
		x.silence.see(f, x.departed.now)
	}
}
