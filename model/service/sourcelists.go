package service

import (
	"fmt"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
)

// DefaultMaxSourceLists is the default bound on different lists of source ranges. Each list has a
// set of its own in the kernel, of 18 KB at least since Linux 6.18. The kernel searches sets by
// name in a list, so n of them cost n squared.
const DefaultMaxSourceLists = 2000

// ClosedSources says that the source ranges of a service exceed the bound on different lists. The
// ranges then admit no client.
type ClosedSources struct {
	// Limit is how many lists all services may have together. The services of one
	// namespace bring in a quarter of them at most.
	Limit int
}

// String reads like "no client is let in where source ranges apply: ...".
func (c *ClosedSources) String() string {
	return fmt.Sprintf("no client is let in where source ranges apply: there is room for %d different lists of source "+
		"ranges, and for %d by the Services of one namespace, the oldest Services first",
		c.Limit, shareOf(c.Limit))
}

// sourceListKey tells lists of source ranges apart, as the program has them: it is zero in
// a family that takes no set. A service with other ranges for its external IPs and node ports than for
// its load balancer's addresses has two lists, which count as two wherever else they are. The zero value
// stands for no list.
type sourceListKey [2]ip.PerFamily[Digest]

// sourceList returns the service's lists. The service may be nil.
func (s *Service) sourceList() sourceListKey {
	var key sourceListKey
	if s == nil {
		return key
	}
	for _, family := range ip.Families() {
		balanced := s.digestFor(s.Sources, family, slices.ContainsFunc(s.LoadBalancerIPs, family.Has))
		direct := s.digestFor(s.Options.SourceRanges, family, s.hasNodePort() || slices.ContainsFunc(s.ExternalIPs,
			family.Has))
		*key[0].Of(family) = balanced
		if balanced == (Digest{}) {
			*key[0].Of(family) = direct
		} else if direct != balanced {
			*key[1].Of(family) = direct
		}
	}
	return key
}

// digestFor returns the digest of sources if the service has addresses in the family that need a set of them.
func (s *Service) digestFor(sources *Sources, family ip.Family, needed bool) Digest {
	if ranges, _ := sources.Of(family); len(ranges) > 0 && needed && s.InFamily(family) {
		return sources.Digest(family)
	}
	return Digest{}
}

// size is how many lists the key stands for.
func (k sourceListKey) size() int {
	if k[1] == (ip.PerFamily[Digest]{}) {
		return 1
	}
	return 2
}

// closed returns sources that let in nobody in the families that had ranges, and nil for nil.
func (s *Sources) closed() *Sources {
	if s == nil {
		return nil
	}
	var open []netip.Prefix
	for _, family := range ip.Families() {
		if _, all := s.Of(family); all {
			open = append(open, netip.PrefixFrom(family.Unspecified(), 0))
		}
	}
	return NewSources(open)
}
