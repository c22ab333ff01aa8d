package ejection

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"nftproxy/model/service"
)

// Machine knows what does not answer. A Service port is without an endpoint (Decide) only while all of this is so:
//
//   - A connection through the rules had no answer for Patience, and two connects of the node's own failed since. Clients
//     alone, whatever they send and from whatever addresses, leave out nothing. For the endpoints that a namespace has on
//     a node it is enough that this is so for one of any namespace, that the node's connects to some of this namespace
//     failed too, and that no endpoint of the node which was asked has answered.
//   - Another endpoint of the port has answered the node since, one on another node if there is any. So the node may
//     connect, and no policy explains the silence.
//   - No more than half of the port's endpoints are suspected, nor all of those on this node where a traffic policy is Local.
//   - More other nodes answer than are silent or being asked, or one of two. Otherwise it may be this node's own network.
//
// It ends with the first answer, or when the API changes the endpoint. Before the next suspicion there is a pause, which
// grows. What is remembered and what is asked at once is bounded, and the bounds are shared out among namespaces.
//
// A Machine is not safe for concurrent use.
type Machine struct {
	// jitter returns a number from 0 to 1, not included.
	jitter   func() float64
	view     View
	suspects map[Target]*suspect
	trusted  map[Target]trust
	// answers has the last answer of each target, nodes that of any on the node. Old ones are forgotten.
	answers map[Target]time.Time
	nodes   map[string]time.Time
	// compared has when an endpoint was last asked for comparison.
	compared map[Target]time.Time
	left     map[leftKey]Left
	asking   int
	// window is the second in which asked connects have begun.
	window time.Time
	asked  int
	// wants counts the changes of what View has to have.
	wants int
}

type leftKey struct {
	service service.Name
	port    uint16
	target  Target
}

// suspect is a target that did not answer a connection.
type suspect struct {
	endpoint service.Endpoint
	known    bool // endpoint is from a View
	// doubted says that there is enough to look at its Services and to ask it.
	doubted   bool
	namespace string
	// waiting has the connections without an answer at the last look, with the time when each was first seen.
	waiting map[uint32]time.Time
	// since is when the first connection had waited for Patience; zero before that. unanswered counts such connections.
	since      time.Time
	unanswered int
	lastFlow   time.Time
	// opinion says that only its node is of interest.
	opinion bool
	// begun is when the node first asked, failed counts the connects that failed since, and asking those under way.
	begun          time.Time
	failed, asking int
	next           time.Time
	wait           time.Duration
}

// trust is a time in which a target is not suspected.
type trust struct {
	until time.Time
	wait  time.Duration
}

// New makes a machine. jitter returns a number from 0 to 1, not included.
func New(jitter func() float64) *Machine {
	return &Machine{
		jitter: jitter, suspects: map[Target]*suspect{}, trusted: map[Target]trust{}, answers: map[Target]time.Time{},
		nodes: map[string]time.Time{}, compared: map[Target]time.Time{}, left: map[leftKey]Left{},
	}
}

// confirmed says that connections to it had no answer, and those of the node's own neither.
func (s *suspect) confirmed() bool { return s.failed >= tries && (!s.since.IsZero() || s.opinion) }

// silent says that it is confirmed by connections of clients.
func (s *suspect) silent() bool { return s.confirmed() && !s.opinion }

// Idle says that no connection is without an answer, and nothing is left out.
func (m *Machine) Idle() bool { return len(m.suspects) == 0 }

// Doubts says that something may not answer: View, Ask and Decide matter.
func (m *Machine) Doubts() bool {
	for _, s := range m.suspects {
		if s.doubted {
			return true
		}
	}
	return len(m.left) > 0
}

// Wanted says whether View has to have the ports of a target.
func (m *Machine) Wanted(t Target) bool {
	s := m.suspects[t]
	return s != nil && s.doubted
}

// WantedNodes has the nodes of which View has to have the ports with endpoints there.
func (m *Machine) WantedNodes() map[string]bool {
	names := map[string]bool{}
	for _, s := range m.suspects {
		if s.silent() && s.endpoint.Node != "" {
			names[s.endpoint.Node] = true
		}
	}
	return names
}

// Wants changes whenever View has to have something else.
func (m *Machine) Wants() int { return m.wants }

// Looked tells of all connections that have no answer at a moment.
func (m *Machine) Looked(now time.Time, flows []Flow) {
	seen := map[Target]map[uint32]time.Time{}
	for _, f := range flows {
		t := TCP(f.To)
		if now.Before(m.trusted[t].until) {
			continue
		}
		s := m.suspects[t]
		if s == nil {
			if len(m.suspects) >= mostTargets {
				continue
			}
			s = &suspect{wait: firstAgain}
			m.suspects[t] = s
		}
		ids := seen[t]
		if ids == nil {
			ids = map[uint32]time.Time{}
			seen[t] = ids
		}
		if first, old := s.waiting[f.ID]; old {
			ids[f.ID] = first
		} else if len(ids) < mostFlows {
			ids[f.ID] = now
		}
	}
	for t, s := range m.suspects {
		ids := seen[t]
		for id, first := range ids {
			if !first.IsZero() && now.Sub(first) >= Patience {
				s.unanswered++
				ids[id] = time.Time{} // counted
			}
		}
		if s.waiting = ids; !s.doubted && (s.unanswered > 0 || len(ids) >= ahead) {
			s.doubted = true
			m.wants++
		}
		if s.unanswered > 0 && s.since.IsZero() {
			s.since, s.opinion = now, false
		}
		switch {
		case len(ids) > 0:
			s.lastFlow = now
		case s.opinion, s.confirmed() && (m.leftAnywhere(t) || now.Sub(s.lastFlow) < forgetAfter):
		case s.asking > 0 || !s.since.IsZero() && s.failed < tries:
			// The answer of the node's own connect decides.
		default:
			m.forget(t)
		}
	}
	m.forgetOld(now)
}

