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
//     this node's own network.
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
	// endpoints has what was asked lately, suspected those of them that are suspected.
	endpoints map[netip.AddrPort]*endpoint
	suspected map[netip.AddrPort]bool
	nodes     map[string]*node
	dead      map[string]bool // those of nodes
	names     []string        // some that slices have, as of sampled
	sampled   time.Time
	// services has those that list a suspect, or have endpoints on a dead node. dirty has those to decide on again, and
	// listed counts the suspects in those of a namespace.
	services map[service.Name]*watched
	dirty    map[service.Name]bool
	listed   map[string]int
	queues   [3]queue
	// elsewhere is when something on another node, or the API server, has answered last, and server when that one has.
	elsewhere, server time.Time
	// back is when a Node, or the API server, answered again after it had not.
	back    time.Time
	verdict Verdict
}

// The queues.
const (
	connects = iota
	lookups
	members
)

// endpoint is an address that was asked: that of a suspect, or of one for comparison.
type endpoint struct {
	addr netip.AddrPort
	tries
	// flows has the connections without an answer at the last look, with the time when each was first seen; unanswered
	// counts those that had waited for Patience then or earlier.
	flows      map[uint32]time.Time
	unanswered int
	lastFlow   time.Time
	// services are those that list the suspect.
	services map[service.Name]bool
}

// confirmed says that a client's connection had no answer, and those of the node's own neither.
func (e *endpoint) confirmed() bool { return e.unanswered > 0 && e.failed >= enough }

// watched is a Service with something silent.
type watched struct {
	// suspects has those that it lists, with the node where its slices place them.
	suspects map[netip.AddrPort]string
	left     []Left
	held     []Held
	// spares are some endpoints of ports with suspects that may show whether the node may connect. members are left out
	// with their node.
	spares  []spare
	members []netip.AddrPort
	// compare is when spares are asked next, and wait the time to the one after that.
	compare time.Time
	wait    time.Duration
	// back is when one of its endpoints answered again after it had not.
	back time.Time
	// before has the suspects of the version before, while the Service is looked through.
	before map[netip.AddrPort]string
}

// spare is an endpoint for comparison; here says that it is on this node.
type spare struct {
	addr netip.AddrPort
	here bool
}

// New makes a machine. mode is that of a Service, and lookup says that the API server can be asked for Nodes. jitter
// returns a number from 0 to 1, not included.
func New(mode func(*service.Service) Mode, lookup bool, jitter func() float64) *Machine {
	m := &Machine{
		jitter: jitter, mode: mode, lookup: lookup, endpoints: map[netip.AddrPort]*endpoint{},
		suspected: map[netip.AddrPort]bool{},
		nodes:     map[string]*node{}, dead: map[string]bool{}, services: map[service.Name]*watched{},
		dirty:  map[service.Name]bool{},
		listed: map[string]int{},
	}
	for i, r := range [...][2]float64{connects: {asksRate, asksBurst}, lookups: {lookupRate, lookupBurst},
		members: {memberRate, memberBurst}} {
		m.queues[i] = queue{rate: r[0], burst: r[1], last: map[string]float64{}}
	}
	return m
}

// Idle says that nothing is suspected or left out: no call but Looked and See matters.
func (m *Machine) Idle() bool { return len(m.suspected)+len(m.services)+len(m.dirty) == 0 }

// Waiting says that another look soon tells whether a suspect's connections have waited for Patience.
func (m *Machine) Waiting() bool {
	for addr := range m.suspected {
		if !m.endpoints[addr].confirmed() {
			return true
		}
	}
	return false
}

// Looked tells of all connections that have no answer at a moment.
func (m *Machine) Looked(now time.Time, flows []Flow) {
	seen, fresh := map[netip.AddrPort]map[uint32]time.Time{}, map[netip.AddrPort]bool{}
	for _, f := range flows {
		e := m.endpoints[f.To]
		if e != nil && !m.suspected[f.To] && now.Before(e.answered.Add(pause)) {
			continue
		}
		if seen[f.To] == nil {
			seen[f.To] = map[uint32]time.Time{}
		}
		if e != nil {
			if first, old := e.flows[f.ID]; old {
				seen[f.To][f.ID] = first
				continue
			}
		}
		if len(seen[f.To]) < mostFlows {
			seen[f.To][f.ID] = now
		}
		if !m.suspected[f.To] {
			fresh[f.To] = true
		}
	}
	if len(fresh) > 0 {
		m.suspect(now, fresh)
	}
	for addr := range m.suspected {
		m.lookedAt(now, m.endpoints[addr], seen[addr])
	}
	m.bound()
	m.forgetOld(now)
}

