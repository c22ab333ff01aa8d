package conntrack_test

import (
	"net/netip"
	"slices"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft/ruleset"
)

// oracle says which flows are stale, in the slowest and simplest way: it asks every
// Service in turn and remembers whole snapshots.
type oracle struct {
	cfg         *ruleset.Config
	established []service.Protocol
	// routes are the local routes.
	routes []netip.Prefix
	// history has all snapshots, the present one last. Of the first forgotten ones the oracle knows only the endpoints
	// that left in them and whose connections were still to be cut at forgotAt, or lately.
	history   []moment
	forgotten int
	forgotAt  time.Time
	// clock is the time.
	clock time.Time
}

// moment is a snapshot that came into force at a time.
type moment struct {
	service.Snapshot
	at time.Time
}

func (o *oracle) now() service.Snapshot { return o.history[len(o.history)-1].Snapshot }

// ask is the destination of a flow in one snapshot.
type ask struct {
	s        *service.Service
	p        *service.Port
	nodePort bool
}

func byAddress(s *service.Service, p *service.Port, f *conntrack.Flow) bool {
	return slices.Contains(s.Addresses(), f.Original.Dst.Addr()) && !p.IsRange() && p.Port == f.Original.Dst.Port() &&
		p.Protocol == f.Protocol
}

// byRanges says that the port's ranges have the flow's port.
func byRanges(s *service.Service, p *service.Port, f *conntrack.Flow) bool {
	dst := f.Original.Dst
	return p.IsRange() && p.Protocol == f.Protocol && p.Ranges.Has(dst.Port()) && slices.Contains(s.Addresses(),
		dst.Addr())
}

func byNodePort(s *service.Service, p *service.Port, f *conntrack.Flow) bool {
	return p.NodePort != 0 && p.NodePort == f.Original.Dst.Port() && p.Protocol == f.Protocol && s.InFamily(f.Family())
}

// asks finds the Service that has the destination of the flow.
func (o *oracle) asks(f *conntrack.Flow) *ask {
	s, dst := o.now(), f.Original.Dst
	for name, svc := range s.Services.All() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if byAddress(svc, p, f) && !s.Conflicts.At(name).Has(service.Claim{Addr: dst.Addr(), Protocol: f.Protocol,
				Port: dst.Port()}) {
				return &ask{svc, p, false}
			}
		}
	}
	for name, svc := range s.Services.All() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if byRanges(svc, p, f) && !s.Conflicts.At(name).Has(service.Claim{Addr: dst.Addr(), Protocol: f.Protocol}) {
				return &ask{svc, p, false}
			}
		}
	}
	if !o.servesNodePorts(dst.Addr()) && !o.onLoopback(f) {
		return nil
	}
	for name, svc := range s.Services.All() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if byNodePort(svc, p, f) && !s.Conflicts.At(name).Has(service.NodePortClaim(f.Family(), p)) {
				return &ask{svc, p, true}
			}
		}
	}
	return nil
}

// others says that another proxy serves a Service at the flow's destination, by whatever port if it has ranges there.
func (o *oracle) others(f *conntrack.Flow) bool {
	dst := f.Original.Dst.Addr()
	for _, svc := range o.now().Others.All() {
		for i := range svc.Ports {
			p := &svc.Ports[i]
			ranges := p.IsRange() && p.Protocol == f.Protocol && svc.InFamily(f.Family()) &&
				(slices.Contains(svc.ClusterIPs, dst) || slices.Contains(svc.LoadBalancerIPs, dst))
			if ranges || byAddress(svc, p, f) || byNodePort(svc, p, f) && (o.servesNodePorts(dst) || o.onLoopback(f)) {
				return true
			}
		}
	}
	return false
}

func (o *oracle) clusterIP(a netip.Addr) bool {
	for _, svc := range o.now().Services.All() {
		if slices.Contains(svc.ClusterIPs, a) {
			return true
		}
	}
	return false
}

