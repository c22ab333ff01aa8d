package ejection

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// node is a name that slices give to the node of an endpoint. It is a Node if the API server says so.
type node struct {
	name string
	tries
	facts Facts
	// until is how long facts count, and looking says that the API server is asked.
	until   time.Time
	looking bool
	// wanted is when it was of interest last, spoke when it answered a connect last.
	wanted, spoke time.Time
	// died is when it was found dead; zero if it lives. All endpoints there are left out, but those that have answered
	// since.
	died time.Time
}

func (n *node) isDead() bool { return !n.died.IsZero() }

// againNode is the longest time until a Node without an answer is asked again, pauseNode that until one that has
// answered is, and pauseFiltered that until one is that does not answer although its pods do.
const againNode, pauseNode, pauseFiltered = 2 * time.Second, 5 * time.Second, time.Minute

// silentNodes counts the Nodes that have not answered lately although they were asked, and those that have answered, of
// which the API server is one if it is elsewhere.
func (m *Machine) silentNodes(now time.Time) (silent, answering, server int) {
	servers := m.snapshot.Node.APIServers
	if len(servers) > 0 && now.Sub(m.server) < fresh && !slices.ContainsFunc(servers, m.here) {
		server = 1
	}
	for _, n := range m.nodes {
		switch {
		case len(n.facts.Addrs) == 0:
		case n.silent() && now.Sub(n.asked) < fresh:
			silent++
			if slices.ContainsFunc(servers, n.facts.has) {
				server = 0
			}
		case now.Sub(n.spoke) < fresh:
			answering++
		}
	}
	return silent, answering, server
}

// ownNetwork says that as many Nodes are silent as answer. One of two is not enough to say so, since a cluster may have
// three nodes. Where none answers, it may be a firewall between nodes: their silence says nothing then.
func (m *Machine) ownNetwork(now time.Time) bool {
	silent, answering, server := m.silentNodes(now)
	return answering > 0 && silent > 1 && silent >= answering+server
}

// aboutNodes asks for the Nodes on which something does not answer, for the dead ones, and for others to compare with.
// It judges those with a confirmed endpoint.
func (s *step) aboutNodes() {
	wanted, confirmed := map[string][]string{}, map[string]bool{} // wanted for which namespaces
	since := time.Time{}                                          // of the last one that has not answered
	for _, e := range s.suspects {
		if !e.silent() {
			continue
		}
		since = pace.Later(since, e.begun)
		for _, l := range e.listings {
			if l.node != "" && l.node != s.snapshot.Node.Name {
				wanted[l.node] = append(wanted[l.node], l.namespace)
				confirmed[l.node] = confirmed[l.node] || e.confirmed()
			}
		}
	}
	for name := range s.dead {
		wanted[name] = []string{""}
	}
	s.verdict.Unjudged = nil
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		n := s.node(name)
		s.lookUp(n, wanted[name])
		if len(n.facts.Addrs) > 0 && s.due(&n.tries) {
			s.askNode(n, wanted[name])
		}
		if since = pace.Later(since, n.begun); !confirmed[name] || n.isDead() {
			continue
		}
		if why := s.judge(n); why != "" {
			s.verdict.Unjudged = append(s.verdict.Unjudged, Unjudged{n.name, why})
		}
	}
	silent, _, _ := s.silentNodes(s.now)
	if silent > 1 { // Then it matters how many answer.
		since = pace.Later(since, s.now.Add(-fresh/2))
	}
	if !since.IsZero() {
		s.references(since, silent, wanted)
	}
}

// node returns what is known of a node that is of interest.
func (s *step) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name}
		s.nodes[name] = n
	}
	n.wanted = s.now
	return n
}

func (s *step) askNode(n *node, namespaces []string) {
	s.connects = append(s.connects, wish{Ask: Ask{To: n.facts.Addrs, Node: n.name, about: &n.tries, round: n.round},
		namespaces: namespaces, at: n.next})
}

// lookUp asks the API server for a Node, unless what it said still counts.
func (s *step) lookUp(n *node, namespaces []string) {
	at := n.until
	switch {
	case n.isDead() && n.silent(): // That the server answers shows that this node's network works, and it is one of them.
		at = pace.Earlier(at, s.server.Add(fresh/2))
	case n.silent():
		at = pace.Earlier(at, s.server.Add(Patience))
	}
	switch at = pace.Later(at, s.askServer); {
	case n.looking:
	case s.now.Before(at):
		s.later(at)
	default:
		s.lookups = append(s.lookups, wish{Ask: Ask{Node: n.name}, namespaces: namespaces, at: at})
	}
}

