package conntrack

import (
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
)

// silentFor is how long nothing comes from the sender of a connection that has been given up, if its endpoint does not
// answer the node either. A sender repeats what is not acknowledged, at first after some 200 ms and then after twice as
// long each time (RFC 6298): one that pauses for so long has had no answer for about as long, unless the other end
// answers only that it takes nothing (docs/internals/conntrack.md).
const silentFor = 30 * time.Second

// longestPause is that of any sender whose data is not acknowledged: Linux repeats it every two minutes at least
// (TCP_RTO_MAX), others more often. By then its timers are late by up to a step of their wheel: 4 s with 1,000 ticks a
// second, 14 s with 300. The rest is for what a busy machine is late, and for coarse.
const longestPause = 140 * time.Second

// lookEvery is the time between two looks for connections to departed endpoints. It is the least time after a
// departure, too, and half of the most.
const lookEvery = 15 * time.Second

// maxSighted bounds the connections that are remembered. The Services of one namespace may have a quarter of them. What
// is not remembered, ends by the kernel's time-outs.
const maxSighted = 4096

// coarse is how much the time of an entry's end varies although no packet comes: the kernel says it in whole seconds.
const coarse = 2 * time.Second

// silence knows the connections of TCP to departed endpoints in which something is not acknowledged, and since when no
// packet has come. The time that an entry has left does not say that: it depends on the kernel's settings, on those of
// the Service, and on whether something is not acknowledged.
type silence struct {
	sighted map[connection]sighting
	of      map[string]int // how many, by namespace
	// after and longest are silentFor and longestPause, but for tests.
	after, longest time.Duration
	// next is when something is due for a sighting; zero for never.
	next time.Time
	// ask has the endpoints that are to be asked whether they answer.
	ask []netip.AddrPort
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
	namespace   string
	// dead is when the endpoint was asked last without an answer; zero if it was not. asked says that it is asked, or was.
	// looked says that a look at the entry has been asked for, after the longest pause.
	dead          time.Time
	asked, looked bool
}

// death is an endpoint that was asked at a time, and has not answered.
type death struct {
	endpoint netip.AddrPort
	at       time.Time
}

func (s sighting) same(ends time.Time) bool { return ends.Sub(s.ends).Abs() <= coarse }

// givenUp says that the connection has been given up. Its endpoint has left at a time; what it did not answer before
// does not count, since it may have been back meanwhile.
func (s *silence) givenUp(f *Flow, left, now time.Time) bool {
	seen, ok := s.sighted[connection{f.Original, f.ID}]
	dead := !seen.dead.IsZero() && !seen.dead.Before(left)
	return ok && f.Unacknowledged && seen.same(now.Add(f.Timeout)) && (dead || now.Sub(seen.since) >= s.longest)
}

// see notes a connection to a Service of a namespace.
func (s *silence) see(f *Flow, namespace string, now time.Time) {
	key, ends := connection{f.Original, f.ID}, now.Add(f.Timeout)
	seen, ok := s.sighted[key]
	full := len(s.sighted) >= maxSighted || s.of[namespace] >= maxSighted/4
	if ok && seen.same(ends) || !ok && full {
		return
	}
	if s.sighted == nil {
		s.sighted, s.of = map[connection]sighting{}, map[string]int{}
	}
	if ok {
		namespace = seen.namespace
	} else {
		s.of[namespace]++
	}
	s.sighted[key] = sighting{since: now, ends: ends, namespace: namespace,
		endpoint: Filter{Protocol: f.Protocol, Endpoint: f.Reply.Src}}
	s.plan(now.Add(s.after))
}

func (s *silence) forget(key connection) {
	namespace := s.sighted[key].namespace
	if s.of[namespace]--; s.of[namespace] == 0 {
		delete(s.of, namespace)
	}
	delete(s.sighted, key)
}

// together is how long something that is due waits for more: one pass may sight thousands of connections, and each look
// for what is due goes through all of them.
const together = time.Second

func (s *silence) plan(at time.Time) {
	at = at.Add(together)
	if s.next.IsZero() || at.Before(s.next) {
		s.next = at
	}
}

// due adds the endpoints whose connections may have been given up by now, and asks for the answers of those that may be
// dead.
func (s *silence) due(now time.Time, scope *Scope) {
	if s.next.IsZero() || now.Before(s.next) {
		return
	}
	s.next = time.Time{}
	for key, seen := range s.sighted {
		ask, look, forget := seen.since.Add(s.after), seen.since.Add(s.longest), seen.ends.Add(2*coarse)
		if !now.Before(forget) {
			s.forget(key)
			continue
		}
		if !seen.asked && !now.Before(ask) {
			seen.asked, s.ask = true, append(s.ask, seen.endpoint.Endpoint)
		}
		if !seen.looked && !now.Before(look) {
			seen.looked = true
			scope.add(seen.endpoint)
		}
		switch s.sighted[key] = seen; {
		case !seen.asked:
			s.plan(ask)
		case !seen.looked && look.Before(forget):
			s.plan(look)
		default:
			s.plan(forget)
		}
	}
}

// take returns the endpoints that are to be asked, each once.
func (s *silence) take() []netip.AddrPort {
	list := s.ask
	s.ask = nil
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// died takes note that an endpoint has not answered, for the connections that were silent when it was asked. It returns
// where they are.
func (s *silence) died(d death) (scope Scope) {
	for key, seen := range s.sighted {
		if seen.endpoint.Endpoint == d.endpoint && !d.at.Before(seen.since.Add(s.after)) {
			seen.dead = d.at
			s.sighted[key] = seen
			scope.add(seen.endpoint)
		}
	}
	return scope
}

// sight notes a connection to a departed endpoint that may be given up.
func (x *Index) sight(f *Flow) {
	if f.Protocol != service.TCP || !f.Unacknowledged || expendable(f) {
		return
	}
	d := x.departure(f)
	if d == nil || d.cut.kept {
		return
	}
	d.seen = x.departed.now
	namespace := ""
	if o, ok := x.owner(f); ok {
		namespace, _ = o.service.Name.Split()
	}
	x.silence.see(f, namespace, x.departed.now)
}
