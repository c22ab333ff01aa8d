package ejection

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// Decide returns what is left out from now on, and why the rest is not.
func (m *Machine) Decide(now time.Time) Verdict {
	m.update(now)
	return m.verdict
}

// update judges the nodes, and decides again on the Services of which something has changed, and on those that hold
// something: that depends on what others answer, too.
func (m *Machine) update(now time.Time) {
	m.judge(now)
	changed := len(m.dirty) > 0
	for name, w := range m.services {
		if !m.dirty[name] && len(w.held) == 0 {
			continue
		}
		changed = true
		m.redo(now, name, w)
		if len(w.suspects)+len(w.left)+len(w.members) == 0 {
			delete(m.services, name)
		}
	}
	clear(m.dirty)
	if !changed {
		return
	}
	m.verdict.Left, m.verdict.Held = nil, nil
	for _, w := range m.services {
		m.verdict.Left = append(m.verdict.Left, w.left...)
		m.verdict.Held = append(m.verdict.Held, w.held...)
	}
	slices.SortFunc(m.verdict.Left, Left.compare)
	slices.SortFunc(m.verdict.Held, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Why, b.Why))
	})
}

// redo decides on one Service.
func (m *Machine) redo(now time.Time, name service.Name, w *watched) {
	was := map[service.PortEndpoint]Left{}
	for _, l := range w.left {
		was[l.PortEndpoint] = l
	}
	w.left, w.held, w.members, w.spares = nil, nil, nil, nil
	s := m.snapshot.Services.At(name)
	if s == nil || m.mode(s) == Off {
		return
	}
	whole := m.snapshot.Unadjusted(name)
	for i := range whole.Ports {
		if whole.Ports[i].IsRange() {
			continue
		}
		for _, family := range ip.Families() {
			d := decision{Machine: m, now: now, watched: w, service: whole, port: &whole.Ports[i], family: family, was: was}
			d.decide()
		}
	}
}

// decision is that on one Service port in one family.
type decision struct {
	*Machine
	*watched
	now     time.Time
	service *service.Service // as the API has it
	port    *service.Port
	family  ip.Family
	was     map[service.PortEndpoint]Left

	choice service.Choice
	// lists are the endpoints that take connections, for each traffic policy in use, and out counts those left out of
	// each.
	lists [2]service.Addresses
	out   [2]int
	// gone are those that do not answer, and unsure those suspects that may.
	gone   []gone
	unsure []netip.AddrPort
	// remote says that the port has endpoints on other nodes which are not gone; there and here are when one on another
	// node and one on this node answered last.
	remote              bool
	lastThere, lastHere time.Time
	spare               []spare
}

// gone is an endpoint that does not answer.
type gone struct {
	addr  netip.AddrPort
	node  *node     // that is dead; nil if the endpoint was asked itself
	own   *endpoint // what is known of it if it was asked itself
	begun time.Time
	was   bool
}

func (d *decision) decide() {
	if d.find(); len(d.gone)+len(d.unsure) == 0 {
		return
	}
	d.choice = d.service.Choose(d.port, d.snapshot.Node, d.family)
	d.lists = [2]service.Addresses{d.choice.Cluster, d.choice.Local}
	takes := func(a netip.AddrPort) bool { return d.lists[0].Find(a) != nil || d.lists[1].Find(a) != nil }
	d.gone = slices.DeleteFunc(d.gone, func(g gone) bool { return !takes(g.addr) })
	d.unsure = slices.DeleteFunc(d.unsure, func(a netip.AddrPort) bool { return !takes(a) })
	d.compare()
	slices.SortStableFunc(d.gone, func(a, b gone) int {
		if a.was != b.was {
			return pick(a.was, -1, 1)
		}
		return a.begun.Compare(b.begun)
	})
	held := Held{d.service.Name, d.service.ID(d.port), len(d.gone), max(d.lists[0].Len(), d.lists[1].Len()), ""}
	for _, g := range d.gone {
		if why := d.keeps(g); why != "" {
			held.Why = cmp.Or(held.Why, why)
			if g.node == nil {
				d.unsure = append(d.unsure, g.addr)
			}
			continue
		}
		d.leave(g)
	}
	if held.Why != "" {
		d.held = append(d.held, held)
	}
	if len(d.unsure) > 0 {
		d.spares = append(d.spares, d.spare...)
	}
}

