package listen

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// maxListeners bounds the listeners of a family. An API server's usual range has 2,768 node ports for each protocol.
// Services that are older have theirs first.
const maxListeners = 4096

// localIndex knows which node ports to serve on the loopback address of one family, and for which Service.
type localIndex struct {
	index[*service.Service, service.Name]
	// from is the address to connect from. It is not valid while the node has none.
	from netip.Addr
	// leftOut counts the node ports beyond maxListeners.
	leftOut int
}

func newLocalIndex(nodePorts service.NodePortAddresses, family ip.Family) *localIndex {
	return &localIndex{index: index[*service.Service, service.Name]{nodePorts: nodePorts, family: family,
		services: map[service.Name]*service.Service{}}}
}

func (x *localIndex) update(s service.Snapshot, refused map[string]error) bool {
	at, serves := x.nodePorts.Loopback(s.Node, x.family)
	if !serves {
		served := len(x.wanted) > 0
		*x = *newLocalIndex(x.nodePorts, x.family)
		return served
	}
	concerned := x.follow(s, refused, func(_, now *service.Service) (*service.Service, bool) {
		return now, slices.ContainsFunc(now.Ports, func(p service.Port) bool { return p.NodePort != 0 })
	})
	if !concerned {
		return false
	}
	leftOut := x.leftOut
	return x.want(x.build(at)) || x.leftOut != leftOut
}

// build returns the Services by the addresses of their listeners. A node port without endpoints has none: the kernel
// then refuses clients, as the rules do at other addresses. Nor has one whose source ranges keep the node out: a client
// would wait for nothing.
func (x *localIndex) build(at netip.Addr) map[address]service.Name {
	wanted := map[address]service.Name{}
	x.from, x.leftOut = source(x.snapshot.Node, x.family), 0
	if !x.from.IsValid() {
		return wanted
	}
	for name, s := range x.services {
		if x.refused[string(name)] != nil {
			continue // The kernel has no rules for the Service.
		}
		lost := x.snapshot.Conflicts.At(name)
		for i := range s.Ports {
			p := &s.Ports[i]
			claim := service.NodePortClaim(x.family, p)
			if p.NodePort == 0 || p.Protocol != service.TCP && p.Protocol != service.UDP || lost.Has(claim) ||
				!p.HasEndpoints(x.family) {
				continue
			}
			if wall, _, restricted := s.FirewallAt(claim, nil); !restricted || wall.Sources.Contains(x.from) {
				wanted[address{p.Protocol, netip.AddrPortFrom(at, p.NodePort)}] = name
			}
		}
	}
	if len(wanted) <= maxListeners {
		return wanted
	}
	x.leftOut = len(wanted) - maxListeners
	byAge := slices.SortedFunc(maps.Keys(wanted), func(a, b address) int {
		of, other := x.services[wanted[a]], x.services[wanted[b]]
		return cmp.Or(of.Created.Compare(other.Created), cmp.Compare(of.Name, other.Name), a.compare(b))
	})
	for _, at := range byAge[maxListeners:] {
		delete(wanted, at)
	}
	return wanted
}

// source is the address of the node to connect from: one that endpoints can answer. That is the Node's, if an interface
// has it, or the first one of an interface.
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
