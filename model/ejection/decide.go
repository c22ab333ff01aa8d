package ejection

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// group is a Service with something that does not answer.
type group struct {
	name      service.Name
	namespace string
	suspects  []*endpoint // that it lists
	left      []Left
	held      []Held
	// onDead are the TCP endpoints on dead nodes.
	onDead []netip.AddrPort
	// open says that it depends on what others are about to answer: other endpoints of a port, if none has answered since
	// one that does not was first asked, or a Node. ask has some endpoints to ask, and more is when there may be others.
	open bool
	ask  []netip.AddrPort
	more time.Time
}

func (g *group) leaves(addr netip.AddrPort) bool {
	return slices.ContainsFunc(g.left, func(l Left) bool { return l.Addr == addr && l.Protocol == service.TCP })
}

// again has the suspects that it keeps tried again.
func (g *group) again() {
	for _, e := range g.suspects {
		if !g.leaves(e.addr) {
			e.anew()
		}
	}
}

// list takes note that it lists a suspect, unless its namespace does so too often.
func (g *group) list(e *endpoint, node string) bool {
	of := 0
	for _, l := range e.listings {
		if l.group == g {
			return true
		}
		if l.namespace == g.namespace {
			of++
		}
	}
	if of >= mostListings {
		return false
	}
	e.listings, g.suspects = append(e.listings, listing{g, node}), append(g.suspects, e)
	return true
}

// decide decides on the Services of which something has changed, and on those where it depends on what others answer.
func (m *Machine) decide(now time.Time) {
	if len(m.dirty) == 0 {
		return
	}
	names := slices.Sorted(maps.Keys(m.dirty))
	clear(m.dirty)
	for _, name := range names {
		m.redo(now, name)
	}
	for _, e := range slices.Clone(m.suspects) {
		if len(e.listings) == 0 {
			m.clear(e)
		}
	}
	m.verdict.Left, m.verdict.Held = nil, nil
	for _, g := range m.groups {
		m.verdict.Left = append(m.verdict.Left, g.left...)
		m.verdict.Held = append(m.verdict.Held, g.held...)
	}
	slices.SortFunc(m.verdict.Left, func(a, b Left) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Protocol, b.Protocol),
			cmp.Compare(a.Adjustment.Port, b.Adjustment.Port), a.Addr.Compare(b.Addr))
	})
	slices.SortFunc(m.verdict.Held, func(a, b Held) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Why, b.Why))
	})
}

// redo decides on one Service from what is known of its endpoints and of what it did without before.
func (m *Machine) redo(now time.Time, name service.Name) {
	g, before := m.groups[name], map[service.PortEndpoint]Left{}
	if g == nil {
		g = &group{}
		m.groups[name] = g
	}
	for _, l := range g.left {
		before[l.PortEndpoint] = l
	}
	for _, e := range g.suspects {
		e.listings = slices.DeleteFunc(e.listings, func(l listing) bool { return l.group == g })
	}
	*g = group{name: name}
	g.namespace, _ = name.Split()
	if s := m.snapshot.Services.At(name); s != nil && m.mode(s) != Off {
		whole := m.snapshot.Unadjusted(name)
		for i := range whole.Ports {
			for _, family := range ip.Families() {
				d := decision{Machine: m, group: g, now: now, service: whole, port: &whole.Ports[i], family: family}
				d.decide(before)
			}
		}
	}
	switch {
	case len(g.suspects)+len(g.left)+len(g.held)+len(g.onDead) == 0:
		delete(m.groups, name)
	case len(g.held) > 0 || g.open:
		m.dirty[name] = true
	}
}

// decision is that on one Service port in one family.
type decision struct {
	*Machine
	*group
	now     time.Time
	service *service.Service // as the API has it
	port    *service.Port
	family  ip.Family

	// lists are the endpoints that take connections, for each traffic policy in use, and out counts those left out of
	// each.
	lists [2]service.Addresses
	out   [2]int
	// gone are those that do not answer, and unsure those suspects that may.
	gone   []gone
	unsure []*endpoint
	others []other
	// remote says that others are on other nodes; lastThere and lastHere are when one on another node and one on this node
	// answered last.
	remote              bool
	lastThere, lastHere time.Time
}

// gone is an endpoint that does not answer.
type gone struct {
	addr  netip.AddrPort
	node  *node     // that is dead; nil if the endpoint was asked itself
	on    *node     // where it is by its slice; nil if nothing is known of that
	own   *endpoint // what is known of it if it was asked itself
	here  bool      // on this node
	begun time.Time // zero if it was left out before, as left says then
	left  Left
}

// other is another endpoint that takes connections; here says that it is on this node.
type other struct {
	addr netip.AddrPort
	here bool
	*endpoint
}

func (d *decision) decide(before map[service.PortEndpoint]Left) {
	if d.port.IsRange() { // Its endpoints have no port to ask; they are those of the other ports.
		return
	}
	if d.find(); len(d.gone)+len(d.unsure) == 0 {
		return
	}
	d.choose(before)
	held := Held{d.name, d.service.ID(d.port), len(d.gone), max(d.lists[0].Len(), d.lists[1].Len()), ""}
	for _, g := range d.gone {
		switch why := d.keeps(g); {
		case why != "":
			held.Why = cmp.Or(held.Why, why)
		case d.undecided(g):
			d.open = true
		default:
			d.leave(g)
			continue
		}
		if g.node == nil {
			d.unsure = append(d.unsure, g.own)
		}
	}
	if held.Why != "" {
		d.held = append(d.held, held)
	}
	d.askOthers()
}

