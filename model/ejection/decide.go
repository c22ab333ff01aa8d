package ejection

import (
	"fmt"
	"maps"
	"slices"
	"time"

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
		e := service.NewEjected(list)
		if have := last.At(name); have != nil && slices.Equal(*have, e) {
			next = next.Set(name, have)
		} else {
			next = next.Set(name, &e)
		}
	}
	return next
}

// quiet is another node with a confirmed suspect of which nothing has answered since.
type quiet struct {
	// begun is when this node first asked.
	begun time.Time
	// namespaces are those of the suspects.
	namespaces map[string]bool
}

func (m *Machine) silentNodes() map[string]quiet {
	nodes := map[string]quiet{}
	for _, s := range m.suspects {
		if !s.silent() || s.endpoint.Node == m.view.Node {
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
func (d *decision) outvoted(namespace string) bool {
	n := 0
	for _, q := range d.silent {
		n += boolInt(q.namespaces[namespace] || len(q.namespaces) > 1)
	}
	return n == 0 || d.answers > n || d.answers == 1 && n == 1
}

// dead has the silent nodes of which enough endpoints were asked to leave out all.
func (m *Machine) dead(silent map[string]quiet) map[string]bool {
	asked, there := map[string]int{}, map[string]map[Target]bool{}
	for _, s := range m.suspects {
		if s.confirmed() {
			asked[s.endpoint.Node]++
		}
	}
	for i := range m.view.Ports {
		p := &m.view.Ports[i]
		for j := range p.Ready {
			if name := p.Ready[j].Node; name != "" && p.Port.Protocol == service.TCP {
				if _, is := silent[name]; is {
					if there[name] == nil {
						there[name] = map[Target]bool{}
					}
					there[name][p.target(&p.Ready[j])] = true
				}
			}
		}
	}
	nodes := map[string]bool{}
	for name := range there {
		nodes[name] = asked[name] >= min(opinions, len(there[name]))
	}
	return nodes
}

// Decide returns what is left out from now on, and why the rest is not.
func (m *Machine) Decide(now time.Time) Verdict {
	if !m.Doubts() {
		return Verdict{}
	}
	silent := m.silentNodes()
	d := decision{Machine: m, now: now, silent: silent, dead: m.dead(silent), answers: m.answering(now, silent)}
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
	silent  map[string]quiet
	dead    map[string]bool
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
	maps.DeleteFunc(d.dead, func(name string, dead bool) bool { return !dead || !certain[name] })
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
		gone := s != nil && s.silent() || byNode && d.dead[e.Node]
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
	for _, e := range kept {
		d.leave(p, e)
	}
	for _, e := range added {
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
		l.Ejection = service.Ejection{Protocol: p.Port.Protocol, Port: p.Port.Port, Addr: e.Addr, Since: d.now}
		if s := d.suspects[p.target(e)]; s != nil && s.silent() {
			l.Why = s.why()
		} else {
			l.Why = fmt.Sprintf("nothing that was asked on its node %s answers", e.Node)
		}
	}
	l.Mode = p.Mode
	d.next[key] = l
}
