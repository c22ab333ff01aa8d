package service

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/sorted"
)

// rank says how good a service's right to a claim is, by the field that has the
// address. The lowest rank is the best.
type rank byte

const (
	// asClusterIP: the address is the service's cluster IP. The API server gives it
	// to no other service.
	asClusterIP rank = iota
	// asLoadBalancer: a controller gave the service the address (status.loadBalancer).
	asLoadBalancer
	// asExternalIP: the author of the Service wrote the address (spec.externalIPs).
	// Node ports and health check node ports have this rank too.
	asExternalIP
)

// claimant is a service as it was set. With other claims it is another claimant.
type claimant struct {
	service *Service
	// asks is the part of the service that makes claims.
	asks *Service
	// firewall is the service's, nil if it restricts nothing. It stays the same one while it is equal: so decisions
	// compare pointers, and not each of the service's addresses at each of them.
	firewall *Firewall
}

// claimant makes a claimant of the service, which was another one before, or nil.
func (s *Service) claimant(before *claimant, limit int) *claimant {
	by := &claimant{service: s, asks: s.claimable(limit)}
	if f := by.asks.Firewall(); f.Sources != nil && len(f.Addresses) > 0 {
		if by.firewall = &f; before != nil && before.firewall != nil && before.firewall.equal(f) {
			by.firewall = before.firewall
		}
	}
	return by
}

// right is the right of a service to its claims at one address, or to numbers of the node.
type right struct {
	by   *claimant // nil for nobody's
	rank rank
	// restricts says that the service's source ranges restrict the address.
	restricts bool
}

func (r right) name() Name { return r.by.service.Name }

func (r right) retained() bool { return r.by.service.whollyRetained() }

// Compare sorts the best right first: by rank, age and name, and the rights of retained services after all others.
// Nobody's right comes before all.
func (r right) Compare(o right) int {
	if r.by == nil || o.by == nil {
		return compareBools(r.by != nil, o.by != nil)
	}
	if retained := r.retained(); retained != o.retained() {
		return compareBools(retained, !retained)
	}
	if r.rank != o.rank {
		return cmp.Compare(r.rank, o.rank)
	}
	if c := r.by.service.Created.Compare(o.by.service.Created); c != 0 {
		return c
	}
	return cmp.Compare(r.name(), o.name())
}

// ranges are those of a protocol that the service asks for; none are nobody's.
func (r right) ranges(p Protocol) PortRanges {
	if r.by == nil {
		return ""
	}
	return r.by.service.rangesOf(p)
}

// better returns the better one of two rights.
func (r right) better(o right) right {
	if r.by == nil || o.by != nil && o.Compare(r) < 0 {
		return o
	}
	return r
}

// socket is a protocol and a port. The port is 0 for ranges, and both are for the whole address.
type socket struct {
	protocol Protocol
	port     uint16
}

func (c Claim) socket() socket { return socket{c.Protocol, c.Port} }

func (s socket) compare(o socket) int {
	if c := cmp.Compare(s.protocol, o.protocol); c != 0 {
		return c
	}
	return cmp.Compare(s.port, o.port)
}

// isRange says whether it stands for ranges.
func (s socket) isRange() bool { return s.protocol != 0 && s.port == 0 }

// claimed is a claim at one address, or to a number of the node.
type claimed struct {
	at socket
	right
}

// Compare sorts by protocol and port, and puts the best right to each first.
func (c claimed) Compare(o claimed) int {
	if order := c.at.compare(o.at); order != 0 {
		return order
	}
	return c.right.Compare(o.right)
}

// claimList has the claims at one address.
type claimList = sorted.List[claimed]

// claimsTo yields the claims to a protocol and port, the best first.
func claimsTo(list claimList, at socket) iter.Seq[claimed] {
	return func(yield func(claimed) bool) {
		for one := range list.From(claimed{at: at}) {
			if one.at != at || !yield(one) {
				return
			}
		}
	}
}

// bestTo returns the best right to a protocol and port; nobody's if nobody claims it.
func bestTo(list claimList, at socket) right {
	for one := range claimsTo(list, at) {
		return one.right
	}
	return right{}
}

// uncontested says that at most one service claims something at an address, which is its cluster IP. Then it has all
// that it claims.
func uncontested(list claimList) bool {
	few := list.Few()
	return !list.Long() && !slices.ContainsFunc(few, func(one claimed) bool {
		return one.rank != asClusterIP || one.by != few[0].by
	})
}

// claims yields each address that the service asks for once, with its right, as far as the service says it, and the
// protocols and ports, sorted. The unspecified address of a family stands for the numbers of the node.
func (s *Service) claims(yield func(a netip.Addr, r right, at []socket)) {
	var sockets []socket
	add := func(p Protocol, port uint16) { sockets = append(sockets, socket{p, port}) }
	at := func() []socket {
		slices.SortFunc(sockets, socket.compare)
		return slices.Compact(sockets)
	}
	add(0, 0)
	for i := range s.Ports {
		add(s.Ports[i].Protocol, s.Ports[i].Port)
	}
	all := at()
	for a, r := range s.rights() {
		if r.rank == asClusterIP {
			yield(a, r, all)
		} else {
			yield(a, r, all[1:]) // without the whole address, which sorts first
		}
	}
	sockets = nil
	for i := range s.Ports {
		if s.Ports[i].NodePort != 0 {
			add(s.Ports[i].Protocol, s.Ports[i].NodePort)
		}
	}
	if s.HealthCheckNodePort != 0 {
		add(TCP, s.HealthCheckNodePort)
	}
	if all = at(); len(all) == 0 {
		return
	}
	for _, family := range ip.Families() {
		if s.InFamily(family) {
			yield(family.Unspecified(), right{rank: asExternalIP}, all)
		}
	}
}

// rights yields each of the service's addresses with the best right to it. A cluster IP may be a load balancer's
// address, too, which source ranges restrict.
func (s *Service) rights() iter.Seq2[netip.Addr, right] {
	type asked struct {
		addr netip.Addr
		right
	}
	list := make([]asked, 0, len(s.ClusterIPs)+len(s.LoadBalancerIPs)+len(s.ExternalIPs))
	for field, addresses := range [][]netip.Addr{s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs} {
		for _, a := range addresses {
			if family := ip.Of(a); s.InFamily(family) {
				r := right{rank: rank(field)}
				if _, all := s.Sources.Of(family); r.rank == asLoadBalancer {
					r.restricts = !all
				}
				list = append(list, asked{a, r})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b asked) int { return a.addr.Compare(b.addr) })
	return func(yield func(netip.Addr, right) bool) {
		for i := 0; i < len(list); {
			one := list[i]
			for i++; i < len(list) && list[i].addr == one.addr; i++ {
				one.restricts = one.restricts || list[i].restricts
			}
			if !yield(one.addr, one.right) {
				return
			}
		}
	}
}

// sameClaims says whether two versions of a service make the same claims by the same
// rights. Mostly only endpoints have changed.
func (s *Service) sameClaims(o *Service) bool {
	return s.Created.Equal(o.Created) && s.whollyRetained() == o.whollyRetained() &&
		s.HealthCheckNodePort == o.HealthCheckNodePort && slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		s.Firewall().equal(o.Firewall()) && slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.EqualFunc(s.Ports, o.Ports, func(a, b Port) bool {
			return a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort && a.Ranges == b.Ranges
		})
}
