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
	"nftproxy/model/share"
)

// group is a Service with something that does not answer.
type group struct {
	name     service.Name
	suspects []*endpoint // that it lists
	left     []Left
	held     []Held
	// open says that it depends on what others are about to answer: other endpoints of a port, if none has answered since
	// one that does not was first asked, or a Node.
	open bool
}

func (g *group) leaves(addr netip.AddrPort) bool {
	return slices.ContainsFunc(g.left, func(l Left) bool { return l.Addr == addr && l.Protocol == service.TCP })
}

// again has the suspects that it keeps tried again.
func (g *group) again() {
	for _, e := range g.suspects {
		if !g.leaves(e.addr) {
			e.tries = e.anew()
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
		if namespaceOf(l.name) == namespaceOf(g.name) {
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
func (s *step) decide() {
	names := slices.Sorted(maps.Keys(s.dirty))
	clear(s.dirty)
	for _, name := range names {
		s.redo(name)
	}
	for _, e := range s.suspects() {
		if len(e.listings) == 0 {
			s.clear(e)
		}
	}
	if len(names) == 0 {
		return
	}
	s.verdict.Left, s.verdict.Held = nil, nil
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		s.verdict.Left = append(s.verdict.Left, s.groups[name].left...)
		s.verdict.Held = append(s.verdict.Held, s.groups[name].held...)
	}
}

// redo decides on one Service from what is known of its endpoints and of what it did without before.
func (s *step) redo(name service.Name) {
	g := &group{name: name}
	before := map[service.PortEndpoint]Left{}
	if old := s.groups[name]; old != nil {
		for _, l := range old.left {
			before[l.PortEndpoint] = l
		}
		for _, e := range old.suspects {
			e.listings = slices.DeleteFunc(e.listings, func(l listing) bool { return l.group == old })
		}
	}
	if whole := share.Unadjusted(s.snapshot, name); whole != nil && s.mode(whole) >= service.EjectReport {
		for i := range whole.Ports {
			if whole.Ports[i].IsRange() { // Its endpoints have no port to ask; they are those of the other ports.
				continue
			}
			for _, family := range ip.Families() {
				d := decision{step: s, group: g, service: whole, port: &whole.Ports[i], before: before}
				d.decide(family)
			}
		}
	}
	slices.SortFunc(g.left, func(a, b Left) int { return a.PortEndpoint.Compare(b.PortEndpoint) })
	s.groups[name] = g
	switch {
	case len(g.suspects)+len(g.left)+len(g.held) == 0:
		delete(s.groups, name)
	case len(g.held) > 0 || g.open:
		s.dirty[name] = true
	}
}

// decision is that on one Service port in one family.
type decision struct {
	*step
	*group
	service *service.Service // as the API has it
	port    *service.Port
	before  map[service.PortEndpoint]Left

	// lists are the endpoints that take connections, for each traffic policy in use, and out counts those left out of
	// each.
	lists [2]share.Addresses
	out   [2]int
	// gone are those that do not answer, unsure those suspects that may, and others all that may.
	gone           []gone
	unsure, others []other
	// lastThere and lastHere are when one of the others on another node and on this node answered last; remote says that
	// some are on other nodes.
	lastThere, lastHere time.Time
	remote              bool
}

// other is another endpoint that takes connections; here says that it is on this node.
type other struct {
	addr netip.AddrPort
	here bool
	*endpoint
}

// gone is an endpoint that does not answer.
type gone struct {
	other
	node  *node     // where it is by its slice; nil if nothing is known of that
	dead  bool      // The node is, and the endpoint has not answered since, or does not any more.
	begun time.Time // zero if it was left out before, as left says then
	left  Left
}

func (d *decision) decide(family ip.Family) {
	choice := share.Choose(d.service, d.port, d.snapshot.Node, family)
	d.lists = [2]share.Addresses{choice.Cluster, choice.Local}
	for chunk := range d.port.Endpoints.Chunks() {
		for i := range chunk {
			e := &chunk[i]
			if d.lists[0].Find(e.Addr) != nil || d.lists[1].Find(e.Addr) != nil {
				d.look(e, choice.OnNode.Find(e.Addr) != nil || d.here(e.Addr.Addr()))
			}
		}
	}
	if len(d.gone)+len(d.unsure) == 0 {
		return
	}
	slices.SortStableFunc(d.gone, func(a, b gone) int {
		switch { // The bound of a half is for those on living nodes, and counts all before them.
		case a.dead == b.dead:
			return a.begun.Compare(b.begun)
		case a.dead:
			return 1
		}
		return -1
	})
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
		if !g.dead {
			d.unsure = append(d.unsure, g.other)
		}
	}
	if held.Why != "" {
		d.held = append(d.held, held)
	}
	d.askOthers()
}

// look finds out whether an endpoint that takes connections answers.
func (d *decision) look(e *service.Endpoint, here bool) {
	o, n := other{e.Addr, here, d.endpoints[e.Addr]}, d.nodes[e.Node]
	if o.endpoint == nil {
		o.endpoint = d.unknown
	}
	listed := d.port.Protocol == service.TCP && o.suspected() && d.list(o.endpoint, e.Node)
	confirmed := listed && o.confirmed()
	g := gone{other: o, node: n, begun: o.begun}
	g.dead = n != nil && n.isDead() && (confirmed || !o.answered.After(n.died))
	switch {
	case confirmed:
	case g.dead:
		g.begun = n.begun
	default:
		d.answers(o, listed)
		return
	}
	if left, was := d.before[d.port.At(e.Addr)]; was {
		g.left, g.begun = left, time.Time{}
	}
	d.gone = append(d.gone, g)
}

// answers takes note of an endpoint that may answer, and of when it has.
func (d *decision) answers(o other, suspected bool) {
	if suspected {
		d.unsure = append(d.unsure, o)
	}
	d.others = append(d.others, o)
	if o.here {
		d.lastHere = pace.Later(d.lastHere, o.answered)
	} else {
		d.remote, d.lastThere = true, pace.Later(d.lastThere, o.answered)
	}
}

// keeps says why an endpoint that does not answer is not left out; empty if it is.
func (d *decision) keeps(g gone) Reason {
	for i, list := range d.lists {
		rest := list.Len() - d.out[i] - 1
		if list.Find(g.addr) != nil && (rest == 0 || !g.dead && rest <= d.out[i]) {
			return Half
		}
	}
	since := func(t time.Time) bool { return !t.IsZero() && !t.Before(g.begun) }
	switch {
	case g.begun.IsZero():
	case d.network.gone():
		return OwnNetwork
	case g.dead, since(d.lastThere):
	case d.remote, !since(d.lastHere):
		return NoControl
	case !g.here && !since(d.network.elsewhere):
		return OwnNetwork
	}
	return ""
}

// undecided says that an endpoint which was asked itself has failed before its Node was asked as often, or before any
// other Node has answered. They count when it is to be said whether this node's own network is gone. The API server may
// be slow to say where they are.
func (d *decision) undecided(g gone) bool {
	n := g.node
	if g.dead || n == nil || g.begun.IsZero() || d.now.Sub(g.begun) >= mostUndecided {
		return false
	}
	asked := !n.begun.IsZero() || !d.now.Before(n.next) // or about to be
	return n.looking || n.known() && (asked && !n.silent() || d.network.answering == 0 && d.network.asking)
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
		if l.Why = g.why(); d.port.Protocol != service.TCP || !g.confirmed() {
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
	if !slices.ContainsFunc(d.unsure, func(o other) bool { return o.begun.IsZero() || last.Before(o.begun) }) {
		return
	}
	d.open = true
	var some []other
	for _, o := range d.others {
		switch {
		case o.here && d.remote, o.suspected():
		case o.asking > 0 && d.now.Sub(o.asked) < between:
			return
		case o.asking == 0 && (!o.silent() || !d.now.Before(o.next)):
			some = append(some, o)
		}
	}
	for _, o := range draw(some, controls, d.jitter) {
		d.ask(d.note(o.addr), d.name, d.now)
	}
}
