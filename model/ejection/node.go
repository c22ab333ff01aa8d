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
	// until is how long facts count, and nextLookup when the API server may be asked again. away says that it gave no
	// answer.
	until, nextLookup time.Time
	looking, away     bool
	// wanted is when it was of interest last, spoke when it answered a connect last.
	wanted, spoke time.Time
	// dead says that all endpoints there are left out, but those in living, which have answered since.
	dead   bool
	living map[netip.AddrPort]bool
}

// againNode is the longest time until a Node without an answer is asked again, pauseNode that until one that has
// answered is, and pauseFiltered that until one is that does not answer although its pods do.
const againNode, pauseNode, pauseFiltered = 2 * time.Second, 5 * time.Second, time.Minute

// counts says that the node has not answered lately, although it was asked.
func (n *node) counts(now time.Time) bool { return n.silent() && now.Sub(n.asked) < fresh }

// silentNodes counts the Nodes that do not answer, and those that do; the API server is one of them if it is elsewhere.
func (m *Machine) silentNodes(now time.Time) (silent, answering, server int) {
	if now.Sub(m.server) < fresh && len(m.snapshot.Node.APIServers) > 0 {
		server = 1
	}
	for _, n := range m.nodes {
		switch {
		case len(n.facts.Addrs) == 0:
		case n.counts(now):
			silent++
			for _, a := range m.snapshot.Node.APIServers {
				if n.facts.has(a) {
					server = 0
				}
			}
		case now.Sub(n.spoke) < fresh:
			answering++
		}
	}
	if slices.ContainsFunc(m.snapshot.Node.APIServers, m.here) {
		server = 0
	}
	return silent, answering, server
}

// ownNetwork says that as many Nodes are silent as answer. One of two is not enough to say so, since a cluster may have
// three nodes. Where none answers, it may be a firewall between nodes: their silence says nothing then.
func (m *Machine) ownNetwork(now time.Time) bool {
	silent, answering, server := m.silentNodes(now)
	return answering > 0 && silent > 1 && silent >= answering+server
}

// wantedNodes asks for the Nodes on which something does not answer, for the dead ones, and for others to compare with.
func (c *choice) wantedNodes() {
	if !c.lookup {
		return
	}
	wanted := map[string]map[string]bool{} // for which namespaces
	for addr := range c.suspected {
		if e := c.endpoints[addr]; e.silent() {
			for name := range e.services {
				on := c.services[name].suspects[addr]
				if on == "" || on == c.snapshot.Node.Name {
					continue
				}
				if wanted[on] == nil {
					wanted[on] = map[string]bool{}
				}
				namespace, _ := name.Split()
				wanted[on][namespace] = true
			}
		}
	}
	for name := range c.dead {
		wanted[name] = map[string]bool{"": true}
	}
	since := time.Time{} // of the last one that is not judged
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		n := c.nodes[name]
		if n == nil {
			n = &node{name: name}
			c.nodes[name] = n
		}
		n.wanted = c.now
		payers := slices.Sorted(maps.Keys(wanted[name]))
		c.lookUp(n, payers)
		if len(n.facts.Addrs) > 0 && c.dueNow(&n.tries) {
			c.askNode(n, payers)
		}
		if !n.dead && n.asking+n.failed > 0 && n.begun.After(since) {
			since = n.begun
		}
	}
	if silent, _, _ := c.silentNodes(c.now); !since.IsZero() || silent > 1 {
		c.references(pace.Later(since, c.now.Add(-fresh/2)), silent, wanted)
	}
}

// references asks other Nodes until more than are silent have answered since.
func (c *choice) references(since time.Time, silent int, wanted map[string]map[string]bool) {
	need := max(references, silent+1)
	for _, n := range c.nodes {
		if !n.spoke.Before(since) {
			need--
		}
	}
	if need > 0 && c.now.Sub(c.sampled) > sampleAgain { // Those that are known may be silent, or not be enough.
		c.sample(c.now)
	}
	for _, name := range slices.Concat(slices.Sorted(maps.Keys(c.nodes)), c.names) {
		if need <= 0 {
			return
		}
		if wanted[name] != nil || name == c.snapshot.Node.Name {
			continue
		}
		n := c.nodes[name]
		if n == nil {
			n = &node{name: name}
			c.nodes[name] = n
		}
		wanted[name] = map[string]bool{}
		if !n.spoke.IsZero() && !n.spoke.Before(since) {
			continue
		}
		n.wanted = c.now
		c.lookUp(n, []string{""})
		switch {
		case n.looking || len(n.facts.Addrs) == 0 && !c.now.Before(n.until):
			need--
		case len(n.facts.Addrs) == 0:
		case n.asking == 0 && n.failed == 0 || c.dueNow(&n.tries):
			c.askNode(n, []string{""})
			need--
		case !n.silent():
			need--
		}
	}
}

