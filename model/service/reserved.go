package service

import (
	"maps"
	"net/netip"
	"slices"
)

// Reserved has the addresses that no service gets, at any protocol and port. A service still gets
// its own cluster IP.
type Reserved struct {
	// Addresses are kept from load balancers' addresses and external IPs.
	Addresses map[netip.Addr]Protection
	// NodePods are ranges of the addresses of this node's pods; they are kept from load
	// balancers' addresses and external IPs. Pods are ranges of the cluster's pods. They
	// may have the addresses of load balancers too, so they are kept from external IPs
	// only. Hosts are addresses in these ranges that are not kept.
	NodePods, Pods []netip.Prefix
	Hosts          []netip.Addr
	// KubeletPort is a TCP port that is kept from external IPs, whichever address it is
	// at: each node's kubelet listens there. 0 for none.
	KubeletPort uint16
	// NodePortAddresses are addresses of the node that serve node ports, without link-local ones.
	// There the node ports of services win over external addresses of services with a lower rank.
	NodePortAddresses []netip.Addr
	// NodeAddresses are all addresses of the node. There external IPs have no ranges of ports.
	NodeAddresses []netip.Addr
}

// The reasons why an address is reserved.
const (
	podOfNode    Protection = "in the range of this node's pods"
	podOfCluster Protection = "in the range of the cluster's pods"
	kubelets     Protection = "the port of the nodes' kubelets"
)

func (r *Reserved) equal(o *Reserved) bool {
	return r.KubeletPort == o.KubeletPort && maps.Equal(r.Addresses, o.Addresses) && slices.Equal(r.NodePods,
		o.NodePods) &&
		slices.Equal(r.Pods, o.Pods) && slices.Equal(r.Hosts, o.Hosts) && slices.Equal(r.NodePortAddresses,
		o.NodePortAddresses) &&
		slices.Equal(r.NodeAddresses, o.NodeAddresses)
}

func (r *Reserved) servesNodePorts(a netip.Addr) bool {
	return slices.Contains(r.NodePortAddresses, a)
}

// protection returns why the claim's address is kept from services of that rank; empty
// if it is not.
func (r *Reserved) protection(c Claim, k rank) Protection {
	if k == asClusterIP || c.Addr.IsUnspecified() {
		return ""
	}
	if why := r.Addresses[c.Addr]; why != "" {
		return why
	}
	contains := func(p netip.Prefix) bool { return p.Contains(c.Addr) }
	switch {
	case slices.ContainsFunc(r.NodePods, contains) && !slices.Contains(r.Hosts, c.Addr):
		return podOfNode
	case k == asLoadBalancer:
	case slices.ContainsFunc(r.Pods, contains) && !slices.Contains(r.Hosts, c.Addr):
		return podOfCluster
	case r.KubeletPort != 0 && c.Protocol == TCP && c.Port == r.KubeletPort:
		return kubelets
	}
	return ""
}

// at returns those at one address.
func (p Protected) at(a netip.Addr) Protected {
	at := Protected{}
	for c, guard := range p {
		if c.Addr == a {
			at[c] = guard
		}
	}
	return at
}
