package service

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/treap"
)

// Snapshot has all services as they should be served at one moment. It never changes.
// Two snapshots share what is equal in them.
type Snapshot struct {
	// Node is replaced by a new pointer whenever any part of it changes.
	Node     *Node
	Services treap.Map[Name, *Service]
	// Others are the services that another proxy serves. They have only what claims follow from, as far as it fits the
	// bound on one service. The node's rules do not serve them, and they take no claim from Services.
	Others treap.Map[Name, *Service]
	// ServiceCIDRs are the ranges of cluster IPs, by their text. Packets to an address
	// in one that no service has are dropped.
	ServiceCIDRs treap.Map[string, netip.Prefix]
	// Conflicts has, for each service that does not get all of its claims, those that it
	// does not get.
	Conflicts treap.Map[Name, *Conflicts]
	// Owners names the owners of claims that several services make.
	Owners Owners
	// Restrictions has, for each service, its claims that the source ranges of other
	// services restrict.
	Restrictions treap.Map[Name, *Restrictions]
	// LeftOut says, for each service beyond the bound on one service, how much of it is
	// not in Services.
	LeftOut treap.Map[Name, *LeftOut]
	// WithoutAffinity says why a service that asks for session affinity has no
	// AffinityTimeout in Services.
	WithoutAffinity treap.Map[Name, *WithoutAffinity]
	// ClosedSources says why a service with source ranges has Sources in Services that
	// let in nobody.
	ClosedSources treap.Map[Name, *ClosedSources]
	// UnservedRanges says why a service that asks for port ranges has none in Services.
	UnservedRanges treap.Map[Name, *UnservedRanges]
	// Adjustments says which endpoints in Services have less than their weight, since when, and why.
	Adjustments Adjustments
}

// Serves says whether any service is in the family. Without one, rules that are not in force there affect no client.
// At worst it visits all services.
func (s *Snapshot) Serves(family ip.Family) bool {
	for _, svc := range s.Services.All() {
		if svc.InFamily(family) {
			return true
		}
	}
	return false
}

// Bounds says in sentences what the service asks for beyond bounds, and does not get.
func (s *Snapshot) Bounds(name Name) []string {
	var texts []string
	if left, ok := s.LeftOut.Get(name); ok {
		texts = append(texts, left.String())
	}
	if without, ok := s.WithoutAffinity.Get(name); ok {
		texts = append(texts, without.String())
	}
	if closed, ok := s.ClosedSources.Get(name); ok {
		texts = append(texts, closed.String())
	}
	if unserved, ok := s.UnservedRanges.Get(name); ok {
		texts = append(texts, unserved.String())
	}
	return texts
}

// Claim is the right to something that only one service can have: an address with
// protocol and port, a node port (the family's unspecified address), or a whole cluster
// IP (neither protocol nor port), or the ranges of ports of an address and protocol (no port). The unused ports of a
// cluster IP belong to the owner of the whole one.
type Claim struct {
	Addr     netip.Addr
	Protocol Protocol
	Port     uint16
}

func (c Claim) String() string {
	switch {
	case c.IsRange():
		return fmt.Sprintf("any port range of %s/%s", c.Addr, c.Protocol)
	case c.Protocol == 0:
		return fmt.Sprintf("cluster IP %s", c.Addr)
	case c.Addr.IsUnspecified():
		return fmt.Sprintf("node port %d/%s", c.Port, c.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(c.Addr, c.Port), c.Protocol)
}

// NodePortClaim returns the claim on a port's node port in one family.
func NodePortClaim(family ip.Family, p *Port) Claim {
	return Claim{family.Unspecified(), p.Protocol, p.NodePort}
}

// HealthCheckClaim returns the claim on the service's HealthCheckNodePort in one family: the
// same number of the node cannot be a node port too.
func (s *Service) HealthCheckClaim(family ip.Family) Claim {
	return NodePortClaim(family, &Port{Protocol: TCP, NodePort: s.HealthCheckNodePort})
}

// InFamily reports whether the service is served in a family: whether it has a cluster IP
// there, as in kube-proxy.
func (s *Service) InFamily(family ip.Family) bool {
	return slices.ContainsFunc(s.ClusterIPs, family.Has)
}

// Addresses returns the cluster IPs, then the external IPs, then load balancers'
// addresses, each once, in the families where the service is served.
func (s *Service) Addresses() []netip.Addr {
	if len(s.ExternalIPs) == 0 && len(s.LoadBalancerIPs) == 0 {
		return s.ClusterIPs
	}
	all := slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs)
	return distinct(slices.DeleteFunc(all, func(a netip.Addr) bool { return !s.InFamily(ip.Of(a)) }))
}

// ClaimsOf yields the claims by which a port is reached in one family: at addresses, and the one on its node port.
func (s *Service) ClaimsOf(p *Port, family ip.Family) iter.Seq[Claim] {
	return func(yield func(Claim) bool) {
		for _, a := range s.Addresses() {
			if family.Has(a) && !yield(Claim{a, p.Protocol, p.Port}) {
				return
			}
		}
		if p.NodePort != 0 && s.InFamily(family) {
			yield(NodePortClaim(family, p))
		}
	}
}

// distinct drops duplicates and keeps the order, in place. A service may have tens of
// thousands of addresses.
func distinct(addrs []netip.Addr) []netip.Addr {
	const few = 16
	seen, list := map[netip.Addr]bool(nil), addrs[:0]
	if len(addrs) > few {
		seen = make(map[netip.Addr]bool, len(addrs))
	}
	for _, a := range addrs {
		if seen == nil && slices.Contains(list, a) || seen[a] {
			continue
		}
		if seen != nil {
			seen[a] = true
		}
		list = append(list, a)
	}
	return list
}
