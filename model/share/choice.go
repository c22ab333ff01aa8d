// Package share decides who serves: which endpoints of a service get new connections on a node, and which share of them
// each one gets, by weights, by hashes of clients, and by how new it is. All functions are pure, so that all nodes of a
// cluster come to the same result where they see the same endpoints. Only SlowStarts remember something: which
// endpoints one process has seen, and since when. They read no clock either.
//
// It knows services as values (model/service). It knows neither who has an address (model/claims) nor how a packet
// draws an endpoint (nft/ruleset).
package share

import (
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/sorted"
)

// Addresses are addresses and ports of endpoints.
type Addresses = sorted.List[netip.AddrPort]

// Choice has the endpoints for new connections to a service port, in one family.
type Choice struct {
	// Cluster is the list for policy Cluster. Under external policy Local it is the
	// list for pods and the node itself.
	Cluster Addresses
	// Local is the list for policy Local: endpoints on the node.
	Local Addresses
	// OnNode has the endpoints of both lists that run on the node, and MaybeOnNode those
	// that may do so, whatever their nodeName says (place.traits). All of them must be
	// able to reach themselves through the service.
	OnNode, MaybeOnNode Addresses
	// Anywhere says whether there is any endpoint, on this node or another one.
	// Without any, connections are refused. If there are endpoints on other nodes
	// only, policy Local drops packets, so that a load balancer tries another node.
	Anywhere bool
	// Weighted says that some endpoint that may get connections has another weight than the default one.
	Weighted bool

	// ChooseAfter compares these with the next endpoints.
	endpoints service.Endpoints
	place     place
	tally     tally
	chosen    selection
}

// List is the list for policy Local, or that for policy Cluster.
func (c *Choice) List(local bool) Addresses {
	if local {
		return c.Local
	}
	return c.Cluster
}

// Choose chooses the endpoints of a service's port in one family. Each list has the ready
// endpoints, without those of weight 0. If none is ready, it has those that still serve while they terminate (KEP-1669,
// KEP-1672). Topology hints narrow only the ready endpoints of the list Cluster.
func Choose(s *service.Service, p *service.Port, node *service.Node, family ip.Family) Choice {
	c := Choice{endpoints: p.Endpoints, place: place{node, family}}
	c.tally = c.place.tally(p.Endpoints)
	c.chosen = c.tally.selection(wants(s, p, family))
	c.Anywhere, c.Weighted = c.tally.anywhere(), c.tally.weighted > 0
	cluster := make([]netip.AddrPort, 0, c.tally.count(c.chosen.cluster))
	local := make([]netip.AddrPort, 0, c.tally.count(c.chosen.local))
	var here, maybe []netip.AddrPort
	for chunk := range p.Endpoints.Chunks() {
		for i := range chunk {
			e, t := &chunk[i], c.place.traits(&chunk[i])
			if t.all(c.chosen.cluster) {
				cluster = append(cluster, e.Addr)
			}
			if t.all(c.chosen.local) {
				local = append(local, e.Addr)
			}
			switch {
			case c.chosen.uses(t, onNode):
				here = append(here, e.Addr)
			case c.chosen.uses(t, maybeOnNode):
				maybe = append(maybe, e.Addr)
			}
		}
	}
	c.Cluster, c.Local = sorted.Of(cluster), sorted.Of(local)
	c.OnNode, c.MaybeOnNode = sorted.Of(here), sorted.Of(maybe)
	return c
}

