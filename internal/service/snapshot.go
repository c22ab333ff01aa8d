package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"nftproxy/internal/treap"
)

// Snapshot is everything that the node's program depends on, at one moment. It
// never changes; two snapshots share what is equal in them.
type Snapshot struct {
	// Node is replaced by a new pointer whenever any part of it changes.
	Node     *Node
	Services treap.Map[Name, *Service]
	// ServiceCIDRs are the ranges that cluster IPs come from, by their text. An
	// address in one that no service has leads nowhere.
	ServiceCIDRs treap.Map[string, netip.Prefix]
	// Conflicts holds, for each service that lost a claim to another one, what
	// it lost. A service without entry has all that it asks for.
	Conflicts treap.Map[Name, *Conflicts]
	// Restrictions holds, for each service that has a claim which the source
	// ranges of another one restrict, who does.
	Restrictions treap.Map[Name, *Restrictions]
}

// Claim is something that only one service can have: an address with protocol
// and port, a node port (the family's unspecified address), or a whole cluster
// IP (neither protocol nor port), which decides who answers for its unused
// ports.
type Claim struct {
	Addr     netip.Addr
	Protocol Protocol
	Port     uint16
}

func (c Claim) String() string {
	switch {
	case c.Protocol == 0:
		return fmt.Sprintf("cluster IP %s", c.Addr)
	case c.Addr.IsUnspecified():
		return fmt.Sprintf("node port %d/%s", c.Port, c.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(c.Addr, c.Port), c.Protocol)
}

// precedence orders services by their right to the claim: who has the address
// as cluster IP, which nobody else is meant to have, then the oldest.
func (c Claim) precedence(a, b *Service) int {
	if own := slices.Contains(a.ClusterIPs, c.Addr); own != slices.Contains(b.ClusterIPs, c.Addr) {
		if own {
			return -1
		}
		return 1
	}
	return CompareAge(a, b)
}

func compareClaims(a, b Claim) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// Conflicts are the claims that one service lost, each with the service that
// has it, in the order of the claims.
type Conflicts struct {
	Lost []Conflict
}

// Conflict is one lost claim.
type Conflict struct {
	Claim Claim
	Owner Name
}

// Has says whether the claim was lost; a nil receiver has lost nothing.
func (c *Conflicts) Has(claim Claim) bool {
	if c == nil {
		return false
	}
	_, found := slices.BinarySearchFunc(c.Lost, claim, func(l Conflict, c Claim) int { return compareClaims(l.Claim, c) })
	return found
}

func (c *Conflicts) equal(o *Conflicts) bool {
	return slices.Equal(c.Lost, o.Lost)
}

// claims lists what the service asks for, sorted and without duplicates.
func (s *Service) claims() []Claim {
	addrs := s.Addresses()
	list := make([]Claim, 0, len(s.ClusterIPs)+len(s.Ports)*(1+len(addrs)))
	for _, a := range s.ClusterIPs {
		list = append(list, Claim{Addr: a})
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, a := range addrs {
			list = append(list, Claim{a, p.Protocol, p.Port})
		}
		for _, v6 := range []bool{false, true} {
			if p.NodePort != 0 && s.InFamily(v6) {
				list = append(list, NodePortClaim(v6, p))
			}
		}
	}
	slices.SortFunc(list, compareClaims)
	return slices.Compact(list)
}

// NodePortClaim is the claim on a port's node port in one family.
func NodePortClaim(v6 bool, p *Port) Claim {
	any := netip.IPv4Unspecified()
	if v6 {
		any = netip.IPv6Unspecified()
	}
	return Claim{any, p.Protocol, p.NodePort}
}

// InFamily says whether the service is served in a family: it is where it has
// a cluster IP, as in kube-proxy.
func (s *Service) InFamily(v6 bool) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is6() == v6 })
}

// Addresses are the cluster IPs, then the external ones and those of load
// balancers, each once, as far as the service is in their family.
func (s *Service) Addresses() []netip.Addr {
	if len(s.ExternalIPs) == 0 && len(s.LoadBalancerIPs) == 0 {
		return s.ClusterIPs
	}
	all := slices.Clone(s.ClusterIPs)
	for _, list := range [][]netip.Addr{s.ExternalIPs, s.LoadBalancerIPs} {
		for _, a := range list {
			if s.InFamily(a.Is6()) && !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}
