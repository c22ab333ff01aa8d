package claims

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// rank says how good a service's right to a claim is, by the field that has the address. The lowest rank is the best.
// rightsOf lists the fields in this order, and explain says it in words (whyOwner).
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
	service *service.Service
	// claimable is the part of the service that makes claims.
	claimable *service.Service
	// firewall is the service's, nil if it restricts nothing. It stays the same one while it is equal: so decisions
	// compare pointers, and not each of the service's addresses at each of them.
	firewall *service.Firewall
}

// newClaimant makes a claimant of a service, of which claimable makes the claims. It was another one before, or nil.
func newClaimant(s, claimable *service.Service, before *claimant) *claimant {
	by := &claimant{service: s, claimable: claimable}
	if f := claimable.Firewall(); f.Sources != nil && len(f.Addresses) > 0 {
		if by.firewall = &f; before != nil && before.firewall != nil && before.firewall.Equal(f) {
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

func (r right) name() service.Name { return r.by.service.Name }

func (r right) retained() bool { return r.by.service.Retained == service.RetainedService }

// Compare sorts the best right first: by rank, age and name, and the rights of retained services after all others.
// Nobody's right comes before all.
func (r right) Compare(o right) int {
	if c := cmp.Compare(r.order(), o.order()); c != 0 || r.by == nil {
		return c
	}
	if c := r.by.service.Created.Compare(o.by.service.Created); c != 0 {
		return c
	}
	return cmp.Compare(r.name(), o.name())
}

// order is that of ranks, with nobody's before them and those of retained services after them.
func (r right) order() rank {
	switch {
	case r.by == nil:
		return 0
	case r.retained():
		return 1 + asExternalIP + 1 + r.rank
	}
	return 1 + r.rank
}

// ranges are those of a protocol that the service asks for; none are nobody's.
func (r right) ranges(p service.Protocol) service.PortRanges {
	if r.by == nil {
		return ""
	}
	for i := range r.by.service.Ports {
		if port := &r.by.service.Ports[i]; port.Protocol == p && port.IsRange() {
			return port.Ranges
		}
	}
	return ""
}

// socket is a protocol and a port. The port is 0 for ranges, and both are for the whole address.
type socket struct {
	protocol service.Protocol
	port     uint16
}

func socketOf(c service.Claim) socket { return socket{c.Protocol, c.Port} }

// claim is the claim to it at an address.
func (s socket) claim(a netip.Addr) service.Claim {
	return service.Claim{Addr: a, Protocol: s.protocol, Port: s.port}
}

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

// eachClaim yields each address that a service asks for once, with its right, as far as the service says it, and the
// protocols and ports, sorted. The unspecified address of a family stands for the numbers of the node.
func eachClaim(s *service.Service, yield func(a netip.Addr, r right, at []socket)) {
	var sockets []socket
	add := func(p service.Protocol, port uint16) { sockets = append(sockets, socket{p, port}) }
	at := func() []socket {
		slices.SortFunc(sockets, socket.compare)
		return slices.Compact(sockets)
	}
	add(0, 0)
	for i := range s.Ports {
		add(s.Ports[i].Protocol, s.Ports[i].Port)
	}
	all := at()
	for a, r := range rightsOf(s) {
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
		add(service.TCP, s.HealthCheckNodePort)
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

// rightsOf yields each of a service's addresses with the best right to it. A cluster IP may be a load balancer's
// address, too, which source ranges restrict.
func rightsOf(s *service.Service) iter.Seq2[netip.Addr, right] {
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

// Same says whether two versions of a service make the same claims by the same rights. Mostly only endpoints have
// changed.
func Same(s, o *service.Service) bool {
	return sameAge(s, o) &&
		s.HealthCheckNodePort == o.HealthCheckNodePort && slices.Equal(s.ClusterIPs, o.ClusterIPs) &&
		s.Firewall().Equal(o.Firewall()) && slices.Equal(s.ExternalIPs, o.ExternalIPs) &&
		slices.EqualFunc(s.Ports, o.Ports, func(a, b service.Port) bool {
			return a.Protocol == b.Protocol && a.Port == b.Port && a.NodePort == b.NodePort && a.Ranges == b.Ranges
		})
}

// sameAge says whether no right differs by the age of its service.
func sameAge(s, o *service.Service) bool {
	return s.Created.Equal(o.Created) && (s.Retained == service.RetainedService) == (o.Retained == service.RetainedService)
}

// ConflictsBy returns the claims of a service that owner gives to others, or to none; nil if there are none. It is for
// snapshots that no Book has decided.
func ConflictsBy(s *service.Service, owner func(service.Claim) service.Name) *service.Conflicts {
	var edits []treap.Edit[service.ClaimKey, service.Protection]
	left := service.MaxClaims // tables that somebody else wrote may have more
	eachClaim(s, func(a netip.Addr, _ right, sockets []socket) {
		sockets = sockets[:min(len(sockets), left)]
		left -= len(sockets)
		for _, at := range sockets {
			if c := at.claim(a); owner(c) != s.Name {
				edits = append(edits, treap.Edit[service.ClaimKey, service.Protection]{Key: c.Key()})
			}
		}
	})
	var none *service.Conflicts
	slices.SortFunc(edits, func(a, b treap.Edit[service.ClaimKey, service.Protection]) int {
		return cmp.Compare(a.Key, b.Key)
	})
	return none.Edit(edits)
}
