package healthport

import (
	"maps"
	"net/netip"

	"nftproxy/internal/service"
	"nftproxy/internal/treap"
)

// answer is what a port says of its service.
type answer struct {
	service service.Name
	// local counts the distinct addresses of the service's ready endpoints on
	// this node, over all of its ports, in the family of the listener.
	local int
}

// index knows one family's listeners and their answers. What is in force in
// one family need not be in the other, so each has an index of its own. An
// update costs what differs from the last one, and if that concerns any health
// port, also the number of services that have one.
type index struct {
	nodePorts service.NodePortAddresses
	v6        bool

	// The last update.
	snapshot service.Snapshot
	refused  map[string]error

	checks map[service.Name]check
	wanted map[netip.AddrPort]answer
}

// check is a service with a health port.
type check struct {
	service *service.Service
	local   int
}

func newIndex(nodePorts service.NodePortAddresses, v6 bool) *index {
	return &index{nodePorts: nodePorts, v6: v6, checks: map[service.Name]check{}}
}

// update brings the index to a snapshot whose program is in force but for the
// refused parts; false means that nothing is answered otherwise than before.
func (x *index) update(s service.Snapshot, refused map[string]error) bool {
	before := x.snapshot
	concerned := before.Node != s.Node || len(refused) > 0 || len(x.refused) > 0
	if before.Node == nil || before.Node.Name != s.Node.Name {
		before = service.Snapshot{} // Every count is about another node.
		clear(x.checks)
	}
	for c := range treap.Diff(before.Services, s.Services) {
		_, had := x.checks[c.Key]
		delete(x.checks, c.Key)
		has := c.HasNew && c.New.HealthCheckNodePort != 0 && c.New.InFamily(x.v6)
		if has {
			x.checks[c.Key] = check{c.New, localEndpoints(c.New, s.Node, x.v6)}
		}
		concerned = concerned || had || has
	}
	x.snapshot, x.refused = s, refused
	if !concerned {
		return false
	}
	wanted := x.build()
	changed := !maps.Equal(wanted, x.wanted)
	x.wanted = wanted
	return changed
}

func (x *index) build() map[netip.AddrPort]answer {
	owners := map[uint16]check{}
	for _, c := range x.checks {
		port := c.service.HealthCheckNodePort
		if other, taken := owners[port]; !taken || service.CompareAge(c.service, other.service) < 0 {
			owners[port] = c
		}
	}
	wanted := map[netip.AddrPort]answer{}
	for _, addr := range listenAddresses(x.nodePorts, x.snapshot.Node, x.v6) {
		for port, c := range owners {
			a := answer{c.service.Name, c.local}
			if x.refused[string(a.service)] != nil {
				// The kernel has no rules for it: nothing would get through.
				a.local = 0
			}
			wanted[netip.AddrPortFrom(addr, port)] = a
		}
	}
	return wanted
}

// listenAddresses are those of the node that serve node ports; the unspecified
// address stands for all of its family. Link-local ones of IPv6 are left out,
// which mean nothing without an interface.
func listenAddresses(nodePorts service.NodePortAddresses, node *service.Node, v6 bool) []netip.Addr {
	addrs, all := nodePorts.On(node, v6)
	if all && v6 {
		return []netip.Addr{netip.IPv6Unspecified()}
	}
	if all {
		return []netip.Addr{netip.IPv4Unspecified()}
	}
	var list []netip.Addr
	for _, a := range addrs {
		if !v6 || !a.IsLinkLocalUnicast() {
			list = append(list, a)
		}
	}
	return list
}

// localEndpoints counts addresses, not endpoints: a pod behind several ports is
// one target of the load balancer's. A terminating endpoint does not count
// although it may still get traffic: the load balancer is to go elsewhere.
func localEndpoints(s *service.Service, node *service.Node, v6 bool) int {
	local := map[netip.Addr]struct{}{}
	for i := range s.Ports {
		for j := range s.Ports[i].Endpoints {
			e := &s.Ports[i].Endpoints[j]
			if a := e.Addr.Addr(); e.Ready && e.Node == node.Name && a.Is6() == v6 {
				local[a] = struct{}{}
			}
		}
	}
	return len(local)
}
