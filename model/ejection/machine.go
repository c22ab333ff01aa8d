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
//   - A port keeps half of the endpoints that take connections, and the last one.
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
	mode     func(*service.Service) Mode
	snapshot service.Snapshot
	// lookup says that there is an API server to ask.
	lookup bool
	// endpoints has what was asked lately, suspects those of them that are suspected, by address.
	endpoints map[netip.AddrPort]*endpoint
	suspects  []*endpoint
	nodes     map[string]*node
	dead      map[string]bool // those of nodes
	names     []string        // some that slices have, as of sampled
	sampled   time.Time
	// groups are the Services that list a suspect, or have endpoints on a dead node; dirty are those to decide on.
	groups map[service.Name]*group
	dirty  map[service.Name]bool

	connects, lookups, members queue
	// spoke is when a Node has answered a connect last, server when the API server has answered, and elsewhere when one of
	// them has that is not on this node.
	spoke, server, elsewhere time.Time
	// away says that the API server gave no answer when it was asked last, and askServer when it may be asked again.
	away      bool
	askServer time.Time
	verdict   Verdict
}

// endpoint is an address that was asked: that of a suspect, or of one for comparison.
type endpoint struct {
	addr netip.AddrPort
	tries
	suspected bool
	// flows has the connections without an answer at the last look, with the time when each was first seen; unanswered is
	// how many had waited for Patience, at most.
	flows      map[uint32]time.Time
	unanswered int
	lastFlow   time.Time
	// listings are the Services that list the suspect, each with the node where its slices place it.
	listings []listing
}

type listing struct {
	*group
	node string
}

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
func New(mode func(*service.Service) Mode, lookup bool, jitter func() float64) *Machine {
	return &Machine{
		jitter: jitter, mode: mode, lookup: lookup, endpoints: map[netip.AddrPort]*endpoint{}, nodes: map[string]*node{},
		dead: map[string]bool{}, groups: map[service.Name]*group{}, dirty: map[service.Name]bool{},
		connects: newQueue(asksRate, asksBurst), lookups: newQueue(lookupRate, lookupBurst),
		members: newQueue(memberRate, memberBurst),
	}
}

// Idle says that nothing is suspected or left out: no call but Looked and See matters.
func (m *Machine) Idle() bool { return len(m.suspects)+len(m.groups)+len(m.dirty) == 0 }

// Waiting says that another look soon tells whether a suspect's connections have waited for Patience.
func (m *Machine) Waiting() bool {
	return slices.ContainsFunc(m.suspects, func(e *endpoint) bool { return !e.confirmed() })
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
	seen, fresh := map[netip.AddrPort]map[uint32]time.Time{}, map[netip.AddrPort]bool{}
	for _, f := range flows {
		e := m.note(f.To)
		if !e.suspected {
			if now.Before(e.answered.Add(pause)) {
				continue
			}
			fresh[f.To] = true
		}
		if seen[f.To] == nil {
			seen[f.To] = map[uint32]time.Time{}
		}
		if first, old := e.flows[f.ID]; old {
			seen[f.To][f.ID] = first
		} else if len(seen[f.To]) < mostFlows {
			seen[f.To][f.ID] = now
		}
	}
	if len(fresh) > 0 {
		m.suspect(now, fresh)
	}
	for _, e := range slices.Clone(m.suspects) {
		m.lookedAt(now, e, seen[e.addr])
	}
	m.decide(now)
	m.bound(now)
	m.forgetOld(now)
}

// note returns what is known of an address.
func (m *Machine) note(addr netip.AddrPort) *endpoint {
	e := m.endpoints[addr]
	if e == nil {
		e = &endpoint{addr: addr}
		m.endpoints[addr] = e
	}
	return e
}

// few is how many addresses are found faster without a map.
const few = 4

// suspect makes suspects of addresses.
func (m *Machine) suspect(now time.Time, fresh map[netip.AddrPort]bool) {
	for addr := range fresh {
		e := m.note(addr)
		e.suspected, e.flows, e.unanswered, e.lastFlow = true, nil, 0, now
		e.anew()
		m.suspects = append(m.suspects, e)
	}
	slices.SortFunc(m.suspects, func(a, b *endpoint) int { return a.addr.Compare(b.addr) })
	matters := func(e *service.Endpoint) bool { return fresh[e.Addr] }
	if len(fresh) <= few { // Then to compare them is faster.
		list := slices.Collect(maps.Keys(fresh))
		matters = func(e *service.Endpoint) bool { return slices.Contains(list, e.Addr) }
	}
	m.touch(matters)
}

