package service

import (
	"cmp"
	"encoding/binary"
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
	ranks
)

// rankedClaim is a claim of a service with its rank.
type rankedClaim struct {
	claim Claim
	rank  rank
	// restricted says that the service's source ranges restrict the claim.
	restricted bool
}

// claims lists the service's claims, sorted, each once with its best rank. A service
// that asks for too much makes the first of its claims (claimable), and no service none.
func (s *Service) claims(limit int) []rankedClaim {
	if s == nil {
		return nil
	}
	s = s.claimable(limit)
	n := len(s.ClusterIPs) + len(s.Ports)*(1+len(s.ClusterIPs)+len(s.LoadBalancerIPs)+len(s.ExternalIPs))
	list := make([]rankedClaim, 0, n)
	add := func(c rankedClaim) { list = append(list, c) }
	for _, a := range s.ClusterIPs {
		add(rankedClaim{claim: Claim{Addr: a}})
	}
	s.addressClaims(s.ClusterIPs, asClusterIP, add)
	for _, family := range ip.Families() {
		if !s.InFamily(family) {
			continue
		}
		for i := range s.Ports {
			if p := &s.Ports[i]; p.NodePort != 0 {
				add(rankedClaim{claim: NodePortClaim(family, p), rank: asExternalIP})
			}
		}
		if s.HealthCheckNodePort != 0 {
			add(rankedClaim{claim: s.HealthCheckClaim(family), rank: asExternalIP})
		}
	}
	s.addressClaims(s.LoadBalancerIPs, asLoadBalancer, add)
	s.addressClaims(s.ExternalIPs, asExternalIP, add)
	slices.SortFunc(list, func(a, b rankedClaim) int {
		return cmp.Or(compareClaims(a.claim, b.claim), cmp.Compare(a.rank, b.rank))
	})
	// A cluster IP may be a load balancer's address, too, which source ranges restrict.
	for i := len(list) - 1; i > 0; i-- {
		list[i-1].restricted = list[i-1].restricted || list[i].restricted && list[i-1].claim == list[i].claim
	}
	return slices.CompactFunc(list, func(a, b rankedClaim) bool { return a.claim == b.claim })
}

// addressClaims adds the claims on addresses of one rank.
func (s *Service) addressClaims(addrs []netip.Addr, r rank, add func(rankedClaim)) {
	for _, a := range addrs {
		if !s.InFamily(ip.Of(a)) {
			continue
		}
		_, all := s.Sources.Of(ip.Of(a))
		for i := range s.Ports {
			p := &s.Ports[i]
			add(rankedClaim{Claim{a, p.Protocol, p.Port}, r, r == asLoadBalancer && !all})
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

// right is a service's right to a claim: rank, age and name, in a form that sorts the
// best right first. The rights of retained services come after all others. A right also
// says whether the service's source ranges restrict the claim. A service has few
// different rights to all of its claims.
type right string

// retainedRight is a bit of the first byte, beside the rank.
const retainedRight = 0x80

// The offsets of the parts of a right.
const (
	rightCreated = 1
	rightName    = rightCreated + 8 + 4
)

func (s *Service) right(r rank, restricts bool) right {
	b := make([]byte, 0, rightName+len(s.Name)+1)
	if s.whollyRetained() {
		r |= retainedRight
	}
	b = append(b, byte(r))
	// With the sign bit flipped, negative numbers sort before positive ones.
	b = binary.BigEndian.AppendUint64(b, uint64(s.Created.Unix())^1<<63)
	b = binary.BigEndian.AppendUint32(b, uint32(s.Created.Nanosecond()))
	b = append(b, s.Name...)
	if restricts {
		b = append(b, 0) // a byte that is in no name, and sorts before all others
	}
	return right(b)
}

func (r right) rank() rank { return rank(r[0] &^ retainedRight) }

func (r right) retained() bool { return r[0]&retainedRight != 0 }

func (r right) restricts() bool { return r[len(r)-1] == 0 }

func (r right) name() Name {
	if r.restricts() {
		r = r[:len(r)-1]
	}
	return Name(r[rightName:])
}

// rights makes the rights of one service when they are needed.
type rights struct {
	service *Service
	made    [ranks][2]right
}

func (r *rights) to(k rank, restricts bool) right {
	at := &r.made[k][0]
	if restricts {
		at = &r.made[k][1]
	}
	if *at == "" {
		*at = r.service.right(k, restricts)
	}
	return *at
}
