package ejection

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// Machine knows what does not answer.
//
//   - An endpoint is judged by itself: a client's connection through the rules had no answer for Patience, and two
//     connects of the node's own failed. It comes back by its own first answer.
//   - A Node is judged by itself. When an endpoint that a slice places on it does not answer, the API server is asked
//     for the Node, and the Node at its own addresses. If two tries fail, all endpoints that slices place there are
//     left out, also those of UDP and SCTP ports. They come back with its first answer.
//   - An endpoint on a node that answers, or is not judged, is left out of a Service port only if another one of the
//     port has answered since: the node may connect then. One on another node has to answer if there is any.
//   - A port keeps half of the endpoints that take connections, unless their Node is dead, and always the last one.
//   - Nothing more is left out while as many Nodes are silent as answer, or nothing elsewhere has answered: that may be
//     this node's own network. What failed before something answered again is tried again.
//
// Which endpoints a Service has, and on which node they are, is what tenants write: it decides about that Service only,
// and about which Node to ask. What is remembered and asked is bounded, and shared out among namespaces.
//
// A Machine is not safe for concurrent use.
type Machine struct {
	// jitter returns a number from 0 to 1, not included. mode is that of a Service.
	jitter   func() float64
	mode     func(*service.Service) service.Eject
	snapshot service.Snapshot
	// lookup says that there is an API server to ask.
	lookup bool
	// endpoints has what was asked lately, and flows the connections without an answer at the last look, with the time
	// when each was first seen.
	endpoints map[netip.AddrPort]*endpoint
	unknown   *endpoint // stands for one that was not asked
	flows     map[Flow]time.Time
	nodes     map[string]*node
	// groups are the Services that list a suspect or do without an endpoint; dirty are those to decide on.
	groups  map[service.Name]*group
	dirty   map[service.Name]bool
	queue   queue
	sampled time.Time // when names of nodes were drawn last
	// server is when the API server has answered last. askServer is when it may be asked again; zero if it has answered.
	server, askServer time.Time
	verdict           Verdict
}

// endpoint is an address that was asked: that of a suspect, or of one for comparison.
type endpoint struct {
	addr netip.AddrPort
	*tries
	// lastFlow is when a look has last found a connection without an answer; zero if it is no suspect. unanswered is how
	// many had waited for Patience, at most.
	lastFlow   time.Time
	unanswered int
	// listings are the Services that list the suspect, each with the node where its slices place it.
	listings []listing
}

type listing struct {
	*group
	node string
}

func (e *endpoint) suspected() bool { return !e.lastFlow.IsZero() }

// confirmed says that a client's connection had no answer, and those of the node's own neither.
func (e *endpoint) confirmed() bool { return e.unanswered > 0 && e.failed >= enough }

// why says in words why the endpoint is left out.
func (e *endpoint) why() string {
	plural := "s"
	if e.unanswered == 1 {
		plural = ""
	}
	return fmt.Sprintf("%d connection%s without answer, %d tries of this node failed", e.unanswered, plural, enough)
}

// left says that some Service port does without the endpoint.
func (e *endpoint) left() bool {
	return slices.ContainsFunc(e.listings, func(l listing) bool { return l.leaves(e.addr) })
}

// New makes a machine. mode is that of a Service, and lookup says that the API server can be asked for Nodes. jitter
// returns a number from 0 to 1, not included.
func New(mode func(*service.Service) service.Eject, lookup bool, jitter func() float64) *Machine {
	return &Machine{
		jitter: jitter, mode: mode, lookup: lookup, endpoints: map[netip.AddrPort]*endpoint{},
		unknown: &endpoint{tries: &tries{}}, nodes: map[string]*node{}, groups: map[service.Name]*group{},
		dirty: map[service.Name]bool{}, queue: queue{last: map[string]int{}},
	}
}

// Idle says that nothing is suspected or left out: no call but Looked and See matters.
func (m *Machine) Idle() bool { return len(m.groups)+len(m.dirty)+len(m.suspects()) == 0 }

// Waiting says that another look soon tells whether a suspect's connections have waited for Patience.
func (m *Machine) Waiting() bool {
	return slices.ContainsFunc(m.suspects(), func(e *endpoint) bool { return !e.confirmed() })
}

// suspects are the endpoints that are suspected, by address.
func (m *Machine) suspects() (list []*endpoint) {
	for _, e := range m.endpoints {
		if e.suspected() {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *endpoint) int { return a.addr.Compare(b.addr) })
	return list
}

// See gives the machine the Services as they are now.
func (m *Machine) See(s service.Snapshot) {
	old := m.snapshot
	m.snapshot = s
	if m.Idle() {
		return
	}
	if old.Node != s.Node {
		m.touchAll()
	}
	for change := range treap.Diff(old.Services, s.Services) {
		m.dirty[change.Key] = true
	}
}

func (m *Machine) touchAll() {
	for name := range m.groups {
		m.dirty[name] = true
	}
}

// touch has those Services decided on that list an endpoint which matters.
func (m *Machine) touch(matters func(*service.Endpoint) bool) {
	for name, s := range m.snapshot.Services.All() {
		if lists(s, matters) {
			m.dirty[name] = true
		}
	}
}

