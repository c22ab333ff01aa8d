package ejection

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// Verdict is what a node does without at a moment. Both lists are sorted.
type Verdict struct {
	Left []Left
	Held []Held
}

// Ejections has those of the Service ports with mode On.
func (v Verdict) Ejections(last service.Ejections) service.Ejections {
	lists := map[service.Name][]service.Ejection{}
	for _, l := range v.Left {
		if l.Mode == On {
			lists[l.Service] = append(lists[l.Service], l.Ejection)
		}
	}
	next := service.Ejections{}
	for name, list := range lists {
		e := service.NewNotes(list)
		if have := last.At(name); have != nil && slices.Equal(*have, e) {
			next = next.Set(name, have)
		} else {
			next = next.Set(name, &e)
		}
	}
	return next
}

// quiet is another node with a suspect of which nothing has answered since.
type quiet struct {
	// begun is when this node first asked.
	begun time.Time
	// namespaces are those of the suspects.
	namespaces map[string]bool
}

func (m *Machine) silentNodes() map[string]quiet { return m.quietNodes((*suspect).silent) }

// quietNodes has the other nodes with a suspect that counts.
func (m *Machine) quietNodes(counts func(*suspect) bool) map[string]quiet {
	nodes := map[string]quiet{}
	for _, s := range m.suspects {
		if !counts(s) || s.endpoint.Node == m.view.Node {
			continue
		}
		name := nodeOf(&s.endpoint)
		q, listed := nodes[name]
		if !listed {
			q.namespaces = map[string]bool{}
		}
		if q.namespaces[s.namespace] = true; !listed || s.begun.Before(q.begun) {
			q.begun = s.begun
		}
		nodes[name] = q
	}
	maps.DeleteFunc(nodes, func(name string, q quiet) bool {
		at, answered := m.nodes[name]
		return answered && !at.Before(q.begun)
	})
	return nodes
}

// answering counts the other nodes that have answered lately and are not silent.
func (m *Machine) answering(now time.Time, silent map[string]quiet) (n int) {
	for name, at := range m.nodes {
		if _, is := silent[name]; !is && name != m.view.Node && now.Sub(at) < fresh {
			n++
		}
	}
	return n
}

// outvoted says for a namespace that other nodes answer, and more than are silent. One of two is enough: a cluster may
// have three nodes. The silence of a node counts if the namespace has noticed it, or two others have: one tenant, who may
// write any node's name into a slice, does not decide for the others.
//
// A node that is being asked counts as silent until it answers: what stopped to answer at one moment is decided together.
func (d *decision) outvoted(namespace string) bool {
	n := 0
	for name, q := range d.doubted {
		n += boolInt(q.namespaces[namespace] || len(q.namespaces) > 1 || d.dead.shares[share{name, namespace}])
	}
	return n == 0 || d.answers > n || d.answers == 1 && n == 1
}

// share is what a namespace has on a node.
type share struct{ node, namespace string }

// deadNodes says of the shares of silent nodes whether all of their endpoints are to be left out. all is for namespaces
// without TCP endpoints there, which cannot be asked: it takes all others, and two of them.
type deadNodes struct {
	shares map[share]bool
	all    map[string]bool
}

func (d deadNodes) of(s share) bool {
	if dead, asked := d.shares[s]; asked {
		return dead
	}
	return d.all[s.node]
}

// dead says which nodes are dead for whom. Each namespace's own endpoints are asked, and others of it have to answer: a
// tenant, who may write any node's name into a slice, decides nothing for others.
func (m *Machine) dead(silent map[string]quiet) deadNodes {
	d := deadNodes{map[share]bool{}, map[string]bool{}}
	there := map[share]map[Target]bool{}
	for i := range m.view.Ports {
		p := &m.view.Ports[i]
		for j := range p.Ready {
			e := &p.Ready[j]
			if _, is := silent[e.Node]; is && e.Node != "" && p.Port.Protocol == service.TCP {
				on, t := share{e.Node, p.namespace()}, p.target(e)
				if there[on] == nil {
					there[on] = map[Target]bool{}
				}
				s := m.suspects[t]
				there[on][t] = s != nil && s.confirmed()
			}
		}
	}
	answerers := m.answerers()
	namespaces, living := map[string]int{}, map[string]bool{}
	for on, targets := range there {
		failed := 0
		for _, confirmed := range targets {
			failed += boolInt(confirmed)
		}
		d.shares[on] = failed >= min(opinions, len(targets)) && answerers[on.namespace].since(on.node, silent[on.node].begun)
		namespaces[on.node]++
		living[on.node] = living[on.node] || !d.shares[on]
	}
	for name, n := range namespaces {
		d.all[name] = n > 1 && !living[name]
	}
	return d
}

// answerers has what answers of a namespace: the last answer of each of two nodes, and that of this node.
type answerers struct {
	last, second lastAnswer
	here         time.Time
	// node is one that has endpoints of the namespace, several says that there are others.
	node    string
	several bool
}

type lastAnswer struct {
	node string
	at   time.Time
}

// answerers has those of all namespaces in the view.
func (m *Machine) answerers() map[string]*answerers {
	all := map[string]*answerers{}
	for i := range m.view.Ports {
		p := &m.view.Ports[i]
		if p.Port.Protocol != service.TCP {
			continue
		}
		a := all[p.namespace()]
		if a == nil {
			a = &answerers{}
			all[p.namespace()] = a
		}
		for j := range p.Ready {
			a.add(&p.Ready[j], m.answers[p.target(&p.Ready[j])], m.view.Node)
		}
	}
	return all
}