// references asks other Nodes until more than are silent have answered since.
func (s *step) references(since time.Time, silent int, wanted map[string][]string) {
	need := max(references, silent+1)
	for _, n := range s.nodes {
		if !n.spoke.Before(since) {
			need--
		}
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(s.nodes)), s.names) {
		if need <= 0 {
			return
		}
		if n := s.nodes[name]; wanted[name] != nil || name == "" || name == s.snapshot.Node.Name ||
			n != nil && !n.spoke.Before(since) {
			continue
		}
		n := s.node(name)
		wanted[name] = []string{""}
		s.lookUp(n, wanted[name])
		fine := len(n.facts.Addrs) > 0
		if fine && (n.asking == 0 && n.failed == 0 || s.due(&n.tries)) {
			s.askNode(n, wanted[name])
			need--
		} else if fine && !n.silent() || n.looking || !fine && !s.now.Before(n.until) {
			need-- // There will be an answer soon.
		}
	}
	if need > 0 && s.now.Sub(s.sampled) > sampleAgain { // Those that are known do not suffice.
		s.sample(s.now)
		s.later(s.now)
	}
}

// sample gets to know some nodes by name: of each namespace a few, so that nobody crowds out others.
func (m *Machine) sample(now time.Time) {
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
	m.names, m.sampled = nil, now
	for i, name := range slices.Compact(all) {
		m.names = choose(m.names, name, i+1, names, m.jitter)
	}
}

// someNodes returns the nodes of a few endpoints of a Service.
func (m *Machine) someNodes(s *service.Service) (some []string) {
	for i := range s.Ports {
		for chunk := range s.Ports[i].Endpoints.Chunks() {
			from := int(m.jitter() * float64(len(chunk)))
			for j := range min(len(chunk), references) {
				some = append(some, chunk[(from+j)%len(chunk)].Node)
			}
			return some
		}
	}
	return nil
}

// lookedUp takes what the API server knows of a Node.
func (m *Machine) lookedUp(now time.Time, name string, answer Answer, facts Facts) {
	n := m.nodes[name]
	if n == nil {
		return
	}
	if n.looking = false; answer != Answered {
		m.away, m.askServer = true, now.Add(retryLookup)
		return
	}
	m.server = now
	if !slices.ContainsFunc(m.snapshot.Node.APIServers, m.here) {
		m.elsewhere = now
	}
	if m.away {
		m.away = false
		m.allAgain()
	}
	if n.facts, n.until = facts, now.Add(factsFor); len(facts.Addrs) == 0 {
		n.until = now.Add(missingFor)
		m.alive(now, n, pauseNode)
	}
}

// alive takes note that a Node has answered, or is none any more.
func (m *Machine) alive(now time.Time, n *node, pause time.Duration) {
	n.next = now.Add(pause)
	if !n.isDead() {
		return
	}
	n.died = time.Time{}
	delete(m.dead, n.name)
	m.touchAll()
	for _, e := range m.suspects {
		if slices.ContainsFunc(e.listings, func(l listing) bool { return l.node == n.name }) {
			e.wait, e.next = 0, now // It may be back, too.
		}
	}
}

// here says that an address is this node's, or that of a pod on it.
func (m *Machine) here(a netip.Addr) bool {
	n := m.snapshot.Node
	return a.IsLoopback() || slices.Contains(n.HostAddresses, a) || slices.Contains(n.Addresses, a) ||
		slices.ContainsFunc(n.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(a) })
}

// judge finds a Node dead that does not answer itself, while another one does, or else says why not.
func (s *step) judge(n *node) (why string) {
	switch {
	case s.away && len(n.facts.Addrs) == 0:
		return "the API server does not say where the node is"
	case len(n.facts.Addrs) == 0 || n.failed < enough:
	case s.spoke.Before(n.begun):
		if n.failed > enough { // There was time for others to answer.
			return "no other node answers at the ports of its kubelet and its service proxy either"
		}
	case s.ownNetwork(s.now):
		return string(OwnNetwork)
	default:
		n.died, s.dead[n.name] = s.now, true
		s.touch(func(e *service.Endpoint) bool { return e.Node == n.name })
	}
	return ""
}
