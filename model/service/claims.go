package service

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
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

// claimant is a service as it was set.
type claimant struct {
	// service is nil once the service is gone, or makes other claims as another claimant.
	service *Service
	// asks is the part of the service that makes claims.
	asks *Service
	wall *wall
}

// wall is the firewall of a service, the same one in all of its versions that have an equal one. So decisions compare
// pointers, and not each of the service's addresses at each of them.
type wall struct {
	by Name
	Firewall
}

// claimant makes a claimant of the service, which was another one before, or nil.
func (s *Service) claimant(before *claimant, limit int) *claimant {
	by := &claimant{s, s.claimable(limit), nil}
	if before != nil && before.wall.equal(s.Firewall()) {
		by.wall = before.wall
	} else {
		by.wall = &wall{s.Name, s.Firewall()}
	}
	return by
}

// right is the right of a service to its claims at one address, or to one number of the node.
type right struct {
	by   *claimant // nil for nobody's
	rank rank
	// restricts says that the service's source ranges restrict the address.
	restricts bool
}

func (r right) name() Name { return r.by.service.Name }

func (r right) retained() bool { return r.by.service.whollyRetained() }

// Compare sorts the best right first: by rank, age and name, and the rights of retained services after all others.
func (r right) Compare(o right) int {
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

// better returns the better one of two rights.
func (r right) better(o right) right {
	if r.by == nil || o.by != nil && o.Compare(r) < 0 {
		return o
	}
	return r
}

// claims yields the claims that the right is to, at an address or a number of the node.
func (r right) claims(at Claim, yield func(Claim)) {
	if at.Protocol != 0 || r.rank == asClusterIP {
		yield(at)
	}
	if at.Protocol == 0 {
		for i := range r.by.asks.Ports {
			yield(Claim{at.Addr, r.by.asks.Ports[i].Protocol, r.by.asks.Ports[i].Port})
		}
	}
}

// group returns what is decided together with the claim: all claims of its address, or the number of the node alone.
func (c Claim) group() Claim {
	if c.Addr.IsUnspecified() {
		return c
	}
	return Claim{Addr: c.Addr}
}

// groups yields the addresses and the numbers of the node that the service asks for, with its right as far as the
// service says it. One may come several times.
func (s *Service) groups(yield func(at Claim, r right)) {
	for _, family := range ip.Families() {
		if !s.InFamily(family) {
			continue
		}
		addresses := func(list []netip.Addr, r right) {
			for _, a := range list {
				if family.Has(a) {
					yield(Claim{Addr: a}, r)
				}
			}
		}
		_, all := s.Sources.Of(family)
		addresses(s.ClusterIPs, right{rank: asClusterIP})
		addresses(s.LoadBalancerIPs, right{rank: asLoadBalancer, restricts: !all})
		addresses(s.ExternalIPs, right{rank: asExternalIP})
		for i := range s.Ports {
			if p := &s.Ports[i]; p.NodePort != 0 {
				yield(NodePortClaim(family, p), right{rank: asExternalIP})
			}
		}
		if s.HealthCheckNodePort != 0 {
			yield(s.HealthCheckClaim(family), right{rank: asExternalIP})
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
