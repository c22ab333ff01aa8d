package watch

import (
	"net/netip"
	"slices"

	"nftproxy/model/claims"
	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// OwnPort is a TCP port on which a process of the node answers. externalIPs, load balancers'
// addresses and node ports do not get it.
type OwnPort struct {
	// Addr is the one address on which the process listens; the zero Addr stands
	// for all addresses of the node.
	Addr netip.Addr
	Port uint16
	// Whose names the process for people: "the kubelet".
	Whose string
}

// defaultKubeletPort is the kubelet's port where the Node does not say another
// (status.daemonEndpoints).
const defaultKubeletPort = 10250

// The Service whose endpoints are the API servers.
const kubernetesService service.Name = "default/kubernetes"

// maxAPIServers is how many addresses of API servers of each kind the index remembers:
// the latest ones.
const maxAPIServers = 16

// addAPIServer remembers an address at which the proxy has reached the API server.
func (ix *index) addAPIServer(a netip.AddrPort) {
	a = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
	if a.IsValid() && remember(&ix.apiServers, a) {
		ix.unprotected = true
	}
}

// remember adds an address to a list of the latest ones, in a new list. It returns false if
// the address is there.
func remember(list *[]netip.AddrPort, a netip.AddrPort) bool {
	if slices.Contains(*list, a) {
		return false
	}
	from := max(0, len(*list)-maxAPIServers+1)
	*list = append(slices.Clone((*list)[from:]), a)
	return true
}

// reserve tells the builder which addresses no Service gets.
func (ix *index) reserve() {
	if !ix.unprotected {
		return
	}
	node := ix.builder.Node()
	settings := &ix.options.Settings
	if node.Settings != nil {
		settings = node.Settings
	}
	r := claims.Reserved{
		Addresses: map[netip.Addr]service.Protection{}, KubeletPort: ix.kubeletPort,
		NodePods: rangesOfPods(node, node.PodCIDRs), Pods: rangesOfPods(node, settings.ClusterCIDRs),
		NodeAddresses: slices.Concat(node.HostAddresses, node.Addresses),
	}
	for _, a := range ix.broadcast {
		if !slices.Contains(node.HostAddresses, a) {
			r.Addresses[a] = "the broadcast address of a network that the node is on"
		}
	}
	pods := slices.Concat(r.NodePods, r.Pods)
	for _, a := range node.HostAddresses {
		if slices.ContainsFunc(pods, func(p netip.Prefix) bool { return p.Contains(a) }) {
			r.Hosts = append(r.Hosts, a)
		}
	}
	for _, family := range ip.Families() {
		addrs, all := settings.NodePortAddresses.On(node, family)
		if all {
			addrs = slices.Concat(node.HostAddresses, node.Addresses)
		}
		for _, a := range addrs {
			if family.Has(a) && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !slices.Contains(r.NodePortAddresses, a) {
				r.NodePortAddresses = append(r.NodePortAddresses, a)
			}
		}
	}
	ix.builder.SetReserved(r)
}

// rangesOfPods returns those of the ranges that have no addresses but pods': without those
// of all addresses, and those with one of the Node's. There nodes, pods and load balancers
// share a network.
func rangesOfPods(node *service.Node, list []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(list), func(p netip.Prefix) bool {
		return p.Bits() == 0 || slices.ContainsFunc(node.Addresses, p.Contains)
	})
}

