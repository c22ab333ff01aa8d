package localport

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// maxListeners bounds the listeners of a family. An API server's usual range has 2,768 node ports for each protocol.
// Services that are older have theirs first.
const maxListeners = 4096

// port is a node port.
type port struct {
	protocol service.Protocol
	number   uint16
}

// wish is where to listen in one family.
type wish struct {
	// at is the address to listen on, and from the one to connect from. from is not valid while the node has none.
	at, from netip.Addr
	ports    map[port]service.Name
	// leftOut counts the node ports beyond maxListeners.
	leftOut int
}

func (w *wish) equal(o *wish) bool {
	return w.at == o.at && w.from == o.from && w.leftOut == o.leftOut && maps.Equal(w.ports, o.ports)
}

// index knows what to listen on in one family. A snapshot may be in force in one family and not in the other, so each
// family has an index of its own. The cost of an update grows with its difference from the last one. If that concerns
// any node port, it also grows with the number of Services that have one.
type index struct {
	nodePorts service.NodePortAddresses
	family    ip.Family

	// The last update.
	snapshot service.Snapshot
	refused  map[string]error

	services map[service.Name]*service.Service // those with node ports
	wish     wish
}

func newIndex(nodePorts service.NodePortAddresses, family ip.Family) *index {
	return &index{nodePorts: nodePorts, family: family, services: map[service.Name]*service.Service{}}
}

// update follows a snapshot whose program is in force without the refused parts. It returns whether the wish changes.
func (x *index) update(s service.Snapshot, refused map[string]error) bool {
	at, serves := x.nodePorts.Loopback(s.Node, x.family)
	if !serves {
		if x.snapshot.Node == nil {
			return false // nor did it before
		}
		before := x.wish
		*x = *newIndex(x.nodePorts, x.family)
		return !x.wish.equal(&before)
	}
	concerned := x.snapshot.Node != s.Node || len(refused) > 0 || len(x.refused) > 0
	for c := range treap.Diff(x.snapshot.Services, s.Services) {
		_, had := x.services[c.Key]
		delete(x.services, c.Key)
		has := c.HasNew && c.New.InFamily(x.family) && slices.ContainsFunc(c.New.Ports, func(p service.Port) bool { return p.NodePort != 0 })
		if has {
			x.services[c.Key] = c.New
		}
		concerned = concerned || had || has
	}
	for c := range treap.Diff(x.snapshot.Conflicts, s.Conflicts) {
		_, has := x.services[c.Key]
		concerned = concerned || has
	}
	x.snapshot, x.refused = s, refused
	if !concerned {
		return false
	}
	next := x.build(at)
	changed := !next.equal(&x.wish)
	x.wish = next
	return changed
}

// build returns the wish. A node port without endpoints is not in it: the kernel then refuses clients, as the rules do at
// other addresses. Nor is one whose source ranges keep the node out: a client would wait for nothing.
func (x *index) build(at netip.Addr) wish {
	w := wish{at: at, from: source(x.snapshot.Node, x.family), ports: map[port]service.Name{}}
	if !w.from.IsValid() {
		return w
	}
	for name, s := range x.services {
		if x.refused[string(name)] != nil {
			continue // The kernel has no rules for the Service.
		}
		lost := x.snapshot.Conflicts.At(name)
		for i := range s.Ports {
			p := &s.Ports[i]
			claim := service.NodePortClaim(x.family, p)
			if p.NodePort == 0 || p.Protocol != service.TCP && p.Protocol != service.UDP || lost.Has(claim) || !p.HasEndpoints(x.family) {
				continue
			}
			if wall, _, restricted := s.FirewallAt(claim, nil); !restricted || wall.Sources.Contains(w.from) {
				w.ports[port{p.Protocol, p.NodePort}] = name
			}
		}
	}
	if w.leftOut = len(w.ports) - maxListeners; w.leftOut <= 0 {
		w.leftOut = 0
		return w
	}
	byAge := slices.SortedFunc(maps.Keys(w.ports), func(a, b port) int {
		of, other := x.services[w.ports[a]], x.services[w.ports[b]]
		return cmp.Or(of.Created.Compare(other.Created), cmp.Compare(of.Name, other.Name), cmp.Compare(a.number, b.number), cmp.Compare(a.protocol, b.protocol))
	})
	for _, p := range byAge[maxListeners:] {
		delete(w.ports, p)
	}
	return w
}

// source is the address of the node to connect from: one that endpoints can answer. That is the Node's, if an interface has
// it, or the first one of an interface.
func source(node *service.Node, family ip.Family) netip.Addr {
	usable := func(a netip.Addr) bool {
		return family.Has(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() && slices.Contains(node.HostAddresses, a)
	}
	for _, list := range [][]netip.Addr{node.Addresses, node.HostAddresses} {
		if i := slices.IndexFunc(list, usable); i >= 0 {
			return list[i]
		}
	}
	return netip.Addr{}
}
