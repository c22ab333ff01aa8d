package listen

import (
	"net/netip"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/sorted"
)

// answer is the answer of one health port.
type answer struct {
	service service.Name
	// local counts the distinct addresses of the Service's ready endpoints on
	// this node, over all of its ports, in the family of the listener.
	local int
	// serves says that the rules lead clients from outside to an endpoint.
	serves bool
}

// healthIndex knows the health ports of one family and their answers.
type healthIndex struct{ index[check, answer] }

// check is a Service with a health port.
type check struct {
	service *service.Service
	// local counts the endpoints of the Service on this node by their address.
	local map[netip.Addr]int
	// anywhere counts its ready endpoints on all nodes.
	anywhere int
}

func newHealthIndex(nodePorts service.NodePortAddresses, family ip.Family) *healthIndex {
	return &healthIndex{index[check, answer]{nodePorts: nodePorts, family: family, services: map[service.Name]check{}}}
}

func (x *healthIndex) update(s service.Snapshot, refused map[string]error) bool {
	if n := x.snapshot.Node; n == nil || n.Name != s.Node.Name {
		x.snapshot = service.Snapshot{} // The counts are those of another node.
		clear(x.services)
	}
	concerned := x.follow(s, refused, func(before check, now *service.Service) (check, bool) {
		if now.HealthCheckNodePort == 0 {
			return check{}, false
		}
		next := check{now, before.local, before.anywhere}
		if next.local == nil {
			next.local = map[netip.Addr]int{}
		}
		next.count(before.service, s.Node, x.family)
		return next, true
	})
	return concerned && x.want(x.build())
}

// build returns the answers by the addresses of their listeners. A Service that does not have the claim on its port has
// none: another Service has the port, for its health checks or as a node port, or the node needs it.
func (x *healthIndex) build() map[address]answer {
	owners := map[uint16]check{}
	for _, c := range x.services {
		if !x.snapshot.Conflicts.At(c.service.Name).Has(c.service.HealthCheckClaim(x.family)) {
			owners[c.service.HealthCheckNodePort] = c
		}
	}
	wanted := map[address]answer{}
	for _, addr := range listenAddresses(x.nodePorts, x.snapshot.Node, x.family) {
		for port, c := range owners {
			a := answer{c.service.Name, len(c.local), len(c.local) > 0}
			if c.service.Options.ExternalFailover == service.FailoverCluster {
				a.serves = c.anywhere > 0
			}
			if x.refused[string(a.service)] != nil {
				// The kernel has no rules for the Service: no packet would reach it.
				a.local, a.serves = 0, false
			}
			wanted[address{service.TCP, netip.AddrPortFrom(addr, port)}] = a
		}
	}
	return wanted
}

// listenAddresses are the addresses of the node that the list of node port addresses has, the loopback address too if a
// range contains it, as in kube-proxy; the unspecified address stands for all of the family. IPv6 link-local addresses
// are left out: they mean nothing without an interface.
func listenAddresses(nodePorts service.NodePortAddresses, node *service.Node, family ip.Family) []netip.Addr {
	addrs, all := nodePorts.On(node, family)
	if all {
		return []netip.Addr{family.Unspecified()}
	}
	var list []netip.Addr
	for _, a := range addrs {
		if family == ip.V4 || !a.IsLinkLocalUnicast() {
			list = append(list, a)
		}
	}
	if a, serves := nodePorts.Loopback(node, family); serves {
		list = append(list, a)
	}
	return list
}

// count updates the count of local endpoints from an earlier version of the Service,
// nil for none. It counts addresses, not endpoints: a pod behind several ports is one
// target of the load balancer. A terminating endpoint does not count although it may
// still get traffic, since the load balancer has to choose another node. The same holds for the count of all nodes.
func (c *check) count(before *service.Service, node *service.Node, family ip.Family) {
	countEndpoint := func(e *service.Endpoint, by int) {
		if e == nil || !e.Ready || e.Quarters() == 0 || !family.Has(e.Addr.Addr()) {
			return
		}
		if c.anywhere += by; e.Node != node.Name {
			return
		}
		a := e.Addr.Addr()
		if c.local[a] += by; c.local[a] == 0 {
			delete(c.local, a)
		}
	}
	var old, now []service.Port
	if before != nil {
		old = before.Ports
	}
	now = c.service.Ports
	for i := range max(len(old), len(now)) {
		var was, is service.Endpoints
		if i < len(old) {
			was = old[i].Endpoints
		}
		if i < len(now) {
			is = now[i].Endpoints
		}
		for d := range sorted.Diff(was, is) {
			countEndpoint(d.Old, -1)
			countEndpoint(d.New, 1)
		}
	}
}
