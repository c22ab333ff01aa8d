package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/internal/service"
)

// Reason says why a flow is stale.
type Reason string

// The reasons why an entry that was never DNATed is stale: a service should
// have had it.
const (
	// ServiceAddress: it goes to an address and port of a service, which has
	// endpoints or refuses.
	ServiceAddress Reason = "service address"
	// ClusterIP: it goes to a cluster IP, by a port or protocol that the
	// service does not have, and would be refused now.
	ClusterIP Reason = "unknown port of a cluster IP"
	// Unallocated: it goes to an address that cluster IPs come from but that no
	// service has, and would be dropped now.
	Unallocated Reason = "unallocated address"
	// NodePort: it goes to a node port on an address that serves node ports.
	NodePort Reason = "node port"
)

// The reasons why an entry that was DNATed is stale: it leads where no service
// leads any more.
const (
	// EndpointGone: it leads to what is not, or no longer, an endpoint of the
	// service that it goes to.
	EndpointGone Reason = "endpoint gone"
	// ServiceGone: nobody has the address and port that it goes to any more, and
	// it leads to what was an endpoint there.
	ServiceGone Reason = "service gone"
	// ForbiddenSource: it was not answered yet, and its client is not among
	// those that loadBalancerSourceRanges lets in.
	ForbiddenSource Reason = "source not in the ranges"
	// ForbiddenPolicy: it was not answered yet, and leads to another node's
	// endpoint where the traffic policy is Local.
	ForbiddenPolicy Reason = "traffic policy"
)

// Stale says whether the flow has to go, and why: its packets miss the service
// that they are for, or reach an endpoint that is none any more. A flow that
// the rules would make today as it is, is never stale.
func (x *Index) Stale(f Flow) (reason Reason, stale bool) {
	switch {
	case f.Zone != 0:
		// Our rules use the default zone. In others, such as a software
		// switch's, flows to service addresses are un-DNATed by design.
	case f.Status&DstNAT == 0:
		reason = x.missed(&f)
	default:
		reason = x.misled(&f)
	}
	return reason, reason != ""
}

// missed is about an entry that was never DNATed; no reason means that it may
// stay.
func (x *Index) missed(f *Flow) Reason {
	// An assured entry of a protocol with connections has a peer that finished
	// the handshake: a local listener on a node-port number, say, that was
	// there before the service. That connection works and would not survive,
	// since a new entry in its middle is sent to an endpoint that never heard
	// of it. Nothing un-DNATed can be assured that should be a service's: from
	// a black hole no handshake comes back. New connections get the service.
	// A UDP flow, however, has no beginning that a later datagram lacks, and
	// as long as it talks its entry would keep the service away.
	if f.Status&Assured != 0 && (f.Protocol == service.TCP || f.Protocol == service.SCTP) {
		return ""
	}
	dst := f.Original.Dst
	o, ok := x.owner(f)
	if ok && endpoint(o.port.Endpoints, dst) != nil {
		// The kernel does not set IPS_DST_NAT for a DNAT that changes nothing
		// (nf_nat_setup_info): this is what a flow looks like that the rules
		// sent where it was going, as with an ingress on the host network
		// whose external IP is the node's. It counts until the endpoint is
		// removed, since one that is only not ready keeps its flows.
		return ""
	}
	switch {
	case ok && !o.nodePort:
		return ServiceAddress
	case ok:
		return NodePort
	case x.refused(dst.Addr()):
		return ClusterIP
	case x.unallocated(dst.Addr()):
		return Unallocated
	}
	return ""
}

// misled is about an entry that was DNATed; no reason means that it may stay.
func (x *Index) misled(f *Flow) Reason {
	o, ok := x.owner(f)
	if !ok {
		return x.orphaned(f)
	}
	e := endpoint(o.port.Endpoints, f.Reply.Src)
	switch {
	case e == nil && x.expendable(f):
		return EndpointGone
	case e == nil:
		return ""
	case f.Protocol == service.UDP && !e.Ready && !e.Serving:
		// Connections stay with a pod that is only unready, but datagrams
		// that it does not serve have somewhere better to go.
		return EndpointGone
	case f.Status&SeenReply != 0:
		return "" // it works, and what is in use is not taken away
	case !o.nodePort && !x.admits(o.service, addressClaim(f), f.Original.Src.Addr()):
		return ForbiddenSource
	case x.elsewhere(&o, f, e):
		return ForbiddenPolicy
	}
	return ""
}

// orphaned is about an entry that goes to what no service has, DNATed by our
// rules as they were, or by somebody else: Docker and the portmap plugin
// publish ports in the same way, and a service with the label
// service.kubernetes.io/service-proxy-name is another proxy's, be its address
// one of a ServiceCIDR. So it must lead to what was an endpoint of the very
// address and port.
func (x *Index) orphaned(f *Flow) Reason {
	if !x.expendable(f) {
		return ""
	}
	if x.departed.has(addressClaim(f), f.Reply.Src) ||
		x.serving[f.Original.Dst.Addr()] && x.departed.has(nodePortClaim(f), f.Reply.Src) {
		return ServiceGone
	}
	return ""
}

// expendable says that an entry which leads nowhere goes: that of a datagram's
// flow, since the next datagram makes a better one; one without an answer,
// since nothing is lost; and others if so asked.
func (x *Index) expendable(f *Flow) bool {
	return f.Protocol == service.UDP || f.Status&SeenReply == 0 || slices.Contains(x.options.Established, f.Protocol)
}

// elsewhere says that the endpoint is on another node although the traffic
// policy that the client is under wants one on this node. Which of the node's
// endpoints it is, and how ready, is not asked: that is as good as any.
func (x *Index) elsewhere(o *owner, f *Flow, e *service.Endpoint) bool {
	node := x.snapshot.Node
	if node == nil || e.Node == node.Name {
		return false
	}
	if !o.nodePort && slices.Contains(o.service.ClusterIPs, f.Original.Dst.Addr()) {
		return o.service.InternalPolicy == service.Local
	}
	return o.service.ExternalPolicy == service.Local && x.outsider(node, f.Original.Src.Addr())
}

// outsider says that the address is, for sure, neither the node's nor a pod's.
func (x *Index) outsider(node *service.Node, a netip.Addr) bool {
	if x.local[a] || a.IsLoopback() || x.options.Pod == nil {
		return false
	}
	pod, known := x.options.Pod(node, a)
	return known && !pod
}

// endpoint finds the one of the address in a sorted list; nil if there is none.
func endpoint(list []service.Endpoint, addr netip.AddrPort) *service.Endpoint {
	i, found := slices.BinarySearchFunc(list, addr, func(e service.Endpoint, a netip.AddrPort) int {
		return e.Addr.Compare(a)
	})
	if !found {
		return nil
	}
	return &list[i]
}
