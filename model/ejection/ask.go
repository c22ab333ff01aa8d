package ejection

import (
	"net/netip"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// Step returns what is left out from now on, and why the rest is not; what is to be asked now; and when the next step
// is due, the zero time if nothing is suspected or left out.
func (m *Machine) Step(now time.Time) (v Verdict, asks []Ask, next time.Time) {
	s := &step{Machine: m, now: now, network: m.network(now), asked: map[netip.AddrPort]int{}}
	if s.lookup {
		s.aboutNodes()
	}
	s.decide()
	s.aboutSuspects()
	s.aboutMembers()
	switch {
	case len(s.wishes) > 0 || m.Waiting():
		s.later(now.Add(between))
	case !m.Idle():
		s.later(now.Add(settled))
	}
	asks = m.queue.serve(now, s.wishes)
	for _, a := range asks {
		if len(a.To) == 0 {
			m.nodes[a.Node].looking = true
		} else if a.about.begin(now); a.about.waits() {
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
	now     time.Time
	network network
	wishes  []wish
	asked   map[netip.AddrPort]int // the wishes about those that are no suspects
	next    time.Time              // when another step is due
}

func (s *step) later(at time.Time) { s.next = pace.Soonest(s.next, at) }

// due says that it is time for another try. One that decides whether it is silent has a step of its own.
func (s *step) due(t *tries) bool {
	if s.now.Before(t.next) && !t.silent() {
		s.later(t.next)
	}
	return !t.waits() && !s.now.Before(t.next)
}

// aboutSuspects asks the suspects whose time has come. It clears those beyond mostSuspects: of the namespaces that have
// most.
func (s *step) aboutSuspects() {
	var list []wish
	for _, e := range s.suspects() {
		at := s.now
		if !e.begun.IsZero() {
			at = e.begun // Those that were asked go first.
		}
		list = append(list, e.wish(at))
	}
	(&queue{}).order(list)
	for i, w := range list {
		e := s.endpoints[w.To[0]]
		if i >= mostSuspects {
			s.clear(e)
		} else if s.due(e.tries) {
			w.at = e.next
			s.wishes = append(s.wishes, w)
		}
	}
}

// aboutMembers asks endpoints that are left out with their node. Each comes back by its own first answer, too.
func (s *step) aboutMembers() {
	for _, l := range s.verdict.Left {
		if l.Protocol != service.TCP {
			continue
		}
		e := s.note(l.Addr)
		if due := e.asked.Before(l.Since) || s.now.Sub(e.asked) >= mostAgain; due && !e.suspected() && e.asking == 0 {
			s.ask(e, l.Service, e.asked)
		}
	}
}

// ask asks an endpoint that is no suspect.
func (s *step) ask(e *endpoint, by service.Name, at time.Time) {
	i, is := s.asked[e.addr]
	if !is {
		i = len(s.wishes)
		s.asked[e.addr], s.wishes = i, append(s.wishes, e.wish(at))
	}
	s.wishes[i].by = append(s.wishes[i].by, by)
}
