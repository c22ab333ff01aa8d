package service

import "net/netip"

// Settings are an operator's choices that the rules of a node depend on. A value never
// changes; other settings are another value.
type Settings struct {
	// ClusterCIDRs are the ranges of pods' addresses. The first of each family counts:
	// traffic from other addresses to a cluster IP is masqueraded. A family without a
	// range masquerades no such traffic.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR has the pod ranges of the snapshot's node count instead, again the
	// first of each family.
	NodeCIDR bool
	// PodInterface, if it has a name, is where pods' traffic comes in. Then it decides
	// what is masqueraded, and ranges do not.
	PodInterface Interface
	// MasqueradeAll masquerades all connections to cluster IPs.
	MasqueradeAll bool
	// MasqueradeBit (0 to 31) is a bit of the packet mark. The first packet of a
	// connection that is to be masqueraded carries it inside the node.
	MasqueradeBit uint8
	// NodePortAddresses says which addresses serve node ports.
	NodePortAddresses NodePortAddresses
}

// Interface is the name of an interface, or with Prefix the beginning of names.
type Interface struct {
	Name   string
	Prefix bool
}