// add notes an endpoint and its last answer; zero if there is none.
func (a *answerers) add(e *service.Endpoint, at time.Time, own string) {
	name := nodeOf(e)
	if e.Node == own {
		a.here = pace.Later(a.here, at)
		return
	}
	a.several = a.several || a.node != "" && a.node != name
	a.node = name
	switch {
	case name == a.last.node:
		a.last.at = pace.Later(a.last.at, at)
	case at.After(a.last.at):
		a.last, a.second = lastAnswer{name, at}, a.last
	case at.After(a.second.at):
		a.second = lastAnswer{name, at}
	}
}

// since says that an endpoint on another node than the named one has answered since, one that is not on this node if
// there is any.
func (a *answerers) since(node string, since time.Time) bool {
	last := a.last
	if last.node == node {
		last = a.second
	}
	if !a.several && a.node == node {
		last.at = a.here
	}
	return !last.at.IsZero() && !last.at.Before(since)
}

// Decide returns what is left out from now on, and why the rest is not.
func (m *Machine) Decide(now time.Time) Verdict {
	if !m.Doubts() {
		return Verdict{}
	}
	silent := m.silentNodes()
	doubted := m.quietNodes(func(s *suspect) bool { return s.silent() || s.asking > 0 && !s.opinion })
	d := decision{Machine: m, now: now, doubted: doubted, dead: m.dead(silent), answers: m.answering(now, doubted)}
	var v Verdict
	// Nodes are left out only for what is certain without them.
	for _, byNode := range []bool{false, true} {
		d.next = map[leftKey]Left{}
		for i := range m.view.Ports {
			if held, is := d.port(&m.view.Ports[i], byNode); is && byNode {
				v.Held = append(v.Held, held)
			}
		}
		if !byNode {
			d.keepNodes()
		}
	}
	m.left = d.next
	v.Left = slices.SortedFunc(maps.Values(m.left), Left.compare)
	return v
}

// decision is a call of Decide.
type decision struct {
	*Machine
	now     time.Time
	doubted map[string]quiet // silent nodes, and those that are being asked
	dead    deadNodes
	answers int // the number of other nodes that answer
	next    map[leftKey]Left
}

// keepNodes takes the nodes from dead on which nothing is left out.
func (d *decision) keepNodes() {
	certain := map[string]bool{}
	for k := range d.next {
		if s := d.suspects[k.target]; s != nil {
			certain[s.endpoint.Node] = true
		}
	}
	maps.DeleteFunc(d.dead.shares, func(s share, _ bool) bool { return !certain[s.node] })
	maps.DeleteFunc(d.dead.all, func(name string, _ bool) bool { return !certain[name] })
}

// port decides about one port. byNode also leaves out what is on dead nodes.
func (d *decision) port(p *Port, byNode bool) (Held, bool) {
	var kept, added []*service.Endpoint // which are left out already, and which are not
	suspected, here, hereGone, remote := 0, 0, 0, false
	begun := time.Time{} // of the first of added
	for i := range p.Ready {
		e := &p.Ready[i]
		s := d.suspects[p.target(e)]
		onNode := e.Node == d.view.Node
		gone := s != nil && s.silent() || byNode && d.dead.of(share{e.Node, p.namespace()})
		_, was := d.left[leftKey{p.Service.Name, p.Port.Port, p.target(e)}]
		switch {
		case gone && was:
			kept = append(kept, e)
		case gone:
			added = append(added, e)
			if s != nil && s.silent() && (begun.IsZero() || s.begun.Before(begun)) {
				begun = s.begun
			}
		case s != nil && !s.since.IsZero():
			suspected++
		}
		here, hereGone = here+boolInt(onNode), hereGone+boolInt(onNode && gone)
		remote = remote || !gone && !onNode
	}
	n := len(kept) + len(added)
	if n == 0 {
		return Held{}, false
	}
	held := Held{p.Service.Name, p.Service.ID(p.Port), n, len(p.Ready), ""}
	if len(kept) == 0 { // A mere suspicion brings nothing back.
		held.Silent += suspected
	}
	switch {
	case 2*held.Silent > len(p.Ready), p.local() && hereGone > 0 && hereGone == here:
		held.Why, kept, added = MostSilent, nil, nil
	case len(added) == 0:
	case !d.outvoted(p.namespace()):
		held.Why, added = OwnNetwork, nil
	case p.Port.Protocol == service.TCP && !begun.IsZero() && !d.compares(p, begun, remote):
		held.Why, added = NoControl, nil
	}
	for _, e := range append(kept, added...) {
		d.leave(p, e)
	}
	return held, held.Why != ""
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compares says that an endpoint which is not silent has answered, one on another node if there is any.
func (d *decision) compares(p *Port, since time.Time, remote bool) bool {
	return slices.ContainsFunc(p.Ready, func(e service.Endpoint) bool {
		at, answered := d.Machine.answers[p.target(&e)]
		return answered && !at.Before(since) && (!remote || e.Node != d.view.Node)
	})
}

func (d *decision) leave(p *Port, e *service.Endpoint) {
	key := leftKey{p.Service.Name, p.Port.Port, p.target(e)}
	l, was := d.left[key]
	if !was {
		l = Left{Service: p.Service.Name, Port: p.Service.ID(p.Port)}
		l.Ejection = service.Ejection{PortEndpoint: p.Port.At(e.Addr), Since: d.now}
		if s := d.suspects[p.target(e)]; s != nil && s.silent() {
			l.Why = s.why()
		} else {
			l.Why = fmt.Sprintf("nothing that was asked on its node %s answers", e.Node)
		}
	}
	l.Mode = p.Mode
	d.next[key] = l
}