func (o *oracle) unallocated(a netip.Addr) bool {
	for _, cidr := range o.now().ServiceCIDRs.All() {
		if cidr.Contains(a) {
			return !o.clusterIP(a) && !o.local(a) && !o.spared(a)
		}
	}
	return false
}

// spared says that the rules let packets through since a host may have the address.
func (o *oracle) spared(a netip.Addr) bool {
	node, in, any := o.now().Node, false, false
	for _, cidr := range o.now().ServiceCIDRs.All() {
		in, any = in || cidr.Contains(a), any || cidr.Addr().Is6() == a.Is6()
	}
	for _, n := range node.Networks {
		if in && n.Contains(a) {
			return true
		}
	}
	return (in || !any) && slices.Contains(node.APIServers, a)
}

func (o *oracle) local(a netip.Addr) bool {
	return slices.Contains(o.now().Node.HostAddresses, a) || slices.ContainsFunc(o.routes, func(r netip.Prefix) bool {
		return r.Contains(a)
	})
}

func (o *oracle) servesNodePorts(a netip.Addr) bool {
	addrs, all := o.cfg.NodePortAddresses.On(o.now().Node, ip.Of(a))
	if all {
		return o.local(a) && !a.IsLoopback()
	}
	return slices.Contains(addrs, a)
}

// onLoopback says that nftproxy made the flow for a client on loopback.
func (o *oracle) onLoopback(f *conntrack.Flow) bool {
	src, dst := f.Original.Src.Addr(), f.Original.Dst.Addr()
	a, serves := o.cfg.NodePortAddresses.Loopback(o.now().Node, ip.Of(dst))
	return serves && a == dst && !src.IsLoopback() && o.local(src)
}

func (o *oracle) stale(f *conntrack.Flow) conntrack.Reason {
	a := o.asks(f)
	byIPVS := f.Protocol != icmp && f.Protocol != icmpv6 && f.Reply.Src != f.Original.Dst
	switch dnat := f.Status&conntrack.DstNAT != 0 || byIPVS; {
	case !dnat && f.Zone != 0:
		return ""
	case !dnat:
		return o.missed(f, a)
	}
	if a == nil {
		if o.gone(f) && !o.others(f) {
			return conntrack.ServiceGone
		}
		return ""
	}
	e := find(a.p, f, f.Reply.Src)
	switch {
	case e == nil && o.gone(f), e != nil && unserved(a.s, f, e):
		return conntrack.EndpointGone
	case e == nil:
		return ""
	}
	return o.forbidden(f, a, e)
}

// forbidden says why an unanswered flow may not be at the endpoint.
func (o *oracle) forbidden(f *conntrack.Flow, a *ask, e *service.Endpoint) conntrack.Reason {
	switch {
	case f.Status&conntrack.SeenReply != 0:
		return ""
	case !o.admitted(f, a):
		return conntrack.ForbiddenSource
	case o.restrictedToNode(f, a) && e.Node != o.now().Node.Name:
		return conntrack.ForbiddenPolicy
	}
	return ""
}

func (o *oracle) missed(f *conntrack.Flow, a *ask) conntrack.Reason {
	dst := f.Original.Dst
	switch {
	case f.Status&conntrack.Assured != 0 && (f.Protocol == service.TCP || f.Protocol == service.SCTP):
		switch {
		case a != nil && find(a.p, f, dst) != nil, !o.gone(f):
			return ""
		case a != nil:
			return conntrack.EndpointGone
		case o.others(f):
			return ""
		}
		return conntrack.ServiceGone
	case a != nil && find(a.p, f, dst) != nil: // The translation did not change the address.
		if unserved(a.s, f, find(a.p, f, dst)) {
			return conntrack.EndpointGone
		}
		return o.forbidden(f, a, find(a.p, f, dst))
	case a != nil && o.passes(f, a):
		return ""
	case a != nil && a.nodePort:
		return conntrack.NodePort
	case a != nil:
		return conntrack.ServiceAddress
	case o.clusterIP(dst.Addr()) && !o.local(dst.Addr()) && !o.spared(dst.Addr()):
		return conntrack.ClusterIP
	case o.unallocated(dst.Addr()):
		return conntrack.Unallocated
	}
	return ""
}