// ChooseAfter returns the same as Choose. last is the last choice for the same port, nil for none.
// If the lists take endpoints of the same kind as before, the cost depends on what has changed in
// between.
func ChooseAfter(s *service.Service, last *Choice, p *service.Port, node *service.Node, family ip.Family) Choice {
	if last == nil || !last.endpoints.Long() || !p.Endpoints.Long() || !last.place.same(place{node, family}) {
		return Choose(s, p, node, family)
	}
	c := *last
	var cluster, local, here, maybe []sorted.Edit[netip.AddrPort]
	changes := 0
	for change := range sorted.Diff(c.endpoints, p.Endpoints) {
		if changes++; !sorted.Few(changes, p.Endpoints.Len()) {
			return Choose(s, p, node, family)
		}
		var old, now traits
		var addr netip.AddrPort
		if change.Old != nil {
			old, addr = c.place.traits(change.Old), change.Old.Addr
			c.tally.add(old, -1)
		}
		if change.New != nil {
			now, addr = c.place.traits(change.New), change.New.Addr
			c.tally.add(now, 1)
		}
		cluster = appendEdit(cluster, addr, old.all(c.chosen.cluster), now.all(c.chosen.cluster))
		local = appendEdit(local, addr, old.all(c.chosen.local), now.all(c.chosen.local))
		here = appendEdit(here, addr, c.chosen.uses(old, onNode), c.chosen.uses(now, onNode))
		maybe = appendEdit(maybe, addr, c.chosen.uses(old, maybeOnNode), c.chosen.uses(now, maybeOnNode))
	}
	if c.tally.selection(wants(s, p, family)) != c.chosen {
		return Choose(s, p, node, family)
	}
	c.endpoints, c.Anywhere, c.Weighted = p.Endpoints, c.tally.anywhere(), c.tally.weighted > 0
	c.Cluster, c.Local = c.Cluster.Edit(cluster), c.Local.Edit(local)
	c.OnNode, c.MaybeOnNode = c.OnNode.Edit(here), c.MaybeOnNode.Edit(maybe)
	return c
}

// Counts says how many endpoints a service port has, in one family.
type Counts struct {
	// Ready counts the endpoints that are ready, Draining counts those that are not ready and still
	// serve while they terminate.
	Ready, Draining int
	// Cluster and Local are the lengths of the lists of a Choice.
	Cluster, Local int
}

// Anywhere says whether any endpoint serves, as Choice.Anywhere.
func (n Counts) Anywhere() bool { return n.Ready+n.Draining > 0 }

// Count counts the endpoints that Choose would choose. It visits each endpoint and builds no list.
func Count(s *service.Service, p *service.Port, node *service.Node, family ip.Family) Counts {
	at := place{node, family}
	t := at.tally(p.Endpoints)
	chosen := t.selection(wants(s, p, family))
	return Counts{t.ready, t.draining, t.count(chosen.cluster), t.count(chosen.local)}
}

// appendEdit appends the edit for an address that was in a list, or is in it now.
func appendEdit(edits []sorted.Edit[netip.AddrPort], a netip.AddrPort, was, is bool) []sorted.Edit[netip.AddrPort] {
	if was == is {
		return edits
	}
	return append(edits, sorted.Edit[netip.AddrPort]{Item: a, Gone: was})
}

// wants says which lists a service needs for the port.
func wants(s *service.Service, p *service.Port, family ip.Family) (cluster, local bool) {
	external := s.External(p, family)
	return s.InternalPolicy == service.Cluster || external,
		s.InternalPolicy == service.Local || s.ExternalPolicy == service.Local && external
}

// place is the node and family of a choice.
type place struct {
	node   *service.Node
	family ip.Family
}

// same says whether endpoints have the same traits at both places.
func (p place) same(o place) bool {
	return p.family == o.family && Alike(p.node, o.node)
}