// lookedAt takes the connections to a suspect that have no answer.
func (m *Machine) lookedAt(now time.Time, e *endpoint, flows map[uint32]time.Time) {
	was := e.confirmed()
	for id, first := range flows {
		if !first.IsZero() && now.Sub(first) >= Patience {
			e.unanswered++
			flows[id] = time.Time{} // counted
		}
	}
	if e.flows = flows; was != e.confirmed() {
		m.touch(e)
	}
	switch {
	case len(flows) > 0:
		e.lastFlow = now
	case e.confirmed() && (m.leaves(e) || now.Sub(e.lastFlow) < forgetAfter):
	case !e.confirmed() && (e.asking > 0 || e.unanswered > 0):
		// The answer to the node's own connect decides.
	default:
		m.clear(e.addr)
	}
}

// leaves says that some Service port does without the endpoint.
func (m *Machine) leaves(e *endpoint) bool {
	for name := range e.services {
		if m.services[name].leaves(e.addr) {
			return true
		}
	}
	return false
}

func (w *watched) leaves(addr netip.AddrPort) bool {
	return slices.ContainsFunc(w.left, func(l Left) bool { return l.Addr == addr && l.Protocol == service.TCP })
}

// touch has the endpoint's Services decided on again.
func (m *Machine) touch(e *endpoint) {
	for name := range e.services {
		m.dirty[name] = true
	}
}

// note returns what is known of an address.
func (m *Machine) note(addr netip.AddrPort) *endpoint {
	e := m.endpoints[addr]
	if e == nil {
		e = &endpoint{addr: addr, services: map[service.Name]bool{}}
		m.endpoints[addr] = e
	}
	return e
}

// suspect makes suspects of those addresses that some Service lists.
func (m *Machine) suspect(now time.Time, fresh map[netip.AddrPort]bool) {
	for addr := range fresh {
		e := m.note(addr)
		e.flows, e.unanswered, e.lastFlow = nil, 0, now
		e.anew()
		m.suspected[addr] = true
	}
	for _, s := range m.snapshot.Services.All() {
		if mayHave(s, fresh) {
			m.list(s, func(e *service.Endpoint) bool { return fresh[e.Addr] })
		}
	}
	for addr := range fresh {
		if len(m.endpoints[addr].services) == 0 {
			m.clear(addr)
		}
	}
}

// mayHave says that a Service may list one of the addresses: it looks for a few, and looks at each endpoint for many.
func mayHave(s *service.Service, addrs map[netip.AddrPort]bool) bool {
	const few = 4
	if len(addrs) > few {
		return true
	}
	for i := range s.Ports {
		for a := range addrs {
			if s.Ports[i].Protocol == service.TCP && s.Ports[i].Endpoints.Find(service.Endpoint{Addr: a}) != nil {
				return true
			}
		}
	}
	return false
}

// clear ends a suspicion.
func (m *Machine) clear(addr netip.AddrPort) {
	if !m.suspected[addr] {
		return
	}
	delete(m.suspected, addr)
	e := m.endpoints[addr]
	for name := range e.services {
		m.unlist(e, name)
		m.dirty[name] = true
	}
	e.flows, e.unanswered = nil, 0
	e.anew()
}

func (m *Machine) unlist(e *endpoint, name service.Name) {
	delete(e.services, name)
	delete(m.services[name].suspects, e.addr)
	namespace, _ := name.Split()
	if m.listed[namespace]--; m.listed[namespace] == 0 {
		delete(m.listed, namespace)
	}
}

// bound clears suspects until there are no more than mostSuspects: those of the namespaces that have most.
func (m *Machine) bound() {
	if len(m.suspected) <= mostSuspects {
		return
	}
	addrs := slices.SortedFunc(maps.Keys(m.suspected), netip.AddrPort.Compare)
	var list []wish
	for _, asked := range []bool{true, false} { // Those that were asked go first.
		for _, addr := range addrs {
			if e := m.endpoints[addr]; !e.begun.IsZero() == asked {
				list = append(list, wish{Ask{To: []netip.AddrPort{addr}}, namespacesOf(slices.Sorted(maps.Keys(e.services))),
					time.Time{}})
			}
		}
	}
	order, _, _ := (&queue{}).order(list)
	for _, i := range order[mostSuspects:] {
		m.clear(list[i].To[0])
	}
}

