package service

import (
	"net/netip"
	"slices"
)

// Sources are the ranges of client addresses that loadBalancerSourceRanges
// lets in. It never changes.
type Sources struct {
	ranges []netip.Prefix
}

// NewSources makes Sources of ranges that may overlap, in any order. A family
// that no range is of is closed: an operator who lists ranges means to keep
// everybody else out.
func NewSources(ranges []netip.Prefix) *Sources {
	list := make([]netip.Prefix, len(ranges))
	for i, r := range ranges {
		list[i] = r.Masked()
	}
	// Of two prefixes that overlap one holds the other, and sorts before it.
	slices.SortFunc(list, netip.Prefix.Compare)
	var disjoint []netip.Prefix
	for _, r := range list {
		if n := len(disjoint); n == 0 || !disjoint[n-1].Overlaps(r) {
			disjoint = append(disjoint, r)
		}
	}
	return &Sources{disjoint}
}

// Ranges are all ranges, disjoint and sorted.
func (s *Sources) Ranges() []netip.Prefix {
	if s == nil {
		return nil
	}
	return s.ranges
}

// Of are the ranges of one family; all says that they let everybody in.
func (s *Sources) Of(v6 bool) (ranges []netip.Prefix, all bool) {
	if s == nil {
		return nil, true
	}
	for _, r := range s.ranges {
		if r.Addr().Is6() != v6 {
			continue
		}
		if r.Bits() == 0 {
			return nil, true
		}
		ranges = append(ranges, r)
	}
	return ranges, false
}

// Equal says whether the two let the same ranges in.
func (s *Sources) Equal(o *Sources) bool {
	return s == o || s != nil && o != nil && slices.Equal(s.ranges, o.ranges)
}

// Firewall is who may reach a load balancer's addresses.
type Firewall struct {
	Sources *Sources
	// Addresses are the load balancer's, of both families.
	Addresses []netip.Addr
}

// Firewall is the service's own.
func (s *Service) Firewall() Firewall { return Firewall{s.Sources, s.LoadBalancerIPs} }

// Restricts says whether it keeps anybody from what is claimed; a whole cluster
// IP and node ports it does not concern.
func (f Firewall) Restricts(c Claim) bool {
	_, all := f.Sources.Of(c.Addr.Is6())
	return !all && c.Protocol != 0 && slices.Contains(f.Addresses, c.Addr)
}

// Admitted are the sources that may reach the addresses of one family,
// disjoint; all says that everybody may. Where the node itself may, so may the
// load balancer's addresses: they are its source where they are bound on it (as
// kube-proxy has it).
func (f Firewall) Admitted(node *Node, v6 bool) (sources []netip.Prefix, all bool) {
	ranges, all := f.Sources.Of(v6)
	inRanges := func(a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	}
	if all || !slices.ContainsFunc(node.Addresses, inRanges) {
		return ranges, all
	}
	for _, a := range f.Addresses {
		if a.Is6() == v6 {
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	ranges, _ = NewSources(ranges).Of(v6)
	return ranges, false
}

func (f Firewall) equal(o Firewall) bool {
	return f.Sources.Equal(o.Sources) && slices.Equal(f.Addresses, o.Addresses)
}

// Restrictions are, in the order of the claims, those that a service has while
// only another one restricts them: source ranges go with the load balancer's
// address and port, whoever it leads to (as kube-proxy's do).
type Restrictions struct {
	List []Restriction
}

// Restriction is one such claim. Of several services that restrict it, By is
// the one with the best right to the claim.
type Restriction struct {
	Claim    Claim
	By       Name
	Firewall Firewall
}

// On finds the restriction of a claim; a nil receiver has none.
func (r *Restrictions) On(claim Claim) (Restriction, bool) {
	if r == nil {
		return Restriction{}, false
	}
	i, found := slices.BinarySearchFunc(r.List, claim, func(r Restriction, c Claim) int { return compareClaims(r.Claim, c) })
	if !found {
		return Restriction{}, false
	}
	return r.List[i], true
}

func (r *Restrictions) equal(o *Restrictions) bool {
	return slices.EqualFunc(r.List, o.List, func(a, b Restriction) bool {
		return a.Claim == b.Claim && a.By == b.By && a.Firewall.equal(b.Firewall)
	})
}