func (c *choice) askNode(n *node, namespaces []string) {
	c.connects = append(c.connects, wish{Ask{To: n.facts.Addrs, Node: n.name, about: &n.tries, round: n.round,
		elsewhere: true},
		namespaces, n.next})
}

// lookUp asks the API server for a Node, unless what it said still counts.
func (c *choice) lookUp(n *node, namespaces []string) {
	at := pick(n.until.After(n.nextLookup), n.until, n.nextLookup)
	if n.silent() { // That the server answers shows that this node's network works, and it counts as one that answers.
		at = pace.Earlier(at, pace.Later(n.nextLookup, c.server.Add(pick(n.dead, fresh/2, Patience))))
	}
	switch {
	case n.looking:
	case c.now.Before(at):
		c.later(at)
	default:
		c.lookups = append(c.lookups, wish{Ask{Node: n.name}, namespaces, at})
	}
}

func pick[T any](first bool, a, b T) T {
	if first {
		return a
	}
	return b
}

// lookedUp takes what the API server knows of a Node.
func (m *Machine) lookedUp(now time.Time, name string, answer Answer, facts Facts) {
	n := m.nodes[name]
	if n == nil {
		return
	}
	was := n.away
	n.looking, n.away = false, answer != Answered
	if n.away {
		n.nextLookup = now.Add(retryLookup)
		return
	}
	m.server = now
	if !slices.ContainsFunc(m.snapshot.Node.APIServers, m.here) {
		m.elsewhere = now
	}
	if was {
		m.allBack(now)
	}
	n.facts, n.until = facts, now.Add(pick(len(facts.Addrs) > 0, factsFor, missingFor))
	if n.dead && len(facts.Addrs) == 0 {
		m.alive(now, n, pauseNode)
	}
}

// alive takes note that a Node has answered, or is none any more.
func (m *Machine) alive(now time.Time, n *node, pause time.Duration) {
	n.next = now.Add(pause)
	if !n.dead {
		return
	}
	n.dead, n.living = false, nil
	delete(m.dead, n.name)
	for name, w := range m.services {
		m.dirty[name] = true
		for addr, on := range w.suspects { // What is there may be back, too.
			if e := m.endpoints[addr]; on == n.name {
				e.wait, e.next = 0, now
			}
		}
	}
}

// here says that an address is this node's, or that of a pod on it.
func (m *Machine) here(a netip.Addr) bool {
	n := m.snapshot.Node
	return a.IsLoopback() || slices.Contains(n.HostAddresses, a) || slices.Contains(n.Addresses, a) ||
		slices.ContainsFunc(n.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(a) })
}

// judge finds Nodes dead: those with a confirmed endpoint that do not answer themselves, while another one does.
func (m *Machine) judge(now time.Time) {
	m.verdict.Unjudged = nil
	suspects := map[string]bool{}
	for addr := range m.suspected {
		if e := m.endpoints[addr]; e.confirmed() {
			for name := range e.services {
				suspects[m.services[name].suspects[addr]] = true
			}
		}
	}
	dead := false
	for _, name := range slices.Sorted(maps.Keys(suspects)) {
		n := m.nodes[name]
		switch {
		case n == nil || n.dead:
		case n.away && len(n.facts.Addrs) == 0:
			m.unjudged(n, "the API server does not say where the node is")
		case len(n.facts.Addrs) == 0 || n.failed < enough:
		case !m.othersSpeak(n):
			if n.failed > enough { // There was time for others to answer.
				m.unjudged(n, "no other node answers at the ports of its kubelet and its service proxy either")
			}
		case m.ownNetwork(now):
			m.unjudged(n, string(OwnNetwork))
		default:
			n.dead, n.living, dead = true, map[netip.AddrPort]bool{}, true
			m.dead[name] = true
		}
	}
	if dead {
		m.walk(func(e *service.Endpoint) bool { return m.dead[e.Node] })
	}
}

func (m *Machine) unjudged(n *node, why string) {
	m.verdict.Unjudged = append(m.verdict.Unjudged, Unjudged{n.name, why})
}

// othersSpeak says that another Node has answered the same questions since.
func (m *Machine) othersSpeak(n *node) bool {
	for _, o := range m.nodes {
		if o != n && !o.spoke.Before(n.begun) {
			return true
		}
	}
	return false
}
