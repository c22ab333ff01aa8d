package service

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/ip"
)

// DefaultMaxElements is the default bound on the elements that one service may have in
// the node's tables. With ten ports, a cluster IP, node ports and ten more addresses a
// service may have 2,000 endpoints.
const DefaultMaxElements = 1 << 18

// maxClaims is how many claims on addresses and node ports one service may make,
// whatever its endpoints. A claim that two services make costs more than an element
// does. A hundred addresses may have a hundred ports each.
const maxClaims = 1 << 14

// LeftOut counts what a service asks for beyond the bound on one service.
type LeftOut struct {
	// Limit is the bound, in elements. It is 0 if the service reached maxClaims.
	Limit int
	// All, if not 0, is the bound on all services: older services have used it up, or a quarter of it in the namespace.
	All int
	// ExternalIPs and LoadBalancerIPs count addresses. NodePorts and Ports count the
	// service's ports; a port of Ports is left out with its node port and endpoints.
	ExternalIPs, LoadBalancerIPs, NodePorts, Ports int
	// SlotLimit, if not 0, is the service's: its lists of endpoints have fewer slots than it asks for.
	SlotLimit int
}

// String reads like "left out: 90 externalIPs: the service would take more than
// 262144 elements".
func (l *LeftOut) String() string {
	var parts []string
	for _, p := range []struct {
		n         int
		one, many string
	}{
		{l.Ports, "port", "ports"}, {l.NodePorts, "node port", "node ports"},
		{l.LoadBalancerIPs, "load balancer address", "load balancer addresses"},
		{l.ExternalIPs, "external IP", "external IPs"},
	} {
		switch {
		case p.n == 1:
			parts = append(parts, "1 "+p.one)
		case p.n > 1:
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.many))
		}
	}
	reason := fmt.Sprintf("the service would take more than %d elements", l.Limit)
	switch {
	case l.Limit == 0:
		reason = fmt.Sprintf("the service asks for more than %d addresses and ports", maxClaims)
	case l.All != 0:
		reason = fmt.Sprintf("there is room for %d elements beyond %d of each service, and for %d in one namespace, the "+
			"oldest services first",
			l.All, UncountedElements, shareOf(l.All))
	}
	if len(parts) == 0 {
		return fmt.Sprintf("%s: %s", l.slots(), reason)
	}
	text := fmt.Sprintf("left out: %s: %s", strings.Join(parts, ", "), reason)
	if l.SlotLimit != 0 {
		text += "; " + l.slots()
	}
	return text
}

// slots says what fewer slots mean.
func (l *LeftOut) slots() string {
	if l.SlotLimit == noSlots {
		return "weights of endpoints and hashes of clients do not count, but for the weight 0"
	}
	return fmt.Sprintf("weights of endpoints and hashes of clients count with %d slots for each list of endpoints",
		l.SlotLimit)
}

// bounded returns the part of the service that fits the limit, and a count of the rest.
// If all fits, it returns the service itself and nil. It goes through cluster IPs port
// by port, then node ports, load balancers' addresses and external IPs, each in the
// order of the object. From the first that does not fit, it leaves out all.
//
// The cost does not depend on the node. Each port costs one element for each address
// and node port, and its endpoints of the family. The endpoints count twice for
// external traffic with policy Local, which takes two lists. Behind source ranges each port costs one more for each pair
// of load balancer's addresses of a family (Firewall.Itself).
func (s *Service) bounded(limit int) (*Service, *LeftOut) {
	if !s.asksForSlots() {
		return s.boundedBy(limit, (*Port).endpoints)
	}
	fitted := s.fitted(limit)
	served, left := fitted.boundedBy(limit, fitted.Slots)
	if fitted != s {
		if left == nil {
			left = &LeftOut{Limit: s.slotRoom(limit)}
		}
		left.SlotLimit = fitted.SlotLimit
	}
	return served, left
}

// boundedBy does it with the size of a list of a port's endpoints of a family.
func (s *Service) boundedBy(limit int, size func(*Port, ip.Family) int) (*Service, *LeftOut) {
	most := 0
	for i := range s.Ports {
		most += 1 + 2*(size(&s.Ports[i], ip.V4)+size(&s.Ports[i], ip.V6))
	}
	// Two for the node ports of both families, and one for each whole cluster IP.
	ways := 2 + len(s.ClusterIPs) + len(s.LoadBalancerIPs) + len(s.ExternalIPs)
	if most*ways+len(s.ClusterIPs)+s.pairs() <= limit && len(s.Ports)*ways+len(s.ClusterIPs) <= maxClaims {
		return s, nil
	}
	b := budget{left: limit - len(s.ClusterIPs), claims: maxClaims - len(s.ClusterIPs), service: s, size: size}
	served, out := *s, LeftOut{Limit: limit}
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

// claimable returns the part of the service that would fit the limit without
// endpoints. The service makes claims for this part. All of bounded is in it.
func (s *Service) claimable(limit int) *Service {
	if n := len(s.ClusterIPs) + len(s.Ports)*(2+len(s.ClusterIPs)+len(s.LoadBalancerIPs)+
		len(s.ExternalIPs)); n <= maxClaims && n+s.pairs() <= limit {
		return s
	}
	bare := *s
	bare.Ports = slices.Clone(s.Ports)
	for i := range bare.Ports {
		bare.Ports[i].Endpoints = Endpoints{}
	}
	claimable, _ := bare.boundedBy(limit, (*Port).endpoints)
	return claimable
}

// budget is the rest of a limit on the way through a service.
type budget struct {
	service *Service
	// size is that of a list of a port's endpoints of a family.
	size func(*Port, ip.Family) int
	// left is a number of elements, claims the rest of maxClaims.
	left, claims int
	// exhausted says that something did not fit, tooManyClaims that it did not fit
	// maxClaims.
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
func (b *budget) nodePort(p *Port) int {
	cost := 0
	for _, family := range ip.Families() {
		if b.service.InFamily(family) {
			cost += b.externalCost(p, family)
		}
	}
	return cost
}

// externalCost is the cost of a port at one external address of a family.
func (b *budget) externalCost(p *Port, family ip.Family) int {
	n := b.size(p, family)
	if b.service.ExternalPolicy == Local {
		n *= 2
	}
	return 1 + n
}

// priceAddresses sums up the cost of one external address with these ports.
func (b *budget) priceAddresses(ports []Port) {
	b.served = len(ports)
	for i := range ports {
		for _, family := range ip.Families() {
			*b.external.Of(family) += b.externalCost(&ports[i], family)
		}
	}
}

// addresses spends the cost of the addresses, which are behind source ranges, and returns those that fit. An address
// that is also among others costs nothing but its pairs.
func (b *budget) addresses(list, others []netip.Addr, sources *Sources) []netip.Addr {
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
func (s *Service) pairs() int {
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

// endpoints counts the endpoints of one family in all states. IPv4 sorts first.
func (p *Port) endpoints(family ip.Family) int {
	v4 := 0
	for chunk := range p.Endpoints.Chunks() {
		n, _ := slices.BinarySearchFunc(chunk, true, func(e Endpoint, _ bool) int {
			if e.Addr.Addr().Is6() {
				return 1
			}
			return -1
		})
		if v4 += n; n < len(chunk) {
			break
		}
	}
	if family == ip.V6 {
		return p.Endpoints.Len() - v4
	}
	return v4
}
