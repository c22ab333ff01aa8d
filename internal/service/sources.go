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

// Admitted are the sources that may reach a load balancer's address of one
// family, disjoint; all says that everybody may. Where the node itself may, so
// may the load balancer's addresses: they are its source where they are bound
// on it (as kube-proxy has it).
func (s *Service) Admitted(node *Node, v6 bool) (sources []netip.Prefix, all bool) {
	ranges, all := s.Sources.Of(v6)
	inRanges := func(a netip.Addr) bool {
		return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
	}
	if all || !slices.ContainsFunc(node.Addresses, inRanges) {
		return ranges, all
	}
	for _, a := range s.LoadBalancerIPs {
		if a.Is6() == v6 {
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	ranges, _ = NewSources(ranges).Of(v6)
	return ranges, false
}
