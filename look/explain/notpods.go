package explain

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
)

// notPods names endpoints that are no pods but addresses of Services: rules translate the packets of a connection once.
func (x *explainer) notPods(e *Explanation) {
	targets := e.Endpoints[:min(len(e.Endpoints), MostWays)]
	if len(targets) == 0 {
		return
	}
	external, nodePorts := x.serviceAddresses()
	for i := range targets {
		t := &targets[i]
		local := x.facts.Local(t.addr.Addr())
		to := "it goes where the node's routes lead"
		if local {
			to = "it goes to a process of the node that listens there, if there is one"
		}
		switch owner, byPort := external[t.addr.Addr()], nodePorts[t.addr.Port()]; {
		case x.clusterIPOwner(t.addr.Addr()) != "":
			x.notPod(t.Address, "the cluster IP of Service "+x.clusterIPOwner(t.addr.Addr()), to)
		case owner != "":
			x.notPod(t.Address, "at an external address of Service "+string(owner), to)
		case local && byPort != "":
			x.notPod(t.Address, "a node port of this node, of Service "+string(byPort), to)
		}
	}
}

func (x *explainer) notPod(endpoint, what, to string) {
	x.cause("the endpoint %s is %s: rules translate a packet once, so %s", endpoint, what, to)
	x.remedy("let the EndpointSlices of Service %s name its pods: an endpoint cannot be a Service's address or node port",
		x.frontend.Service)
}

// serviceAddresses returns which Services have external addresses, and which node ports of the packet's protocol.
func (x *explainer) serviceAddresses() (external map[netip.Addr]service.Name, nodePorts map[uint16]service.Name) {
	external, nodePorts = map[netip.Addr]service.Name{}, map[uint16]service.Name{}
	for name, s := range x.snapshot().Services.All() {
		for _, a := range slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) {
			external[a] = name
		}
		for i := range s.Ports {
			if p := &s.Ports[i]; p.NodePort != 0 && uint8(p.Protocol) == x.question.Packet.Protocol {
				nodePorts[p.NodePort] = name
			}
		}
	}
	return external, nodePorts
}
