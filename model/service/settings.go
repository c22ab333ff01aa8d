package service

import (
	"net/netip"

	"nftproxy/model/ip"
)

// Settings are an operator's choices that the rules of a node depend on. A value never
// changes; other settings are another value.
//
// They come with the snapshot, since a changed configuration file takes effect without a restart of the process. To
// execute the process again would save some 70 lines. But each node would then list all objects of the API server once
// more, and for 0.3 to 0.6 s there would be no health server, no node ports on localhost, and none of what is only
// remembered: endpoints that are left out, and slow starts.
type Settings struct {
	// ClusterCIDRs are the ranges of pods' addresses, MaxPodRanges of each family at most:
	// traffic from other addresses to a cluster IP is masqueraded. A family without a
	// range masquerades no such traffic.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR uses the pod ranges of the snapshot's node instead.
	NodeCIDR bool
	// PodInterface, if it has a name, is the interface of pods' traffic. It then decides what is
	// masqueraded, instead of ranges.
	PodInterface Interface
	// MasqueradeAll masquerades all connections to cluster IPs.
	MasqueradeAll bool
	// MasqueradeMark, if not 0, has one bit of the packet mark, which the rules share with other
	// programs: the first packet of a connection that is to be masqueraded has this bit inside the
	// node, whoever has set it. With 0 the rules neither read nor change marks.
	MasqueradeMark uint32
	// NoMasquerade are ranges of endpoints' addresses, MaxNoMasquerade of each family at most: connections there are not
	// masqueraded, unless they come back to their own pod.
	NoMasquerade []netip.Prefix
	// MasqueradeToNode masquerades to the Node's own address (Node.OwnAddress) instead of one of the interface by which
	// packets leave. A family in which the Node has none is masqueraded as without it.
	MasqueradeToNode bool
	// AnswerPing has the node answer echo requests to the addresses of Services with endpoints.
	AnswerPing bool
	// Flows says which share of connections the node follows; FlowsAsNode is FlowsOff.
	Flows Flows
	// NodePortAddresses says which addresses serve node ports.
	NodePortAddresses NodePortAddresses
}

// MaxPodRanges is the greatest number of pod ranges of one family. Each one costs a comparison for
// packets that come from none of them.
const MaxPodRanges = 8

// MaxNoMasquerade is the greatest number of ranges of one family in Settings.NoMasquerade. Each one costs a comparison
// for connections that would be masqueraded.
const MaxNoMasquerade = 8

// NoMasqueradeOf returns the ranges of a family in NoMasquerade, disjoint and sorted.
func (s *Settings) NoMasqueradeOf(family ip.Family) []netip.Prefix {
	return rangesOf(s.NoMasquerade, family)
}

// PodRanges returns the ranges of the settings and the node that have the addresses of pods of a family,
// disjoint and sorted.
func (s *Settings) PodRanges(n *Node, family ip.Family) []netip.Prefix {
	ranges := s.ClusterCIDRs
	if s.NodeCIDR {
		ranges = n.PodCIDRs
	}
	return rangesOf(ranges, family)
}

// rangesOf returns the ranges of a family, disjoint and sorted.
func rangesOf(ranges []netip.Prefix, family ip.Family) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range ranges {
		if family.Has(p.Addr()) {
			list = append(list, p)
		}
	}
	return Disjoint(list)
}

// Interface is the name of an interface, or with Prefix the beginning of names.
type Interface struct {
	Name   string
	Prefix bool
}
