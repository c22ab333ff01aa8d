package watch

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
)

// OwnPort is a TCP port on which a process of the node answers. externalIPs and load
// balancers' addresses do not take it away.
type OwnPort struct {
	// Addr is the one address on which the process listens; the zero Addr stands
	// for all addresses of the node.
	Addr netip.Addr
	Port uint16
	// Whose is for people: "the kubelet".
	Whose string
}

// defaultKubeletPort is the kubelet's port where the Node does not say another
// (status.daemonEndpoints).
const defaultKubeletPort = 10250

// The Service whose endpoints are the API servers.
const kubernetesService service.Name = "default/kubernetes"

// maxAPIServers is how many of the API server's addresses the index remembers: the
// latest ones.
const maxAPIServers = 16

// addAPIServer remembers an address at which the proxy has reached the API server.
func (ix *index) addAPIServer(a netip.AddrPort) {
	a = netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
	if !a.IsValid() || slices.Contains(ix.apiServers, a) {
		return
	}
	if len(ix.apiServers) == maxAPIServers {
		ix.apiServers = ix.apiServers[1:]
	}
	ix.apiServers = append(slices.Clone(ix.apiServers), a)
	ix.unprotected = true
}

// protect tells the builder which addresses and ports Services must not take from
// the node and the proxy: the API server's, and the node's own ports on its own
// addresses. An address on an interface that the Node object does not list may be a
// load balancer's, put there by the program that gave it to the Service. All ports
// of such an address are the load balancer's.
func (ix *index) protect() {
	if !ix.unprotected {
		return
	}
	ix.unprotected = false
	p := service.Protected{}
	claim := func(a netip.Addr, port uint16) service.Claim {
		return service.Claim{Addr: a.WithZone(""), Protocol: service.TCP, Port: port}
	}
	node := ix.builder.Node()
	ports := append(slices.Clone(ix.ownPorts), OwnPort{Port: ix.kubeletPort, Whose: "the kubelet"})
	for _, own := range ports {
		guard := service.Protector{Protection: service.Protection("a port of the node that is for " + own.Whose)}
		for _, a := range node.HostAddresses {
			if !own.Addr.IsValid() || own.Addr == a {
				p[claim(a, own.Port)] = guard
			}
		}
		guard.FromLoadBalancers = true
		for _, a := range node.Addresses {
			if !own.Addr.IsValid() || own.Addr == a {
				p[claim(a, own.Port)] = guard
			}
		}
	}
	server := service.Protector{Protection: "the API server's address", FromLoadBalancers: true}
	for _, a := range ix.apiServers {
		p[claim(a.Addr(), a.Port())] = server
	}
	if s := ix.builder.Service(kubernetesService); s != nil {
		for i := range s.Ports {
			for e := range s.Ports[i].Endpoints.All() {
				p[claim(e.Addr.Addr(), e.Addr.Port())] = server
			}
		}
	}
	ix.builder.SetProtected(p)
}

// withoutIgnoredExternalIPs returns the Service without spec.externalIPs, and with a
// problem that says so, where the options ignore them.
func (ix *index) withoutIgnoredExternalIPs(s *serviceObject) *serviceObject {
	if !ix.ignoreExternalIPs || s.bare == nil || len(s.bare.ExternalIPs) == 0 {
		return s
	}
	object, bare := *s, s.bare.Clone()
	bare.ExternalIPs = nil
	object.bare, object.built = bare, false
	object.problems = append(slices.Clone(s.problems), Problem{Object: s.object(), Field: "spec.externalIPs", Err: ErrExternalIPsIgnored})
	return &object
}

func (s *serviceObject) object() Object {
	namespace, name := s.key.Split()
	return Object{Kind: "Service", Namespace: namespace, Name: name, UID: string(s.uid)}
}
