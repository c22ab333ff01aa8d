package claims

import (
	"maps"
	"net/netip"
	"slices"

	"nftproxy/model/service"
)

// Protected has the claims that are protected from external addresses, and from node ports
// and health check node ports. A service still gets its own cluster IP.
type Protected map[service.Claim]Protector

// Protector says why a claim is protected.
type Protector struct {
	Protection service.Protection
	// FromLoadBalancers protects the claim from addresses of status.loadBalancer too,
	// not only from those of spec.externalIPs.
	FromLoadBalancers bool
	// Servers, if there are any, are endpoints to which the claim may lead: a service
	// that sends all its connections to them gets the claim.
	Servers *Servers
}

// against returns what protects the claim from services of that rank; empty for nothing.
func (p Protector) against(r rank) service.Protection {
	if r == asExternalIP || r == asLoadBalancer && p.FromLoadBalancers {
		return p.Protection
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

// Reserved has the addresses that no service gets, at any protocol and port. A service still gets
// its own cluster IP.
type Reserved struct {
	// Addresses are kept from load balancers' addresses and external IPs.
	Addresses map[netip.Addr]service.Protection
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
	podOfNode    service.Protection = "in the range of this node's pods"
	podOfCluster service.Protection = "in the range of the cluster's pods"
	kubelets     service.Protection = "the port of the nodes' kubelets"
	nodeAddress  service.Protection = "an address of the node, where ranges would take node ports and the node's own"
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
func (r *Reserved) protection(c service.Claim, k rank) service.Protection {
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
	case r.KubeletPort != 0 && c.Protocol == service.TCP && c.Port == r.KubeletPort:
		return kubelets
	}
	return ""
}

// Servers are TCP endpoints of a server that the node itself needs, such as the API
// servers. A value never changes.
type Servers []netip.AddrPort

// leadsTo says whether the service sends all connections to the claim to the servers: it
// has an endpoint there that may get connections, and each such is one of them. These are
// the ready ones. Those that end but still serve count where none is ready, as in kube-proxy, and
// with externalTrafficPolicy Local always: there they get the node's share while other
// nodes have ready ones. The service's source ranges must admit the node.
func (r *round) leadsTo(s *service.Service, c service.Claim, servers *Servers) bool {
	if c.Protocol != service.TCP || r.shutsOut(s, c) {
		return false
	}
	ready, ending := heading{}, heading{}
	for i := range s.Ports {
		p := &s.Ports[i]
		number := p.Port
		if c.Addr.IsUnspecified() {
			number = p.NodePort
		}
		if p.Protocol != service.TCP || number != c.Port {
			continue
		}
		for e := range p.Endpoints.All() {
			at := &ready
			switch {
			case e.Addr.Addr().Is6() != c.Addr.Is6():
				continue
			case e.Ready:
			case e.Serving && e.Terminating:
				at = &ending
			default:
				continue
			}
			at.some = true
			at.elsewhere = at.elsewhere || !slices.Contains(*servers, e.Addr)
			if ready.elsewhere {
				return false
			}
		}
	}
	if ready.some && s.ExternalPolicy == service.Cluster {
		return true
	}
	return (ready.some || ending.some) && !ending.elsewhere
}

// heading says of endpoints in one state whether there are some, and whether one of them is
// none of the servers.
type heading struct{ some, elsewhere bool }

// shutsOut says whether the service's source ranges keep the node from the claim.
func (r *round) shutsOut(s *service.Service, c service.Claim) bool {
	wall, _, restricted := s.FirewallAt(c, nil)
	return restricted && !slices.ContainsFunc(r.last.Node.Addresses, func(a netip.Addr) bool {
		return a.Is6() == c.Addr.Is6() && wall.Sources.Contains(a)
	})
}