// protect tells the builder which addresses and ports Services must not take from
// the node and the proxy: the API server's, and the node's own ports, on its own
// addresses and as node ports. An address on an interface that the Node object does not
// list may be a load balancer's, put there by the program that gave it to the Service. All
// ports of such an address are the load balancer's.
func (ix *index) protect() {
	if !ix.unprotected {
		return
	}
	ix.unprotected = false
	p := claims.Protected{}
	node := ix.builder.Node()
	ports := append(slices.Clone(ix.options.OwnPorts), OwnPort{Port: ix.kubeletPort, Whose: "the kubelet"})
	for _, own := range ports {
		guard := claims.Protector{Protection: service.Protection("a port of the node that is for " + own.Whose)}
		for _, family := range ip.Families() {
			if !own.Addr.IsValid() || family.Has(own.Addr) && !own.Addr.IsLoopback() {
				p[nodePortClaim(family, own.Port)] = guard
			}
		}
		for _, a := range node.HostAddresses {
			if !own.Addr.IsValid() || own.Addr == a {
				p[addressClaim(netip.AddrPortFrom(a, own.Port))] = guard
			}
		}
		guard.FromLoadBalancers = true
		for _, a := range node.Addresses {
			if !own.Addr.IsValid() || own.Addr == a {
				p[addressClaim(netip.AddrPortFrom(a, own.Port))] = guard
			}
		}
	}
	ix.protectAPIServers(p)
	ix.builder.SetProtected(p)
	withServers := *node
	withServers.APIServers = ix.apiServerAddresses()
	ix.builder.SetNode(withServers)
}

// protectAPIServers protects the endpoints of the Service default/kubernetes, which are the
// API servers' own addresses, and the addresses by which the proxy reaches them. One of
// these may be a Service's: of its load balancer, for example. Such a Service gets it if it
// leads to nothing but API servers. Endpoints that were listed once count as well, as long as
// the process runs: an API server leaves the list when it restarts, and a node that came by
// the Service would not hear of its return.
func (ix *index) protectAPIServers(p claims.Protected) {
	guard := claims.Protector{Protection: "the API server's address", FromLoadBalancers: true}
	var endpoints []netip.AddrPort
	if s := ix.builder.Service(kubernetesService); s != nil {
		for i := range s.Ports {
			for e := range s.Ports[i].Endpoints.All() {
				endpoints = append(endpoints, e.Addr)
				remember(&ix.apiEndpoints, e.Addr)
			}
		}
	}
	servers := claims.Servers(ix.apiEndpoints)
	for _, a := range slices.Concat(ix.apiServers, endpoints) {
		guard := guard
		if !slices.Contains(endpoints, a) {
			guard.Servers = &servers
		}
		p[addressClaim(a)] = guard
		if node := ix.builder.Node(); slices.Contains(node.HostAddresses, a.Addr()) || slices.Contains(node.Addresses,
			a.Addr()) {
			p[nodePortClaim(ip.Of(a.Addr()), a.Port())] = guard
		}
	}
}

// addressClaim is the claim on a TCP port of an address.
func addressClaim(a netip.AddrPort) service.Claim {
	return service.Claim{Addr: a.Addr().WithZone(""), Protocol: service.TCP, Port: a.Port()}
}

// nodePortClaim is the claim on a TCP node port.
func nodePortClaim(family ip.Family, port uint16) service.Claim {
	return service.NodePortClaim(family, &service.Port{Protocol: service.TCP, NodePort: port})
}

// withoutIgnoredExternalIPs returns the Service without spec.externalIPs, and with a
// problem that says so, where the options ignore them.
func (ix *index) withoutIgnoredExternalIPs(s *serviceObject) *serviceObject {
	if !ix.options.IgnoreExternalIPs || s.bare == nil || len(s.bare.ExternalIPs) == 0 {
		return s
	}
	return s.edited(func(bare *service.Service) { bare.ExternalIPs = nil },
		Problem{Object: s.object(), Field: "spec.externalIPs", Err: ErrExternalIPsIgnored})
}

// edited returns a copy of the object with more problems, and with another Service, as edit makes it of a copy.
func (s *serviceObject) edited(edit func(*service.Service), problems ...Problem) *serviceObject {
	object := *s
	object.bare, object.built = s.bare.Clone(), false
	edit(object.bare)
	object.problems = slices.Concat(s.problems, problems)
	return &object
}

func (s *serviceObject) object() Object {
	o := objectNamed("Service", s.key)
	o.UID = string(s.uid)
	return o
}
