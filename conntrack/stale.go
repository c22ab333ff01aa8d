package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/share"
)

// Reason says why a flow is stale.
type Reason string

// The reasons why an entry that is not translated is stale: the rules would translate, refuse or drop its packets now.
const (
	// ServiceAddress: the flow goes to an address and port of a Service.
	ServiceAddress Reason = "service address"
	// ClusterIP: the flow goes to a cluster IP with a port or protocol that the Service does not
	// have. The rules would refuse it now.
	ClusterIP Reason = "unknown port of a cluster IP"
	// Unallocated: the flow goes to an address of a ServiceCIDR that no Service has. The rules
	// would drop it now.
	Unallocated Reason = "unallocated address"
	// NodePort: the flow goes to a node port on an address that serves node ports.
	NodePort Reason = "node port"
)

// The reasons why a translated entry is stale: the rules would not lead the flow there any more. The translation may
// have kept the flow's destination.
const (
	// EndpointGone: the flow leads to a former endpoint of its Service, or to an endpoint that does
	// not serve.
	EndpointGone Reason = "endpoint gone"
	// ServiceGone: no Service has the flow's address and port any more, and the flow leads to a
	// former endpoint of them.
	ServiceGone Reason = "service gone"
	// ForbiddenSource: the flow is unanswered, and source ranges do not admit its client.
	ForbiddenSource Reason = "source not in the ranges"
	// ForbiddenPolicy: the flow is unanswered and leads to another node's endpoint, but the traffic
	// policy is Local.
	ForbiddenPolicy Reason = "traffic policy"
)

// Stale reports whether the flow is stale, and why: its packets miss their Service, or
// reach a former endpoint. A flow is never stale if the rules would make it again in
// the same way.
func (x *Index) Stale(f Flow) (reason Reason, stale bool) {
	switch {
	case f.Translated():
		reason = x.misled(&f) // Our rules see packets of all zones.
	case f.Zone == 0:
		reason = x.missed(&f)
		// In other zones, such as those of a software switch, flows to Service addresses
		// have no DNAT by design: their packets pass our rules in another zone.
	}
	return reason, reason != ""
}

// missed judges an entry that is not translated. An empty reason means that it may stay.
func (x *Index) missed(f *Flow) Reason {
	// An assured entry of TCP or SCTP has a peer that finished the handshake: for
	// example a local listener on the number of a node port, older than the Service.
	// That connection works, and removing the entry would break it: the rules would
	// send its next packet to an endpoint that does not know the connection. New
	// connections go to the Service. No connection that misses its Service can be
	// assured, since no handshake comes back from nowhere. UDP is different: each
	// datagram can begin a flow again, and while the client sends, the old entry would
	// keep the flow away from the Service.
	if f.Status&Assured != 0 && (f.Protocol == service.TCP || f.Protocol == service.SCTP) {
		return x.orphanedIdentity(f)
	}
	dst := f.Original.Dst
	o, ok := x.owner(f)
	if ok {
		// The kernel does not set IPS_DST_NAT for a DNAT to the destination that the
		// packet already has (nf_nat_setup_info). So this is a flow that the rules
		// sent to its own destination, such as an ingress on the host network whose
		// external IP is the node's address.
		if e := o.endpoint(f, dst); e != nil && unserved(o.service, f, e) {
			return EndpointGone
		} else if e != nil {
			return x.forbidden(&o, f, e)
		}
	}
	switch {
	case ok && x.passes(&o, f):
		return ""
	case ok && !o.nodePort:
		return ServiceAddress
	case ok:
		return NodePort
	case x.refused(dst.Addr()):
		return ClusterIP
	case x.Unallocated(dst.Addr()):
		return Unallocated
	}
	return ""
}

// orphanedIdentity is about a connection to a former endpoint that was its own destination: it has no DNAT, but it ends
// like the connections to other former endpoints where the Service or Options.Established asks for that.
func (x *Index) orphanedIdentity(f *Flow) Reason {
	o, ok := x.owner(f)
	switch {
	case !ok:
		return x.orphaned(f)
	case o.endpoint(f, f.Original.Dst) == nil && x.former(f):
		return EndpointGone
	}
	return ""
}

// misled judges a translated entry. An empty reason means that it may stay.
func (x *Index) misled(f *Flow) Reason {
	o, ok := x.owner(f)
	if !ok {
		return x.orphaned(f)
	}
	e := o.endpoint(f, f.Reply.Src)
	switch {
	case e == nil && (x.former(f) || x.presumed(&o, f)):
		return EndpointGone
	case e == nil:
		return "" // Another program's rules lead there.
	case unserved(o.service, f, e):
		return EndpointGone
	}
	return x.forbidden(&o, f, e)
}

// forbidden says why the rules would keep the flow's client from the endpoint now. An empty reason means that they
// would not.
func (x *Index) forbidden(o *owner, f *Flow, e *service.Endpoint) Reason {
	switch {
	case f.Status&SeenReply != 0:
		return "" // It is answered: it works, and stays.
	case !x.admits(o.service, o.claim(f), f.Original.Src.Addr()):
		return ForbiddenSource
	case x.elsewhere(o, f, e):
		return ForbiddenPolicy
	}
	return ""
}

// unserved says that the endpoint is listed but does not serve, and that the flow has no
// reason to stay with it. Connections stay with a pod that is only unready. Datagrams
// that it does not serve go to another endpoint, unless the Service asks that they stay while
// it terminates. So do first packets without an answer:
// that is no connection yet. The endpoint of a node without power is listed for minutes,
// and a client that takes the same source port again would meet the old entry.
func unserved(s *service.Service, f *Flow, e *service.Endpoint) bool {
	switch {
	case e.Serves():
		return false
	case f.Protocol == service.UDP:
		return !e.Terminating || s.Options.UDPHandling != service.UDPPreserve
	}
	return f.Status&SeenReply == 0
}