func lists(s *service.Service, matters func(*service.Endpoint) bool) bool {
	for i := range s.Ports {
		for chunk := range s.Ports[i].Endpoints.Chunks() {
			for j := range chunk {
				if matters(&chunk[j]) {
					return true
				}
			}
		}
	}
	return false
}

// Looked tells of all connections that have no answer at a moment.
func (m *Machine) Looked(now time.Time, flows []Flow) {
	seen, waited := map[Flow]time.Time{}, map[*endpoint]int{}
	var fresh []netip.AddrPort
	for _, f := range flows {
		e := m.note(f.To)
		if !e.suspected() {
			if now.Before(e.answered.Add(pause)) {
				continue
			}
			e.tries, fresh = e.anew(), append(fresh, f.To)
		}
		first := m.flows[f]
		if e.lastFlow = now; first.IsZero() || first.Before(e.answered) {
			first = now
		}
		if seen[f] = first; now.Sub(first) >= Patience {
			waited[e]++
		}
	}
	if m.flows = seen; len(fresh) > 0 {
		slices.SortFunc(fresh, netip.AddrPort.Compare)
		m.touch(func(e *service.Endpoint) bool {
			_, is := slices.BinarySearchFunc(fresh, e.Addr, netip.AddrPort.Compare)
			return is
		})
	}
	for _, e := range m.suspects() {
		m.lookedAt(now, e, waited[e])
	}
	m.forget(now)
}

// note returns what is known of an address.
func (m *Machine) note(addr netip.AddrPort) *endpoint {
	e := m.endpoints[addr]
	if e == nil {
		e = &endpoint{addr: addr, tries: &tries{}}
		m.endpoints[addr] = e
	}
	return e
}

// lookedAt takes how many connections to a suspect have waited for Patience.
func (m *Machine) lookedAt(now time.Time, e *endpoint, waited int) {
	was := e.confirmed()
	if e.unanswered = max(e.unanswered, waited); was != e.confirmed() {
		for _, l := range e.listings {
			m.dirty[l.name] = true
		}
	}
	nothing := e.unanswered == 0 && e.asking == 0 && e.lastFlow.Before(now)
	if nothing || now.Sub(e.lastFlow) >= forgetAfter && !e.left() {
		m.clear(e)
	}
}

// clear ends a suspicion, and forgets the tries that failed.
func (m *Machine) clear(e *endpoint) {
	for _, l := range e.listings {
		m.dirty[l.name] = true
		l.suspects = slices.DeleteFunc(l.suspects, func(o *endpoint) bool { return o == e })
	}
	*e = endpoint{addr: e.addr, tries: e.anew()}
}

// forget forgets what counts no more. Those that have answered although their node is dead count as long as it is.
func (m *Machine) forget(now time.Time) {
	dead := false
	maps.DeleteFunc(m.nodes, func(_ string, n *node) bool {
		dead = dead || n.isDead()
		return !n.looking && n.asking == 0 && now.Sub(n.wanted) > factsFor
	})
	maps.DeleteFunc(m.endpoints, func(_ netip.AddrPort, e *endpoint) bool {
		return !e.suspected() && e.asking == 0 && now.Sub(e.asked) > fresh &&
			(e.answered.IsZero() || !dead && now.Sub(e.answered) > fresh)
	})
}

// Answered tells what came of an Ask. facts matters only if the API server was asked.
func (m *Machine) Answered(now time.Time, a Ask, answer Answer, facts Facts) {
	back := answer == Answered && a.about != nil && a.about.failed >= enough
	for _, name := range a.by {
		m.dirty[name] = true
		if g := m.groups[name]; back && g != nil {
			g.again() // What forbade the node to connect may have ended.
		}
	}
	switch n := m.nodes[a.Node]; {
	case len(a.To) == 0:
		m.lookedUp(now, n, answer, facts)
	case answer != Answered && a.Node == "":
		a.about.fail(now, answer, mostAgain, m.jitter)
	case answer != Answered:
		a.about.fail(now, answer, againNode, m.jitter)
	case a.Node == "":
		m.endpointAnswered(now, m.note(a.To[0]))
	case n != nil:
		n.answered = now
		if m.alive(now, n, pauseNode); back {
			m.allAgain()
		}
	}
}

func (m *Machine) endpointAnswered(now time.Time, e *endpoint) {
	was := m.network(now)
	e.answered = now
	m.clear(e)
	back := false
	for _, n := range m.nodes {
		if n.begun.IsZero() || !n.facts.has(e.addr.Addr()) { // by the API server's words
			continue
		}
		// Otherwise the Node may be back since it was asked, or this node's own network.
		pause, silent := pauseNode, n.failed >= enough
		if silent && now.Sub(n.heard) < fresh && !was.elsewhere.Before(n.asked) {
			pause = pauseFiltered
		}
		n.heard, back = now, back || silent
		m.alive(now, n, pause)
	}
	if back && was.gone() { // What failed while the network was gone says nothing any more.
		m.allAgain()
	}
}

// allAgain has all that is kept tried again: it may have been this node's own network, which is back.
func (m *Machine) allAgain() {
	m.touchAll()
	for _, g := range m.groups {
		g.again()
	}
	for _, n := range m.nodes {
		if n.failed > 0 && !n.isDead() {
			n.tries = n.anew()
		}
	}
}
