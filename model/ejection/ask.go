package ejection

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/pace"
)

// Step returns what is left out from now on, and why the rest is not; what is to be asked now; and when the next step
// is due, the zero time if that depends on other events.
func (m *Machine) Step(now time.Time) (v Verdict, asks []Ask, next time.Time) {
	s := &step{Machine: m, now: now}
	if s.lookup {
		s.aboutNodes()
	}
	m.decide(now)
	s.aboutSuspects()
	s.aboutOthers()
	s.aboutMembers()
	for _, of := range []struct {
		queue  *queue
		wishes []wish
	}{{&m.connects, s.connects}, {&m.lookups, s.lookups}, {&m.members, s.members}} {
		if len(of.wishes) > 0 {
			served, more := of.queue.serve(now, of.wishes)
			asks = append(asks, served...)
			s.later(more)
		}
	}
	for _, a := range asks {
		if a.about == nil {
			m.nodes[a.Node].looking = true
			continue
		}
		if a.about.begin(now); a.about.waits() {
			s.later(now) // Its node may be of interest now.
		} else {
			s.later(a.about.next)
		}
	}
	return m.verdict, asks, s.next
}

// step is a call of Step.
type step struct {
	*Machine
	now                        time.Time
	connects, lookups, members []wish
	next                       time.Time
}

// later notes a time when there is more to ask.
func (s *step) later(at time.Time) { s.next = pace.Soonest(s.next, at) }

// due says that it is time for another try, or notes when it is.
func (s *step) due(t *tries) bool {
	if t.waits() {
		return false
	}
	if s.now.Before(t.next) {
		s.later(t.next)
		return false
	}
	return true
}

// aboutSuspects asks the suspects whose time has come.
func (s *step) aboutSuspects() {
	for _, e := range s.suspects {
		if s.due(&e.tries) {
			s.connects = append(s.connects, e.wish(e.next))
		}
	}
}

// aboutOthers asks the endpoints that show whether the node may connect.
func (s *step) aboutOthers() {
	asked := map[netip.AddrPort]bool{}
	for _, name := range slices.Sorted(maps.Keys(s.dirty)) {
		g := s.groups[name]
		if g == nil {
			continue
		}
		s.later(g.more)
		for _, addr := range g.ask {
			if !asked[addr] {
				asked[addr] = true
				w := s.note(addr).wish(s.now)
				w.add(g)
				s.connects = append(s.connects, w)
			}
		}
	}
}

// aboutMembers asks endpoints that are left out with their node. Each comes back by its own first answer, too.
func (s *step) aboutMembers() {
	if len(s.dead) == 0 {
		return
	}
	if at := s.Machine.members.at.Add(time.Second); s.now.Before(at) {
		s.later(at)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		g := s.groups[name]
		for _, addr := range g.onDead {
			if e := s.note(addr); e.asking == 0 && !e.suspected && s.now.Sub(e.asked) >= mostAgain {
				w := e.wish(e.asked)
				w.add(g)
				s.members = append(s.members, w)
			}
		}
	}
}