// orphaned judges an entry with DNAT whose destination no Service has. Our former
// rules may have made it, or another program: Docker and the portmap plugin publish
// ports in the same way. So the entry is stale only if it leads to a former
// endpoint of exactly its address and port. And it stays where another proxy serves
// a Service there: that proxy may have taken the Service over with all its endpoints
// a moment ago. An answer may be on its way, and would reach the client untranslated.
func (x *Index) orphaned(f *Flow) Reason {
	if x.former(f) && !x.served(f) {
		return ServiceGone
	}
	return ""
}

// served says that another proxy serves a Service at the flow's destination. Where it serves ranges of ports, that
// holds for all ports.
func (x *Index) served(f *Flow) bool {
	return x.others[addressClaim(f)] > 0 || x.others[addressClaim(f).Range()] > 0 || x.own.answers(f) &&
		x.others[nodePortClaim(f)] > 0
}

// former says that the flow leads to a former endpoint of the address and port, or node
// port, that it goes to, and may be removed. Our rules have made it, not those of another program.
func (x *Index) former(f *Flow) bool {
	d, now := x.departure(f), x.departed.now
	return d != nil && (expendable(f) || d.cut.due(now) || !d.cut.kept && x.silence.givenUp(f, d.at, now))
}

// departure is that of the endpoint that the flow leads to, from the address and port, or node port, that it goes to;
// nil if none is known.
func (x *Index) departure(f *Flow) *departure {
	claims := [3]service.Claim{addressClaim(f), addressClaim(f).Range(), nodePortClaim(f)}
	known := claims[:2]
	if x.own.answers(f) {
		known = claims[:]
	}
	return x.departed.last(f.Original.Dst.Port(), f.Reply.Src, known...)
}

// presumed says that the flow counts as one to a former endpoint of its owner since no other program translates, and
// may be removed. What is to be cut after a time is not: see Note.
func (x *Index) presumed(o *owner, f *Flow) bool {
	return x.departed.anything != 0 && (expendable(f) || x.cutOf(o.service, f.Protocol).due(x.departed.now))
}

// expendable says that an entry without a valid endpoint may be removed, whatever anybody asks for. The next
// datagram of a UDP flow makes a new entry, and an unanswered flow loses nothing.
func expendable(f *Flow) bool { return f.Protocol == service.UDP || f.Status&SeenReply == 0 }

// elsewhere says that the endpoint is on another node, although the traffic policy
// for this client allows only endpoints on this node. Any endpoint on this node is
// fine, ready or not.
func (x *Index) elsewhere(o *owner, f *Flow, e *service.Endpoint) bool {
	node := x.snapshot.Node
	if node == nil || e.Node == node.Name {
		return false
	}
	if !o.nodePort && slices.Contains(o.service.ClusterIPs, f.Original.Dst.Addr()) {
		return o.service.InternalPolicy == service.Local
	}
	return o.service.ExternalPolicy == service.Local && o.service.FailoverAt(o.claim(f)) != service.FailoverCluster &&
		x.outsider(node, f.Original.Src.Addr())
}

// claim is the one by which the owner has the flow's destination.
func (o *owner) claim(f *Flow) service.Claim {
	switch {
	case o.nodePort:
		return nodePortClaim(f)
	case o.port.IsRange():
		return addressClaim(f).Range()
	}
	return addressClaim(f)
}

// endpoint returns the owner's endpoint that the flow leads to if it leads to the address; nil if that is none.
func (o *owner) endpoint(f *Flow, to netip.AddrPort) *service.Endpoint {
	return o.port.Endpoint(f.Original.Dst.Port(), to)
}

// passes says that the rules leave such a packet to routing, untranslated, as the Service asks for clients from outside
// while the node has no endpoint, and for all clients while there is none.
func (x *Index) passes(o *owner, f *Flow) bool {
	dst, src := f.Original.Dst.Addr(), f.Original.Src.Addr()
	if o.service.FailoverAt(o.claim(f)) != service.FailoverPass || x.snapshot.Node == nil ||
		!x.admits(o.service, o.claim(f), src) {
		return false
	}
	if x.refused(dst) || x.Unallocated(dst) {
		return false // What leaves for an address of Services is dropped.
	}
	at := portInFamily{o.port, f.Family()}
	n, known := x.counts[at]
	if !known {
		n = share.Count(o.service, o.port, x.snapshot.Node, f.Family())
		x.counts[at] = n
	}
	return n.Cluster == 0 || n.Local == 0 && !x.insider(x.snapshot.Node, src)
}

// insider says that the address is certainly the node's, or that of a pod on it.
func (x *Index) insider(node *service.Node, a netip.Addr) bool {
	if x.own.has(a) || a.IsLoopback() {
		return true
	}
	if x.options.Pod == nil || !slices.ContainsFunc(node.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(a) }) {
		return false
	}
	pod, known := x.options.Pod(node, a)
	return known && pod
}

// outsider says that the address is certainly neither the node's nor a pod's.
func (x *Index) outsider(node *service.Node, a netip.Addr) bool {
	if x.own.has(a) || a.IsLoopback() || x.options.Pod == nil {
		return false
	}
	pod, known := x.options.Pod(node, a)
	return known && !pod
}