// unserved says that the endpoint serves nothing, and the flow may be a datagram or has no answer. A Service may ask
// that datagrams stay while the endpoint terminates.
func unserved(s *service.Service, f *conntrack.Flow, e *service.Endpoint) bool {
	if e.Ready || e.Serving {
		return false
	}
	if f.Protocol == service.UDP {
		return !(e.Terminating && s.Options.UDPHandling == service.UDPPreserve)
	}
	return f.Status&conntrack.SeenReply == 0
}

// had returns the Service by which the flow's destination had its endpoint in an earlier snapshot; nil if it had not.
func (o *oracle) had(i int, f *conntrack.Flow) *service.Service {
	then := oracle{cfg: o.cfg, routes: o.routes, history: o.history[i : i+1]}
	a := then.asks(f)
	if a != nil && find(a.p, f, f.Reply.Src) != nil && (!a.nodePort || o.servesNodePorts(f.Original.Dst.Addr()) ||
		o.onLoopback(f)) {
		return a.s
	}
	return nil
}

// cut says what becomes of answered connections by a Service to an endpoint that left after the snapshot i: never cut,
// or from a time on. timed says that this time is later than that of leaving.
func (o *oracle) cut(i int, s *service.Service, f *conntrack.Flow) (at time.Time, cut, timed bool) {
	left := o.history[i+1]
	if now, there := left.Services.Get(s.Name); there {
		s = now
	}
	asked := s.Options.Departed
	if asked.Fate == service.DepartedAsNode {
		cut = slices.Contains(o.established, f.Protocol)
	} else {
		cut = asked.Fate == service.DepartedCut
	}
	return left.at.Add(asked.After), cut && f.Protocol != service.UDP, cut && asked.After > 0 && f.Protocol != service.UDP
}

// left returns the last snapshot in which the flow's destination had its endpoint, and the Service then. ok is false if
// there is none that the oracle has not forgotten.
func (o *oracle) left(f *conntrack.Flow) (i int, s *service.Service, ok bool) {
	for i := len(o.history) - 2; i >= 0; i-- {
		s := o.had(i, f)
		if s == nil {
			continue
		}
		at, _, timed := o.cut(i, s, f)
		return i, s, i >= o.forgotten || timed && o.forgotAt.Before(at.Add(5*time.Minute))
	}
	return 0, nil, false
}

// was says that the flow leads to an endpoint that its destination had at some time.
func (o *oracle) was(f *conntrack.Flow) bool {
	_, _, ok := o.left(f)
	return ok
}

// gone says that the flow leads to such an endpoint, and that nothing keeps it there.
func (o *oracle) gone(f *conntrack.Flow) bool {
	i, s, ok := o.left(f)
	if !ok || f.Protocol == service.UDP || f.Status&conntrack.SeenReply == 0 {
		return ok
	}
	at, cut, _ := o.cut(i, s, f)
	return cut && !o.clock.Before(at)
}

// mayBe says that the flow leads to an endpoint of a Service that had its destination as
// address or as node port at some time. Where the two meet, the index may mistake one for the
// other.
func (o *oracle) mayBe(f *conntrack.Flow) bool {
	return slices.ContainsFunc(o.history, func(s moment) bool {
		for name, svc := range s.Services.All() {
			for i := range svc.Ports {
				p := &svc.Ports[i]
				address := service.Claim{Addr: f.Original.Dst.Addr(), Protocol: f.Protocol, Port: f.Original.Dst.Port()}
				had := byAddress(svc, p, f) && !s.Conflicts.At(name).Has(address) ||
					byRanges(svc, p, f) && !s.Conflicts.At(name).Has(address.Range()) ||
					byNodePort(svc, p, f) && !s.Conflicts.At(name).Has(service.NodePortClaim(f.Family(), p))
				if had && find(p, f, f.Reply.Src) != nil {
					return true
				}
			}
		}
		return false
	})
}

