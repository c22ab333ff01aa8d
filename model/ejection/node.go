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
	name   string
	*tries // at its own addresses
	facts  Facts
	// until is how long facts count, and looking says that the API server is asked.
	until   time.Time
	looking bool
	// heard is when a pod there has answered last although the Node itself did not.
	heard time.Time
	// wanted is when it was of interest last; a name of no Node is if a suspect is there.
	wanted time.Time
	// died is when it was found dead; zero if it lives. All endpoints there are left out, but those that have answered
	// since.
	died time.Time
}

func (n *node) isDead() bool { return !n.died.IsZero() }

// known says that it is a Node.
func (n *node) known() bool { return len(n.facts.Addrs) > 0 }

// filtered says that it does not answer although its pods do: it is not asked for pauseFiltered.
func (n *node) filtered() bool {
	return n.known() && n.failed+n.asking == 0 && n.answered.Before(n.asked)
}

// againNode is the longest time until a Node without an answer is asked again, pauseNode that until one that has
// answered is, and pauseFiltered that until one is that does not answer although its pods do.
const againNode, pauseNode, pauseFiltered = 1200 * time.Millisecond, 5 * time.Second, time.Minute

// network is what others show of this node's own network.
type network struct {
	// silent counts the Nodes that have not answered lately although they were asked, answering those that have, and
	// server the API server if it has and is elsewhere.
	silent, answering, server int
	// asking says that one which may answer is asked just now, or the API server where one is.
	asking bool
	// spoke is when a Node has answered last, and elsewhere when a Node or the API server has that is not on this node.
	spoke, elsewhere time.Time
}

func (m *Machine) network(now time.Time) (w network) {
	servers := m.snapshot.Node.APIServers
	if !slices.ContainsFunc(servers, m.here) {
		if w.elsewhere = m.server; len(servers) > 0 && now.Sub(m.server) < fresh {
			w.server = 1
		}
	}
	for _, n := range m.nodes {
		w.spoke = pace.Later(w.spoke, n.answered)
		w.asking = w.asking || n.looking || n.asking > 0 && !n.silent()
		switch {
		case n.silent() && now.Sub(n.asked) < fresh:
			if w.silent++; slices.ContainsFunc(servers, n.facts.has) {
				w.server = 0
			}
		case now.Sub(n.answered) < fresh:
			w.answering++
		}
	}
	w.elsewhere = pace.Later(w.elsewhere, w.spoke)
	return w
}

// gone says that as many Nodes are silent as answer. One of two is not enough to say so, since a cluster may have three
// nodes. Where none answers, it may be a firewall between nodes: their silence says nothing then.
func (w network) gone() bool {
	return w.answering > 0 && w.silent > 1 && w.silent >= w.answering+w.server
}

// aboutNodes asks for the Nodes on which something does not answer, for the dead ones, and for others to compare with.
func (s *step) aboutNodes() {
	wanted := map[string][]service.Name{} // by which Services; by none if it is for comparison
	since := time.Time{}                  // of the last one that has not answered
	for _, e := range s.suspects() {
		if !e.silent() {
			continue
		}
		since = pace.Later(since, e.begun)
		for _, l := range e.listings {
			if l.node == "" || l.node == s.snapshot.Node.Name {
				continue
			}
			wanted[l.node] = append(wanted[l.node], l.name)
			n := s.node(l.node)
			if since = pace.Later(since, n.begun); n.answered.Before(e.begun) && !n.answered.Before(n.asked) {
				n.next = pace.Earlier(n.next, s.now) // It has answered, but for the time before.
			}
		}
	}
	for name, n := range s.nodes {
		if n.isDead() {
			wanted[name], since = nil, pace.Later(since, n.begun)
		}
	}
	if s.network.silent > 1 { // Then it matters how many answer.
		since = pace.Later(since, s.now.Add(-fresh/2))
	}
	if !since.IsZero() {
		s.addReferences(since, wanted)
	}
	s.verdict.Unjudged = nil
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		s.aboutNode(s.node(name), wanted[name])
	}
}

// node returns what is known of a node.
func (s *step) node(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{name: name, tries: &tries{}, wanted: s.now}
		s.nodes[name] = n
	}
	return n
}