func (m *Machine) forget(t Target) {
	if m.suspects[t].doubted {
		m.wants++
	}
	delete(m.suspects, t)
}

func (m *Machine) leftAnywhere(t Target) bool {
	for k := range m.left {
		if k.target == t {
			return true
		}
	}
	return false
}

// forgetOld forgets answers and trust that count no more, and opinions on nodes without a suspect.
func (m *Machine) forgetOld(now time.Time) {
	old := func(_ Target, at time.Time) bool { return now.Sub(at) > fresh }
	maps.DeleteFunc(m.compared, old)
	maps.DeleteFunc(m.answers, old)
	maps.DeleteFunc(m.nodes, func(_ string, at time.Time) bool { return now.Sub(at) > fresh })
	maps.DeleteFunc(m.trusted, func(_ Target, t trust) bool { return now.Sub(t.until) > trustFor })
	wanted := m.WantedNodes()
	for t, s := range m.suspects {
		if s.opinion && !wanted[s.endpoint.Node] {
			m.forget(t)
		}
	}
}

// See gives the machine the Services as they are now. A suspect that no port has, or whose endpoint has changed, is none
// any more.
func (m *Machine) See(now time.Time, v View) {
	m.view = v
	// Several Services may have the target, and slices may say different things of it: it is as one of them says.
	found, same := map[Target]bool{}, map[Target]bool{}
	for i := range v.Ports {
		p := &v.Ports[i]
		for j := range p.Ready {
			e := &p.Ready[j]
			t := p.target(e)
			s := m.suspects[t]
			if s == nil {
				continue
			}
			if !s.known {
				s.endpoint, s.known, s.namespace = *e, true, p.namespace()
			}
			found[t], same[t] = true, same[t] || !changed(&s.endpoint, e)
		}
	}
	crowd := map[string]int{}
	for _, s := range m.suspects {
		crowd[s.namespace] += boolInt(s.confirmed())
	}
	for _, t := range m.targets() {
		s := m.suspects[t]
		crowd[s.namespace] += boolInt(!s.confirmed())
		switch {
		case found[t] && !same[t], s.doubted && !found[t]:
			m.forget(t)
		case s.doubted && crowd[s.namespace] > mostTargets/4 && !s.confirmed():
			m.forget(t)
			if len(m.trusted) < mostTrusted {
				m.trusted[t] = trust{now.Add(mostTrust), mostTrust}
			}
		}
	}
}

// changed says that the API has changed the endpoint.
func changed(a, b *service.Endpoint) bool {
	return a.Node != b.Node || a.Nodes != b.Nodes || a.Zones != b.Zones || a.Terminating != b.Terminating
}

// Answered tells what came of asking a target that Ask has returned.
func (m *Machine) Answered(now time.Time, a Ask, answer Answer) {
	m.asking--
	s := m.suspects[a.Target]
	// The suspect may be another one than was asked: a failure says nothing about it.
	about := s != nil && s == a.about
	if about {
		s.asking--
	}
	switch answer {
	case Answered:
		m.answers[a.Target], m.nodes[a.node] = now, now
		if s == nil {
			return
		}
		m.forget(a.Target)
		m.believe(now, a.Target)
		for _, other := range m.suspects { // What is on its node may be back, too.
			if other.endpoint.Node == s.endpoint.Node && s.endpoint.Node != "" {
				other.wait, other.next = firstAgain, now
			}
		}
	case Unanswered:
		if !about {
			return
		}
		if s.failed++; s.failed == tries {
			m.wants++ // its node
		}
		if s.failed >= tries {
			s.next = now.Add(time.Duration(float64(s.wait) * (0.75 + m.jitter()/2)))
			s.wait = min(2*s.wait, mostAgain)
		}
	case Unknown:
		if about {
			s.next = now.Add(time.Second)
		}
	}
}

// believe keeps a target from being suspected for a while.
func (m *Machine) believe(now time.Time, t Target) {
	was := m.trusted[t]
	wait := min(max(firstTrust, 2*was.wait), mostTrust)
	m.trusted[t] = trust{now.Add(wait), wait}
	if len(m.trusted) > mostTrusted {
		oldest := t
		for other, one := range m.trusted {
			if one.until.Before(m.trusted[oldest].until) {
				oldest = other
			}
		}
		delete(m.trusted, oldest)
	}
}

// why says in words why an endpoint is left out.
func (s *suspect) why() string {
	return fmt.Sprintf("%s without answer, %d tries of this node failed", count(s.unanswered, "connection"), tries)
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// targets returns the suspects in a fixed order.
func (m *Machine) targets() []Target {
	return slices.SortedFunc(maps.Keys(m.suspects), Target.compare)
}