// Alike says whether a node that has changed makes the same choices as before.
func Alike(a, b *service.Node) bool {
	return a == b || a.Name == b.Name && a.Zone == b.Zone && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

// traits are the facts about an endpoint that matter at a place.
type traits uint16

const (
	ready traits = 1 << iota
	// draining: the endpoint is not ready, but serves while it terminates.
	draining
	onNode
	// Only ready endpoints have these: hints for nodes or zones, and whether the hints
	// name this one.
	nodeHints
	thisNode
	zoneHints
	thisZone
	// maybeOnNode: the endpoint does not name the node, and may run there all the same.
	maybeOnNode
	// weighted: the endpoint has another weight than the default one, or a part of it.
	weighted
)

// traits says what matters of the endpoint here; 0 for one that gets no connections, as one of weight 0 or one that is
// left out. An endpoint without nodeName may run on any node. The node's podCIDRs go before the nodeName, which whoever
// writes the slice may have wrong.
func (p *place) traits(e *service.Endpoint) traits {
	var t traits
	switch {
	case !p.family.Has(e.Addr.Addr()), e.Quarters() == 0:
		return 0
	case e.Ready:
		t = ready
		if e.Nodes != "" {
			t |= nodeHints
			if e.Nodes.Has(p.node.Name) {
				t |= thisNode
			}
		}
		if e.Zones != "" {
			t |= zoneHints
			if e.Zones.Has(p.node.Zone) {
				t |= thisZone
			}
		}
	case e.Serving && e.Terminating:
		t = draining
	default:
		return 0
	}
	switch {
	case e.Node == p.node.Name:
		t |= onNode
	case e.Node == "", slices.ContainsFunc(p.node.PodCIDRs, func(r netip.Prefix) bool {
		return r.Contains(e.Addr.Addr())
	}):
		t |= maybeOnNode
	}
	if e.Weighted() {
		t |= weighted
	}
	return t
}

// all says whether t has all wanted traits, and there are wanted ones.
func (t traits) all(wanted traits) bool { return wanted != 0 && t&wanted == wanted }

// selection has the traits that the endpoints of each list must have. A list without
// traits is empty.
type selection struct {
	cluster, local traits
}

// uses says whether either list has the endpoint, and the endpoint has the trait where.
func (s selection) uses(t, where traits) bool {
	return t&where != 0 && (t.all(s.cluster) || t.all(s.local))
}

// tally counts endpoints by their traits.
type tally struct {
	ready, draining         int
	readyHere, drainingHere int
	nodeHints, thisNode     int
	zoneHints, thisZone     int
	weighted                int
}

// tally counts the endpoints by their traits at the place.
func (p *place) tally(endpoints service.Endpoints) tally {
	var t tally
	for chunk := range endpoints.Chunks() {
		for i := range chunk {
			t.add(p.traits(&chunk[i]), 1)
		}
	}
	return t
}

func (c *tally) add(t traits, by int) {
	if t&weighted != 0 {
		c.weighted += by
	}
	if t&draining != 0 {
		c.draining += by
		if t&onNode != 0 {
			c.drainingHere += by
		}
	}
	if t&ready == 0 {
		return
	}
	c.ready += by
	if t&onNode != 0 {
		c.readyHere += by
	}
	if t&(nodeHints|zoneHints) == 0 {
		return
	}
	if t&nodeHints != 0 {
		c.nodeHints += by
	}
	if t&thisNode != 0 {
		c.thisNode += by
	}
	if t&zoneHints != 0 {
		c.zoneHints += by
	}
	if t&thisZone != 0 {
		c.thisZone += by
	}
}

// count is the number of endpoints with the traits, which are a list's of a selection.
func (c *tally) count(of traits) int {
	switch of {
	case ready:
		return c.ready
	case draining:
		return c.draining
	case ready | thisNode:
		return c.thisNode
	case ready | thisZone:
		return c.thisZone
	case ready | onNode:
		return c.readyHere
	case draining | onNode:
		return c.drainingHere
	}
	return 0
}

func (c *tally) anywhere() bool { return c.ready+c.draining > 0 }

// selection says which endpoints the wanted lists have. Of the ready endpoints, the list
// Cluster has those hinted for this node (KEP-3015, PreferSameNode), else those hinted
// for its zone, else all. Hints of a kind count only if every ready endpoint has them
// and at least one names this node or zone.
func (c *tally) selection(cluster, local bool) selection {
	var s selection
	switch {
	case !cluster:
	case c.ready == 0:
		s.cluster = draining
	case c.nodeHints == c.ready && c.thisNode > 0:
		s.cluster = ready | thisNode
	case c.zoneHints == c.ready && c.thisZone > 0:
		s.cluster = ready | thisZone
	default:
		s.cluster = ready
	}
	switch {
	case !local:
	case c.readyHere == 0:
		s.local = draining | onNode
	default:
		s.local = ready | onNode
	}
	return s
}
