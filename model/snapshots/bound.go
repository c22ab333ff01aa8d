package snapshots

import (
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// bounded returns the part of a service that fits the limit, and a count of the rest.
// If all fits, it returns the service itself and nil. It goes through cluster IPs port
// by port, then node ports, load balancers' addresses and external IPs, each in the
// order of the object. From the first that does not fit, it leaves out all.
//
// The cost does not depend on the node. Each port costs one element for each address
// and node port, and its endpoints of the family. The endpoints count twice for
// external traffic with policy Local, which takes two lists. Behind source ranges each port costs one more for each
// pair of load balancer's addresses of a family (Firewall.Itself).
func bounded(s *service.Service, limit int) (*service.Service, *service.LeftOut) {
	if !asksForSlots(s) {
		return boundedBy(s, limit, (*service.Port).Count)
	}
	fitted := fitted(s, limit)
	served, left := boundedBy(fitted, limit, slotsOf(fitted))
	if fitted != s {
		if left == nil {
			left = &service.LeftOut{Limit: slotRoom(s, limit)}
		}
		left.SlotLimit = fitted.SlotLimit
	}
	return served, left
}

// sizeOf is the size of a list of a port's endpoints of a family.
type sizeOf func(*service.Port, ip.Family) int

// boundedBy does it with lists of that size.
func boundedBy(s *service.Service, limit int, size sizeOf) (*service.Service, *service.LeftOut) {
	// Two for the node ports of both families, and one for each whole cluster IP.
	ways := 2 + len(s.ClusterIPs) + len(s.LoadBalancerIPs) + len(s.ExternalIPs)
	if elementsOf(s, size) <= limit && len(s.Ports)*ways+len(s.ClusterIPs) <= service.MaxClaims {
		return s, nil
	}
	b := budget{left: limit - len(s.ClusterIPs), claims: service.MaxClaims - len(s.ClusterIPs), service: s, size: size}
	served, out := *s, service.LeftOut{Limit: limit}
	served.Ports = slices.Clone(s.Ports)
	served.Ports = served.Ports[:b.ports()]
	out.Ports = len(s.Ports) - len(served.Ports)
	for i := range served.Ports {
		if p := &served.Ports[i]; p.NodePort != 0 && !b.spend(b.nodePort(p), len(s.ClusterIPs)) {
			p.NodePort = 0
			out.NodePorts++
		}
	}
	b.priceAddresses(served.Ports)
	served.LoadBalancerIPs = b.addresses(s.LoadBalancerIPs, s.ClusterIPs, s.Sources)
	served.ExternalIPs = b.addresses(s.ExternalIPs, slices.Concat(s.ClusterIPs, served.LoadBalancerIPs), nil)
	out.LoadBalancerIPs = len(s.LoadBalancerIPs) - len(served.LoadBalancerIPs)
	out.ExternalIPs = len(s.ExternalIPs) - len(served.ExternalIPs)
	if !b.exhausted {
		return s, nil
	}
	if b.tooManyClaims {
		out.Limit = 0
	}
	return &served, &out
}

// claimable returns the part of a service that would fit the limit without
// endpoints. The service makes claims for this part. All of bounded is in it.
func claimable(s *service.Service, limit int) *service.Service {
	part, _ := boundedBy(s, limit, func(*service.Port, ip.Family) int { return 0 })
	return part
}

// budget is the rest of a limit on the way through a service.
type budget struct {
	service *service.Service
	size    sizeOf
	// left is a number of elements, claims the rest of MaxClaims.
	left, claims int
	// exhausted says that something did not fit, tooManyClaims that it did not fit
	// MaxClaims.
	exhausted, tooManyClaims bool
	// external is the cost of an external address, with so many ports.
	external ip.PerFamily[int]
	served   int
}

// spend takes a number of elements and claims from the budget. It returns false if
// they do not fit, or if something before did not.
func (b *budget) spend(cost, claims int) bool {
	if !b.exhausted && (cost > b.left || claims > b.claims) {
		b.exhausted, b.tooManyClaims = true, cost <= b.left
	}
	if !b.exhausted {
		b.left, b.claims = b.left-cost, b.claims-claims
	}
	return !b.exhausted
}

// ports spends the cost of ports at cluster IPs. It returns how many ports fit.
func (b *budget) ports() int {
	for i := range b.service.Ports {
		cost := 0
		for _, a := range b.service.ClusterIPs {
			cost += 1 + b.size(&b.service.Ports[i], ip.Of(a))
		}
		if !b.spend(cost, len(b.service.ClusterIPs)) {
			return i
		}
	}
	return len(b.service.Ports)
}

// nodePort is the cost of a port's node port, in both families.
func (b *budget) nodePort(p *service.Port) int {
	cost := 0
	for _, family := range ip.Families() {
		if b.service.InFamily(family) {
			cost += b.externalCost(p, family)
		}
	}
	return cost
}

// externalCost is the cost of a port at one external address of a family.
func (b *budget) externalCost(p *service.Port, family ip.Family) int {
	n := b.size(p, family)
	if b.service.ExternalPolicy == service.Local {
		n *= 2
	}
	return 1 + n
}

// priceAddresses sums up the cost of one external address with these ports.
func (b *budget) priceAddresses(ports []service.Port) {
	b.served = len(ports)
	for i := range ports {
		for _, family := range ip.Families() {
			*b.external.Of(family) += b.externalCost(&ports[i], family)
		}
	}
}

// addresses spends the cost of the addresses, which are behind source ranges, and returns those that fit. An address
// that is also among others costs nothing but its pairs.
func (b *budget) addresses(list, others []netip.Addr, sources *service.Sources) []netip.Addr {
	counted := make(map[netip.Addr]bool, len(others))
	var before ip.PerFamily[int]
	for _, a := range others {
		counted[a] = true
	}
	for i, a := range list {
		cost, claims := *b.external.Of(ip.Of(a)), len(b.service.Ports)
		if counted[a] || !b.service.InFamily(ip.Of(a)) {
			cost, claims = 0, 0
		}
		if _, all := sources.Of(ip.Of(a)); !all && b.service.InFamily(ip.Of(a)) {
			n := before.Of(ip.Of(a))
			cost += b.served * (2**n + 1)
			*n++
		}
		if !b.spend(cost, claims) {
			return list[:i:i]
		}
	}
	return list
}

// pairs is how many elements the service needs, at most, so that its load balancer's addresses may reach each other.
func pairs(s *service.Service) int {
	n := 0
	for _, family := range ip.Families() {
		if _, all := s.Sources.Of(family); !all && s.InFamily(family) {
			in := 0
			for _, a := range s.LoadBalancerIPs {
				if family.Has(a) {
					in++
				}
			}
			n += in * in
		}
	}
	return n * len(s.Ports)
}

// asksForSlots says whether a list of endpoints may have more slots than endpoints.
func asksForSlots(s *service.Service) bool {
	return s.Options.Balance != service.ByRandom ||
		slices.ContainsFunc(s.Ports, func(p service.Port) bool { return p.Weighted() })
}

// slotShare is the part of the limit on one service that its slots may fill, so that a change of all of them, such as
// of its balance, delays others less than one of everything: 65,536 elements cost 0.15 s of CPU time.
const slotShare = 4

// slotRoom is how many elements the service may have with its slots: without them it may need more.
func slotRoom(s *service.Service, limit int) int {
	return max(limit/slotShare, min(limit, elementsOf(s, (*service.Port).Count)))
}

// fitted returns the service with as many slots as fit slotRoom, at most those that it asks for. It is the service
// itself if they all fit.
func fitted(s *service.Service, limit int) *service.Service {
	room := slotRoom(s, limit)
	if s.SlotLimit == service.NoSlots || elementsOf(s, slotsOf(s)) <= room {
		return s
	}
	fewer := *s
	for _, size := range share.Smaller() {
		fewer.SlotLimit = size
		if elementsOf(&fewer, slotsOf(&fewer)) <= room {
			return &fewer
		}
	}
	fewer.SlotLimit = service.NoSlots
	return &fewer
}

// slotsOf is the size of lists with the slots that a service has.
func slotsOf(s *service.Service) sizeOf {
	return func(p *service.Port, family ip.Family) int { return share.MostSlots(s, p, family) }
}
