package strict

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/nft"
)

// Learn adds to the dynamic maps what a traced packet leaves in them. As in the kernel, an existing
// element keeps its data, and a full map accepts no new one. A Model has no clock, so no element
// expires.
func Learn(m *nft.Model, r nft.Result) {
	for _, l := range r.Learned {
		s := m.Table(l.Table).Sets[l.Element.Set]
		if _, found := s.Elements[l.Element.Key]; !found && !s.Full(0) {
			s.Elements[l.Element.Key] = l.Element
		}
	}
}

// Outcomes traces the packet with every number that numgen can give and
// returns the distinct results, without paths, sorted by destination.
func Outcomes(m *nft.Model, p nft.Packet, local func(netip.Addr) bool) []nft.Result {
	var all []nft.Result
	bound := uint32(1)
	for i := uint32(0); i < bound; i++ {
		r := m.Trace(p, nft.Host{Local: local, Random: func(n uint32) uint32 {
			bound = max(bound, n)
			return i % n
		}})
		r.Path, r.Learned = nil, nil
		if !slices.ContainsFunc(all, r.SameAs) {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b nft.Result) int {
		return cmp.Or(a.To.Compare(b.To), strings.Compare(string(a.Fate), string(b.Fate)))
	})
	return all
}