// find finds the endpoints that do not answer.
func (d *decision) find() {
	for chunk := range d.port.Endpoints.Chunks() {
		for i := range chunk {
			if e := &chunk[i]; e.Ready && d.family.Has(e.Addr.Addr()) {
				d.look(e)
			}
		}
	}
}

// look finds out whether an endpoint answers.
func (d *decision) look(e *service.Endpoint) {
	g, own, tcp := gone{addr: e.Addr, on: d.nodes[e.Node]}, d.endpoints[e.Addr], d.port.Protocol == service.TCP
	if n := g.on; n != nil && n.isDead() {
		if own == nil || !own.answered.After(n.died) {
			g.node, g.begun = n, n.begun
		}
		if tcp {
			d.onDead = append(d.onDead, e.Addr)
		}
	}
	if own != nil && own.suspected && tcp && d.list(own, e.Node) {
		if own.confirmed() {
			g.own, g.begun = own, own.begun
		} else if g.node == nil {
			d.unsure = append(d.unsure, own)
		}
	}
	if g.node != nil || g.own != nil {
		d.gone = append(d.gone, g)
	}
}

// choose keeps to the endpoints that take connections, and finds the others of these. Those that were left out before
// come first.
func (d *decision) choose(before map[service.PortEndpoint]Left) {
	choice := d.service.Choose(d.port, d.snapshot.Node, d.family)
	d.lists = [2]service.Addresses{choice.Cluster, choice.Local}
	takes := func(a netip.AddrPort) bool { return d.lists[0].Find(a) != nil || d.lists[1].Find(a) != nil }
	here := func(a netip.AddrPort) bool { return choice.OnNode.Find(a) != nil || d.here(a.Addr()) }
	d.gone = slices.DeleteFunc(d.gone, func(g gone) bool { return !takes(g.addr) })
	d.unsure = slices.DeleteFunc(d.unsure, func(e *endpoint) bool { return !takes(e.addr) })
	missing := map[netip.AddrPort]bool{}
	for i := range d.gone {
		g := &d.gone[i]
		missing[g.addr], g.here = true, here(g.addr)
		if left, was := before[d.port.At(g.addr)]; was {
			g.left, g.begun = left, time.Time{}
		}
	}
	slices.SortStableFunc(d.gone, func(a, b gone) int { return a.begun.Compare(b.begun) })
	for _, list := range d.lists {
		for a := range list.All() {
			if !missing[a] {
				missing[a] = true
				d.other(other{a, here(a), d.endpoints[a]})
			}
		}
	}
}

func (d *decision) other(o other) {
	d.others = append(d.others, o)
	d.remote = d.remote || !o.here
	switch {
	case o.endpoint == nil:
	case o.here:
		d.lastHere = pace.Later(d.lastHere, o.answered)
	default:
		d.lastThere = pace.Later(d.lastThere, o.answered)
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
	case g.begun.IsZero():
	case d.ownNetwork(d.now):
		return OwnNetwork
	case g.node != nil, since(d.lastThere):
	case d.remote, !since(d.lastHere):
		return NoControl
	case !g.here && !since(d.elsewhere):
		return OwnNetwork
	}
	return ""
}

// undecided says that an endpoint which was asked itself has failed before its Node was asked as often. The Node counts
// when it is to be said whether this node's own network is gone. The API server may be slow to say where it is.
func (d *decision) undecided(g gone) bool {
	n := g.on
	if g.node != nil || n == nil || g.begun.IsZero() || d.now.Sub(g.begun) >= mostUndecided {
		return false
	}
	asked := !n.begun.IsZero() || !d.now.Before(n.next) // or about to be
	return n.looking || len(n.facts.Addrs) > 0 && asked && !n.silent()
}

func (d *decision) leave(g gone) {
	for i, list := range d.lists {
		if list.Find(g.addr) != nil {
			d.out[i]++
		}
	}
	l := g.left
	if !g.begun.IsZero() {
		l = Left{Service: d.name, Port: d.service.ID(d.port)}
		l.PortEndpoint, l.Share, l.Since = d.port.At(g.addr), service.NoShare, d.now
		if g.own != nil {
			l.Why = g.own.why()
		} else {
			l.Why = fmt.Sprintf("its node %s answers at none of %v", g.node.name, g.node.facts.Addrs)
		}
	}
	l.Mode = d.mode(d.service)
	d.left = append(d.left, l)
}

// askOthers chooses others to ask if none has answered since a suspect was first asked.
func (d *decision) askOthers() {
	last := d.lastThere
	if !d.remote {
		last = d.lastHere
	}
	if !slices.ContainsFunc(d.unsure, func(e *endpoint) bool { return e.begun.IsZero() || last.Before(e.begun) }) {
		return
	}
	d.open = true
	var some []netip.AddrPort
	n, room := 0, controls
	for _, o := range d.others {
		switch {
		case o.here && d.remote, o.endpoint != nil && o.suspected:
		case o.endpoint == nil || o.asking == 0 && (!o.silent() || !d.now.Before(o.next)):
			n++
			some = choose(some, o.addr, n, controls, d.jitter)
			d.more = d.now.Add(between)
		case o.asking > 0 && d.now.Sub(o.asked) < between:
			room--
		default:
			d.more = pace.Soonest(d.more, o.next)
		}
	}
	d.ask = append(d.ask, some[:min(len(some), max(0, room))]...)
}

// choose makes a random choice: of n things that come one after the other it keeps most. x is the last that has come.
func choose[T any](kept []T, x T, n, most int, jitter func() float64) []T {
	if len(kept) < most {
		return append(kept, x)
	}
	if at := int(jitter() * float64(n)); at < most {
		kept[at] = x
	}
	return kept
}