// addReferences has other Nodes asked until more than are silent have answered since.
func (s *step) addReferences(since time.Time, wanted map[string][]service.Name) {
	need := max(references, s.network.silent+1)
	for _, n := range s.nodes {
		if !n.answered.Before(since) {
			need--
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		n := s.nodes[name]
		if _, is := wanted[name]; need <= 0 || is || !n.answered.Before(since) {
			continue
		}
		if n.filtered() && s.now.Before(n.next) {
			continue
		}
		if wanted[name] = nil; n.asking+n.failed == 0 {
			n.next = pace.Earlier(n.next, s.now)
		}
		if n.looking || n.known() && (!n.silent() || s.due(n.tries)) || !n.known() && !s.now.Before(n.until) {
			need-- // There will be an answer soon.
		}
	}
	if need > 0 && s.now.Sub(s.sampled) > sampleAgain { // Those that are known do not suffice.
		s.sample()
	}
}

// aboutNode asks the API server for a Node, unless what it said still counts, and the Node itself. It judges those that
// Services want.
func (s *step) aboutNode(n *node, by []service.Name) {
	at := n.until
	switch {
	case n.isDead() && n.silent(): // That the server answers shows that this node's network works, and it is one of them.
		at = pace.Earlier(at, s.server.Add(fresh/2))
	case n.silent(), n.filtered(): // Where it is the only other one, nobody else answers.
		at = pace.Earlier(at, s.server.Add(Patience))
	}
	if at = pace.Later(at, s.askServer); !n.looking && !s.now.Before(at) {
		s.wishes = append(s.wishes, wish{Ask: Ask{Node: n.name, by: by}, at: at})
	}
	if n.known() && s.due(n.tries) {
		s.wishes = append(s.wishes, wish{Ask: Ask{To: n.facts.Addrs, Node: n.name, about: n.tries, by: by}, at: n.next})
	}
	if n.known() || len(by) > 0 {
		n.wanted = s.now
	}
	if len(by) == 0 || n.isDead() {
		return
	}
	if why := s.judge(n); why != "" {
		s.verdict.Unjudged = append(s.verdict.Unjudged, Unjudged{n.name, why})
	}
}

// sample gets to know more nodes by name: of each namespace a few, so that nobody crowds out others.
func (s *step) sample() {
	s.sampled = s.now
	some, of := map[string]bool{}, map[string]int{}
	for name, listing := range s.snapshot.Services.All() {
		namespace := namespaceOf(name)
		lists(listing, func(e *service.Endpoint) bool {
			other := e.Node != "" && e.Node != s.snapshot.Node.Name && s.nodes[e.Node] == nil
			if other && !some[e.Node] && of[namespace] < namesOfOne {
				some[e.Node] = true
				of[namespace]++
			}
			return of[namespace] == namesOfOne
		})
	}
	for _, name := range draw(slices.Sorted(maps.Keys(some)), names, s.jitter) {
		s.node(name)
	}
}

// draw returns a random choice of a list, whose order it changes.
func draw[T any](list []T, most int, jitter func() float64) []T {
	most = min(most, len(list))
	for i := range most {
		j := i + int(jitter()*float64(len(list)-i))
		list[i], list[j] = list[j], list[i]
	}
	return list[:most]
}

// lookedUp takes what the API server knows of a node.
func (m *Machine) lookedUp(now time.Time, n *node, answer Answer, facts Facts) {
	if n == nil {
		return
	}
	if n.looking = false; answer != Answered {
		m.askServer = now.Add(retryLookup)
		return
	}
	m.server = now
	if !m.askServer.IsZero() {
		m.askServer = time.Time{}
		m.allAgain()
	}
	if n.facts, n.until = facts, now.Add(factsFor); !n.known() {
		n.until = now.Add(missingFor)
		m.alive(now, n, pauseNode)
	}
}

// alive takes note that a Node has answered, or is none any more.
func (m *Machine) alive(now time.Time, n *node, pause time.Duration) {
	n.tries = n.anew()
	n.next = now.Add(pause)
	if !n.isDead() {
		return
	}
	n.died = time.Time{}
	m.touchAll()
	for _, e := range m.suspects() {
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
	case !n.known() && !s.askServer.IsZero():
		return "the API server does not say where the node is"
	case !n.known() || n.failed < enough:
	case s.network.spoke.Before(n.begun):
		if n.failed > enough { // There was time for others to answer.
			return "no other node answers at the ports of its kubelet and its service proxy either"
		}
	case s.network.gone():
		return string(OwnNetwork)
	default:
		n.died = s.now
		s.touch(func(e *service.Endpoint) bool { return e.Node == n.name })
	}
	return ""
}