// lookedAt takes the connections to a suspect that have no answer.
func (m *Machine) lookedAt(now time.Time, e *endpoint, flows map[uint32]time.Time) {
	was, waited := e.confirmed(), 0
	for _, first := range flows {
		if now.Sub(first) >= Patience {
			waited++
		}
	}
	e.unanswered = max(e.unanswered, waited)
	if e.flows = flows; was != e.confirmed() {
		for _, l := range e.listings {
			m.dirty[l.name] = true
		}
	}
	switch {
	case len(flows) > 0:
		e.lastFlow = now
	case e.confirmed() && (e.left() || now.Sub(e.lastFlow) < forgetAfter):
	case !e.confirmed() && (e.asking > 0 || e.unanswered > 0):
		// The answer to the node's own connect decides.
	default:
		m.clear(e)
	}
}

// clear ends a suspicion.
func (m *Machine) clear(e *endpoint) {
	is := func(o *endpoint) bool { return o == e }
	for _, l := range e.listings {
		m.dirty[l.name] = true
		l.suspects = slices.DeleteFunc(l.suspects, is)
	}
	e.suspected, e.flows, e.unanswered, e.listings = false, nil, 0, nil
	e.anew()
	m.suspects = slices.DeleteFunc(m.suspects, is)
}

// bound clears suspects until there are no more than mostSuspects: those of the namespaces that have most.
func (m *Machine) bound(now time.Time) {
	if len(m.suspects) <= mostSuspects {
		return
	}
	var list []wish
	for _, e := range m.suspects {
		w := e.wish(e.begun)
		if e.begun.IsZero() {
			w.at = now // Those that were asked go first.
		}
		list = append(list, w)
	}
	(&queue{}).order(list)
	for _, w := range list[mostSuspects:] {
		m.clear(m.endpoints[w.To[0]])
	}
}

// forgetOld forgets what counts no more. Those that have answered although their node is dead count as long as it is.
func (m *Machine) forgetOld(now time.Time) {
	maps.DeleteFunc(m.endpoints, func(addr netip.AddrPort, e *endpoint) bool {
		return !e.suspected && e.asking == 0 && now.Sub(e.asked) > fresh &&
			(now.Sub(e.answered) > fresh && len(m.dead) == 0 || e.answered.IsZero())
	})
	maps.DeleteFunc(m.nodes, func(_ string, n *node) bool {
		return !n.isDead() && !n.looking && n.asking == 0 && now.Sub(n.wanted) > factsFor
	})
}

// Answered tells what came of an Ask. facts matters only if the API server was asked.
func (m *Machine) Answered(now time.Time, a Ask, answer Answer, facts Facts) {
	if a.about == nil {
		m.lookedUp(now, a.Node, answer, facts)
		return
	}
	for _, g := range a.by {
		m.dirty[g.name] = true
	}
	if answer != Answered {
		most := mostAgain
		if a.Node != "" {
			most = againNode
		}
		a.about.fail(now, answer, a.round, most, m.jitter)
		return
	}
	silent := a.about.failed >= enough
	a.about.answer(now)
	switch n := m.nodes[a.Node]; {
	case n != nil:
		n.spoke, m.spoke, m.elsewhere = now, now, now
		if m.alive(now, n, pauseNode); silent {
			m.allAgain()
		}
	case a.Node == "":
		if silent { // What forbade the node to connect may have ended.
			for _, g := range a.by {
				g.again()
			}
		}
		m.endpointAnswered(now, a.To[0])
	}
}

func (m *Machine) endpointAnswered(now time.Time, addr netip.AddrPort) {
	if e := m.endpoints[addr]; e != nil && e.suspected {
		m.clear(e)
	}
	for _, n := range m.nodes {
		if !n.begun.IsZero() && n.facts.has(addr.Addr()) { // by the API server's words
			n.answer(now)
			m.alive(now, n, pauseFiltered)
		}
	}
}

// allAgain has all that is kept tried again: a Node, or the API server, answers after it had not, so it may have been
// this node's own network.
func (m *Machine) allAgain() {
	m.touchAll()
	for _, g := range m.groups {
		g.again()
	}
	for _, n := range m.nodes {
		if n.failed > 0 && !n.isDead() {
			n.anew()
		}
	}
}