// find returns the endpoint of the port that the flow leads to, if it leads to the address. Ranges keep the flow's
// port.
func find(p *service.Port, f *conntrack.Flow, addr netip.AddrPort) *service.Endpoint {
	for e := range p.Endpoints.All() {
		at := e.Addr
		if p.IsRange() {
			at = netip.AddrPortFrom(at.Addr(), f.Original.Dst.Port())
		}
		if at == addr {
			return &e
		}
	}
	return nil
}

func (o *oracle) admitted(f *conntrack.Flow, a *ask) bool {
	if direct := a.s.Options.SourceRanges; direct != nil &&
		(a.nodePort || slices.Contains(a.s.ExternalIPs, f.Original.Dst.Addr())) {
		let := func(p netip.Prefix) bool { return p.Contains(f.Original.Src.Addr()) }
		if a.nodePort || !a.s.Firewall().Restricts(service.Claim{Addr: f.Original.Dst.Addr(), Protocol: f.Protocol,
			Port: f.Original.Dst.Port()}) {
			if _, all := direct.Of(f.Family()); !all {
				return slices.ContainsFunc(direct.Ranges(), let)
			}
		}
	}
	if a.nodePort {
		return true
	}
	claim := service.Claim{Addr: f.Original.Dst.Addr(), Protocol: f.Protocol, Port: f.Original.Dst.Port()}
	wall := a.s.Firewall()
	if !wall.Restricts(claim) {
		other, found := o.now().Restrictions.At(a.s.Name).On(claim)
		if !found {
			return true
		}
		wall = other.Firewall
	}
	sources, _ := wall.Admitted(o.now().Node, f.Family())
	return slices.ContainsFunc(sources, func(p netip.Prefix) bool { return p.Contains(f.Original.Src.Addr()) })
}

// restrictedToNode says that the client gets only endpoints of this node.
func (o *oracle) restrictedToNode(f *conntrack.Flow, a *ask) bool {
	if !a.nodePort && slices.Contains(a.s.ClusterIPs, f.Original.Dst.Addr()) {
		return a.s.InternalPolicy == service.Local
	}
	src := f.Original.Src.Addr()
	pod, known := o.cfg.Pod(o.now().Node, src)
	return a.s.ExternalPolicy == service.Local && a.s.Options.ExternalFailover != service.FailoverCluster && known &&
		!pod && !o.local(src) && !src.IsLoopback()
}

// passes says that the Service asks to leave the client to routing: it is not on this node, or there is no endpoint at
// all for anybody.
func (o *oracle) passes(f *conntrack.Flow, a *ask) bool {
	src, dst, node := f.Original.Src.Addr(), f.Original.Dst.Addr(), o.now().Node
	if a.nodePort || slices.Contains(a.s.ClusterIPs, dst) || a.s.ExternalPolicy == service.Cluster ||
		a.s.Options.ExternalFailover != service.FailoverPass {
		return false
	}
	if (o.clusterIP(dst) || o.unallocated(dst)) && !o.local(dst) && !o.spared(dst) || !o.admitted(f, a) {
		return false
	}
	anywhere, here := false, false
	for e := range a.p.Endpoints.All() {
		if takes := (e.Ready || e.Serving && e.Terminating) && !e.Drained(); takes && f.Family().Has(e.Addr.Addr()) {
			anywhere, here = true, here || e.Node == node.Name
		}
	}
	pod, known := o.cfg.Pod(node, src)
	onNode := known && pod && slices.ContainsFunc(node.PodCIDRs, func(r netip.Prefix) bool { return r.Contains(src) })
	return !anywhere || !here && !onNode && !o.local(src) && !src.IsLoopback()
}
