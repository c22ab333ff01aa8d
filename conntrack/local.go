package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// ownAddresses are the addresses that the kernel takes for the node's own, as the rules ask it
// ("fib daddr type local").
type ownAddresses struct {
	// onInterfaces has the addresses on the node's interfaces. serving has the addresses that
	// serve node ports; where all is true, every own address of the family does.
	onInterfaces, serving map[netip.Addr]bool
	all                   ip.PerFamily[bool]
	// loopback has the loopback addresses where node ports are served too.
	loopback map[netip.Addr]bool
	// byRoute has the single addresses that a local route makes the node's own, and ranges the
	// longer ranges.
	byRoute map[netip.Addr]bool
	ranges  []netip.Prefix
}

// has says whether the address is the node's own.
func (o *ownAddresses) has(a netip.Addr) bool {
	return o.onInterfaces[a] || o.byRoute[a] || slices.ContainsFunc(o.ranges, func(r netip.Prefix) bool {
		return r.Contains(a)
	})
}

// serves says whether the address serves node ports.
func (o *ownAddresses) serves(a netip.Addr) bool {
	return o.serving[a] || *o.all.Of(ip.Of(a)) && !a.IsLoopback() && o.has(a)
}

// answers says whether the flow's destination serves node ports to its source. Loopback addresses serve them to other
// addresses of the node, from which nftproxy connects for clients on loopback (daemon/listen).
func (o *ownAddresses) answers(f *Flow) bool {
	src, dst := f.Original.Src.Addr(), f.Original.Dst.Addr()
	return o.serves(dst) || o.loopback[dst] && !src.IsLoopback() && o.has(src)
}

// setNode takes the addresses on the interfaces, and those that serve node ports.
func (o *ownAddresses) setNode(node *service.Node, nodePorts service.NodePortAddresses) {
	o.onInterfaces, o.serving, o.all, o.loopback = map[netip.Addr]bool{}, map[netip.Addr]bool{}, ip.PerFamily[bool]{},
		map[netip.Addr]bool{}
	if node == nil {
		return
	}
	for _, a := range node.HostAddresses {
		o.onInterfaces[a.WithZone("")] = true
	}
	for _, family := range ip.Families() {
		addrs, all := nodePorts.On(node, family)
		if *o.all.Of(family) = all; all {
			addrs = slices.DeleteFunc(slices.Clone(node.HostAddresses), func(a netip.Addr) bool {
				return !family.Has(a) || a.IsLoopback()
			})
		}
		for _, a := range addrs {
			o.serving[a.WithZone("")] = true
		}
		if a, serves := nodePorts.Loopback(node, family); serves {
			o.loopback[a] = true
		}
	}
}

// SetLocalRoutes sets the ranges that local routes make the node's own, in addition to the
// addresses on its interfaces, such as those of a load balancer that leaves the destination
// alone. It returns the scope of the flows that may be stale now and were not before.
func (x *Index) SetLocalRoutes(routes []netip.Prefix) (s Scope) {
	before := x.own
	x.own.byRoute, x.own.ranges = map[netip.Addr]bool{}, nil
	for _, r := range routes {
		if r.IsSingleIP() {
			x.own.byRoute[r.Addr()] = true
		} else {
			x.own.ranges = append(x.own.ranges, r)
		}
	}
	for a := range before.byRoute {
		if !x.own.has(a) {
			s.addAll()
		}
	}
	for a := range x.own.byRoute {
		if !before.has(a) && x.own.serves(a) {
			s.add(Filter{Dst: a})
		}
	}
	if !slices.Equal(before.ranges, x.own.ranges) {
		s.addAll()
	}
	return s
}