// forgetOld forgets what counts no more.
func (m *Machine) forgetOld(now time.Time) {
	maps.DeleteFunc(m.endpoints, func(addr netip.AddrPort, e *endpoint) bool {
		return !m.suspected[addr] && e.asking == 0 && now.Sub(e.answered) > fresh && now.Sub(e.asked) > fresh
	})
	maps.DeleteFunc(m.nodes, func(_ string, n *node) bool {
		return !n.dead && !n.looking && n.asking == 0 && now.Sub(n.wanted) > factsFor
	})
}

// See gives the machine the Services as they are now.
func (m *Machine) See(now time.Time, s service.Snapshot) {
	old := m.snapshot
	m.snapshot = s
	if len(m.services) == 0 && len(m.suspected) == 0 {
		return
	}
	if old.Node != s.Node {
		for name := range m.services {
			m.dirty[name] = true
		}
	}
	matters := func(e *service.Endpoint) bool { return m.suspected[e.Addr] || m.dead[e.Node] }
	for change := range treap.Diff(old.Services, s.Services) {
		w := m.services[change.Key]
		if w != nil {
			w.before, w.suspects = w.suspects, map[netip.AddrPort]string{}
			m.dirty[change.Key] = true
		}
		if change.HasNew {
			m.list(change.New, matters)
		}
		if w != nil {
			for addr := range w.before {
				if _, listed := w.suspects[addr]; !listed {
					m.unlist(m.endpoints[addr], change.Key)
				}
			}
			w.before = nil
		}
	}
	for addr := range m.suspected {
		if len(m.endpoints[addr].services) == 0 {
			m.clear(addr)
		}
	}
}

// walk visits all Services, and lists those endpoints that matter.
func (m *Machine) walk(matters func(*service.Endpoint) bool) {
	for _, s := range m.snapshot.Services.All() {
		m.list(s, matters)
	}
}

// sample gets to know some nodes by name: of each namespace a few, so that nobody crowds out others.
func (m *Machine) sample(now time.Time) {
	if m.sampled = now; m.snapshot.Services.Len() == 0 {
		return
	}
	var all, some []string
	last := ""
	for name, s := range m.snapshot.Services.All() {
		if namespace, _ := name.Split(); namespace != last {
			all, some, last = append(all, some...), nil, namespace
		}
		if len(some) == 0 || m.jitter() < 0.25 {
			some = m.someNodes(s)
		}
	}
	all = append(all, some...)
	slices.Sort(all)
	all = slices.Compact(all)
	for i := range min(len(all), names) {
		at := i + int(m.jitter()*float64(len(all)-i))
		all[i], all[at] = all[at], all[i]
	}
	m.names = all[:min(len(all), names)]
}

// someNodes returns the names of a few other nodes that a Service has.
func (m *Machine) someNodes(s *service.Service) (some []string) {
	for i := range s.Ports {
		for chunk := range s.Ports[i].Endpoints.Chunks() {
			from := int(m.jitter() * float64(len(chunk)))
			for j := range chunk {
				if e := &chunk[(from+j)%len(chunk)]; e.Node != "" && e.Node != m.snapshot.Node.Name && !slices.Contains(some,
					e.Node) {
					if some = append(some, e.Node); len(some) == references {
						return some
					}
				}
			}
			break
		}
	}
	return some
}

// list notes what a Service has that matters.
func (m *Machine) list(s *service.Service, matters func(*service.Endpoint) bool) {
	if m.mode(s) == Off {
		return
	}
	namespace, _ := s.Name.Split()
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.IsRange() {
			continue // Its endpoints have no port to ask; they are those of the other ports.
		}
		for chunk := range p.Endpoints.Chunks() {
			for j := range chunk {
				e := &chunk[j]
				if !matters(e) || !e.Ready {
					continue
				}
				w := m.services[s.Name]
				if w == nil {
					w = &watched{suspects: map[netip.AddrPort]string{}}
					m.services[s.Name] = w
				}
				m.dirty[s.Name] = true
				if p.Protocol != service.TCP || !m.suspected[e.Addr] {
					continue
				}
				if services := m.endpoints[e.Addr].services; !services[s.Name] {
					if m.listed[namespace] >= mostListed {
						continue
					}
					services[s.Name] = true
					m.listed[namespace]++
					w.compare, w.wait = time.Time{}, 0
				}
				w.suspects[e.Addr] = e.Node
			}
		}
	}
}

// why says in words why an endpoint is left out.
func (e *endpoint) why() string {
	plural := "s"
	if e.unanswered == 1 {
		plural = ""
	}
	return fmt.Sprintf("%d connection%s without answer, %d tries of this node failed", e.unanswered, plural, enough)
}