// find finds the endpoints that do not answer.
func (d *decision) find() {
	for chunk := range d.port.Endpoints.Chunks() {
		for i := range chunk {
			e := &chunk[i]
			if !e.Ready || !d.family.Has(e.Addr.Addr()) {
				continue
			}
			g := gone{addr: e.Addr}
			if n := d.nodes[e.Node]; n != nil && n.dead {
				if g.begun = n.begun; !n.living[e.Addr] {
					g.node = n
				}
				if d.port.Protocol == service.TCP {
					d.members = append(d.members, e.Addr)
				}
			}
			if _, suspected := d.suspects[e.Addr]; suspected && d.port.Protocol == service.TCP {
				if own := d.endpoints[e.Addr]; own.confirmed() {
					g.own, g.begun = own, own.begun
				} else if g.node == nil {
					d.unsure = append(d.unsure, e.Addr)
				}
			}
			if g.node != nil || g.own != nil {
				_, g.was = d.was[d.port.At(e.Addr)]
				d.gone = append(d.gone, g)
			}
		}
	}
}

// compare finds out which other endpoints of the port answer, and chooses some to ask.
func (d *decision) compare() {
	missing := map[netip.AddrPort]bool{}
	for _, g := range d.gone {
		missing[g.addr] = true
	}
	var here []spare
	seen := [2]int{}
	for _, list := range d.lists {
		for a := range list.All() {
			if missing[a] {
				continue
			}
			s := spare{a, d.choice.OnNode.Find(a) != nil || d.Machine.here(a.Addr())}
			known := d.endpoints[a]
			into, n := &d.spare, &seen[0]
			last := &d.lastThere
			if d.remote = d.remote || !s.here; s.here {
				into, n, last = &here, &seen[1], &d.lastHere
			}
			if known != nil {
				*last = pace.Later(*last, known.answered)
			}
			if d.suspected[a] {
				continue
			}
			// A random choice of all.
			if *n++; len(*into) < spares {
				*into = append(*into, s)
			} else if at := int(d.jitter() * float64(*n)); at < spares {
				(*into)[at] = s
			}
		}
	}
	if !d.remote {
		d.spare = here
	}
}

// keeps says why an endpoint that does not answer is not left out; empty if it is.
func (d *decision) keeps(g gone) Reason {
	for i, list := range d.lists {
		if list.Find(g.addr) != nil && 2*(d.out[i]+1) > list.Len() {
			return Half
		}
	}
	since := func(t time.Time) bool { return !t.IsZero() && !t.Before(g.begun) }
	switch {
	case g.was:
	case d.ownNetwork(d.now), g.node == nil &&
		g.own.missed.Before(pace.Later(d.watched.back, d.Machine.back).Add(Patience)):
		return OwnNetwork
	case g.node != nil, since(d.lastThere):
	case d.remote, !since(d.lastHere):
		return NoControl
	case !since(d.elsewhere):
		return OwnNetwork
	}
	return ""
}

func (d *decision) leave(g gone) {
	for i, list := range d.lists {
		if list.Find(g.addr) != nil {
			d.out[i]++
		}
	}
	l, was := d.was[d.port.At(g.addr)]
	if !was {
		l = Left{Service: d.service.Name, Port: d.service.ID(d.port)}
		l.Adjustment = service.Adjustment{PortEndpoint: d.port.At(g.addr), Share: service.NoShare, Since: d.now}
		if g.own != nil {
			l.Why = g.own.why()
		} else {
			l.Why = fmt.Sprintf("its node %s answers at none of %v", g.node.name, g.node.facts.Addrs)
		}
	}
	l.Mode = d.mode(d.service)
	d.left = append(d.left, l)
}
