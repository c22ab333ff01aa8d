package ruleset

import (
	"slices"
	"strings"

	"nftproxy/nft"
)

// ChainKind says what a chain of our tables is for.
type ChainKind string

// The kinds of chains.
const (
	// BaseChain is a chain with a hook, where packets begin.
	BaseChain ChainKind = "base"
	// DispatchChain refuses unknown ports of cluster IPs and looks up node ports.
	DispatchChain ChainKind = "dispatch"
	// RefuseChain answers by a TCP reset or ICMP.
	RefuseChain ChainKind = "refuse"
	// HoldChain decides which packets to a port without endpoints are held, and which are refused.
	HoldChain ChainKind = "hold"
	// DropChain counts packets and drops them.
	DropChain ChainKind = "drop"
	// ExternalLocalChain chooses one of the two lists of external policy Local.
	ExternalLocalChain ChainKind = "external-local"
	// SourceRangesChain lets in the sources of source ranges.
	SourceRangesChain ChainKind = "source-ranges"
	// EndpointsChain translates to one of a number of endpoints.
	EndpointsChain ChainKind = "endpoints"
	// AffinityChain translates to the endpoint that is remembered for the client.
	AffinityChain ChainKind = "affinity"
	// LearnChain remembers the endpoint of a client.
	LearnChain ChainKind = "learn"
	// LayoutChain is empty, and its name has the number of the layout (Layout).
	LayoutChain ChainKind = "layout"
	// RangesChain leads on the ports of a list of ranges.
	RangesChain ChainKind = "port-ranges"
	// ForeignChain is one that no version of the compiler makes.
	ForeignChain ChainKind = "foreign"
)

// KindOfChain returns the kind of a chain, by its hook and name.
func KindOfChain(c *nft.Chain) ChainKind {
	if c.Hook != nil {
		return BaseChain
	}
	switch c.Name {
	case dispatch:
		return DispatchChain
	case externalLocal, nodePortExternalLocal, rangeExternalLocal:
		return ExternalLocalChain
	case servicesRestricted, nodePortsRestricted:
		return SourceRangesChain
	case checkUnallocated, checkUntranslated:
		return DropChain
	case checkUnknownPort:
		return RefuseChain
	}
	switch {
	case strings.HasPrefix(strings.TrimPrefix(c.Name, nodePortPrefix), sourceRanges):
		return SourceRangesChain
	case strings.HasPrefix(c.Name, rangeListPrefix):
		return RangesChain
	case strings.HasPrefix(c.Name, layoutPrefix):
		return LayoutChain
	}
	if holdOf(c.Name) > 0 {
		return HoldChain
	}
	for _, cause := range Causes() {
		switch {
		case !slices.Contains(cause.Chains(), c.Name):
		case cause.Drops():
			return DropChain
		default:
			return RefuseChain
		}
	}
	switch shared, ok := parseShared(c.Name); {
	case !ok:
		return ForeignChain
	case shared.learn > 0:
		return LearnChain
	case shared.clients != clients{}:
		return AffinityChain
	}
	return EndpointsChain
}
