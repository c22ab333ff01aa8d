package ruleset_test

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// This file has the oracle's knowledge of services and of the node.

// target is a service's port, reached by an address or a node port.
type target struct {
	s    *service.Service
	port *service.Port
	// at is the address and port; a node port has its family's unspecified
	// address.
	at netip.AddrPort
}

// address returns the target at an address and port: that of a service's port, or that of ranges with the port, if
// their service has the address by a better field or is older.
func (o *oracle) address(dst netip.AddrPort, protocol service.Protocol) *target {
	t, r := o.portAt(dst, protocol), o.rangesAt(dst, protocol)
	switch {
	case r == nil || !r.port.Ranges.Has(dst.Port()):
		return t
	case t == nil:
		o.saw("ranges: found")
		return r
	case t.s == r.s:
		o.saw("ranges: own port first")
		return t
	}
	field := func(s *service.Service) int {
		switch {
		case slices.Contains(s.ClusterIPs, dst.Addr()):
			return 0
		case slices.Contains(s.LoadBalancerIPs, dst.Addr()):
			return 1
		}
		return 2
	}
	if c := field(t.s) - field(r.s); c < 0 || c == 0 && slices.Index(o.byAge(), t.s) < slices.Index(o.byAge(), r.s) {
		o.saw("ranges: another's port first")
		return t
	}
	o.saw("ranges: before another's port")
	return r
}

// rangesAt returns the service port that is ranges, of the oldest service that has the cluster IP, or else of the
// oldest with the load balancer's address, or else, at an address that is nobody's cluster IP, of the oldest with the
// external IP. The ranges need not have the port.
func (o *oracle) rangesAt(dst netip.AddrPort, protocol service.Protocol) *target {
	for field, addresses := range []func(*service.Service) []netip.Addr{
		func(s *service.Service) []netip.Addr { return s.ClusterIPs },
		func(s *service.Service) []netip.Addr { return s.LoadBalancerIPs },
		func(s *service.Service) []netip.Addr { return s.ExternalIPs },
	} {
		external := field == 2
		for _, s := range o.byAge() {
			i := slices.IndexFunc(s.Ports, func(p service.Port) bool { return p.Protocol == protocol && p.IsRange() })
			switch {
			case i < 0 || !inFamily(s, ip.Of(dst.Addr())) || !slices.Contains(addresses(s), dst.Addr()):
			case external && o.isClusterIP(dst.Addr()):
				o.saw("ranges: external address on another's cluster IP")
				return nil
			case external:
				o.saw("ranges: external address")
				fallthrough
			default:
				return &target{s, &s.Ports[i], dst}
			}
		}
	}
	return nil
}

// portAt returns the oldest service that has the address as cluster IP and serves the
// port on it. Without one it returns the oldest that has the address from its load
// balancer, then the oldest that has it as external address, then nil.
func (o *oracle) portAt(dst netip.AddrPort, protocol service.Protocol) *target {
	var external, balanced *target
	for _, s := range o.byAge() {
		i := slices.IndexFunc(s.Ports, func(p service.Port) bool {
			return p.Protocol == protocol && p.Port == dst.Port() && !p.IsRange()
		})
		switch {
		case i < 0 || !inFamily(s, ip.Of(dst.Addr())):
		case slices.Contains(s.ClusterIPs, dst.Addr()):
			if external != nil || balanced != nil {
				o.saw("conflict: cluster IP before an older external address")
			}
			return &target{s, &s.Ports[i], dst}
		case slices.Contains(s.LoadBalancerIPs, dst.Addr()):
			if balanced == nil {
				balanced = &target{s, &s.Ports[i], dst}
			}
		case external == nil && slices.Contains(s.ExternalIPs, dst.Addr()):
			external = &target{s, &s.Ports[i], dst}
		}
	}
	if balanced != nil {
		if external != nil {
			o.saw("conflict: load balancer's address before an external one")
		}
		external = balanced
	}
	if external != nil && o.isClusterIP(dst.Addr()) {
		o.saw("conflict: external address on another's cluster IP")
	}
	return external
}

// target returns the target of the packet, or nil if the packet is for no service.
func (o *oracle) target(p nft.Packet) *target {
	if t := o.address(p.Dst, service.Protocol(p.Protocol)); t != nil {
		return t
	}
	return o.nodePort(p.Dst, service.Protocol(p.Protocol))
}

// nodePort returns the oldest service of the family that has the node port.
func (o *oracle) nodePort(dst netip.AddrPort, protocol service.Protocol) *target {
	family := ip.Of(dst.Addr())
	for _, s := range o.byAge() {
		for i, p := range s.Ports {
			if p.NodePort != 0 && p.NodePort == dst.Port() && p.Protocol == protocol && inFamily(s, family) {
				return &target{s, &s.Ports[i], netip.AddrPortFrom(family.Unspecified(), p.NodePort)}
			}
		}
	}
	return nil
}

// inFamily says whether a service exists in a family: it does if it has a cluster IP
// there.
func inFamily(s *service.Service, family ip.Family) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return family.Has(a) })
}

func (o *oracle) byAge() []*service.Service {
	return slices.SortedFunc(slices.Values(o.services), func(a, b *service.Service) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(string(a.Name), string(b.Name)))
	})
}

func (o *oracle) isClusterIP(a netip.Addr) bool {
	return slices.ContainsFunc(o.services, func(s *service.Service) bool { return slices.Contains(s.ClusterIPs, a) })
}

// choose returns the ready endpoints. If none is ready, it returns the endpoints that
// serve while they terminate. With here it looks only at this node's endpoints.
func (o *oracle) choose(p *service.Port, family ip.Family, here bool) []netip.AddrPort {
	near := func(service.Endpoint) bool { return true }
	if !here {
		near = o.topology(p, family)
	}
	var ready, terminating []netip.AddrPort
	for e := range p.Endpoints.All() {
		switch {
		case !family.Has(e.Addr.Addr()) || here && e.Node != o.node.Name:
		case e.Weight.Number() == 0:
			o.saw("endpoint of weight 0")
		case e.Ready && near(e):
			ready = append(ready, e.Addr)
		case e.Ready:
		case e.Serving && e.Terminating:
			terminating = append(terminating, e.Addr)
		}
	}
	chosen := ready
	if len(ready) == 0 && len(terminating) > 0 {
		o.saw("terminating endpoints")
		chosen = terminating
	}
	slices.SortFunc(chosen, netip.AddrPort.Compare)
	return chosen
}

// onNode says whether some service sends connections to the address, and its endpoint may
// be on this node: it names the node or none, or the address is in the node's podCIDRs.
func (o *oracle) onNode(a netip.Addr) bool {
	for _, s := range o.services {
		for i := range s.Ports {
			for _, to := range o.reachable(s, &s.Ports[i], ip.Of(a)) {
				if to.Addr() == a && slices.ContainsFunc(slices.Collect(s.Ports[i].Endpoints.All()), func(e service.Endpoint) bool {
					ours := slices.ContainsFunc(o.node.PodCIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
					if e.Addr == to && e.Node != o.node.Name {
						if e.Node == "" {
							o.saw("hairpin: endpoint without nodeName")
						} else if ours {
							o.saw("hairpin: endpoint with another nodeName")
						}
					}
					return e.Addr == to && (e.Node == o.node.Name || e.Node == "" || ours)
				}) {
					return true
				}
			}
		}
	}
	return false
}

// topology returns a filter of endpoints. If all ready endpoints have node hints and one
// is for this node, it passes those for this node. Otherwise it does the same with zones.
// Otherwise it passes all.
func (o *oracle) topology(p *service.Port, family ip.Family) func(service.Endpoint) bool {
	ready := slices.DeleteFunc(slices.Collect(p.Endpoints.All()), func(e service.Endpoint) bool {
		return !e.Ready || e.Weight.Number() == 0 || !family.Has(e.Addr.Addr())
	})
	forNode := func(e service.Endpoint) bool {
		return slices.Contains(strings.Split(string(e.Nodes), ","), o.node.Name)
	}
	forZone := func(e service.Endpoint) bool {
		return o.node.Zone != "" && slices.Contains(strings.Split(string(e.Zones), ","), o.node.Zone)
	}
	noNodes := func(e service.Endpoint) bool { return e.Nodes == "" }
	noZones := func(e service.Endpoint) bool { return e.Zones == "" }
	switch {
	case slices.ContainsFunc(ready, forNode) && !slices.ContainsFunc(ready, noNodes):
		o.saw("topology: by node")
		return forNode
	case slices.ContainsFunc(ready, forZone) && !slices.ContainsFunc(ready, noZones):
		o.saw("topology: by zone")
		return forZone
	}
	return func(service.Endpoint) bool { return true }
}

// reachable returns all endpoints that some connection to the port may get.
func (o *oracle) reachable(s *service.Service, p *service.Port, family ip.Family) []netip.AddrPort {
	var all []netip.AddrPort
	ofFamily := func(a netip.Addr) bool { return family.Has(a) }
	external := p.NodePort != 0 || slices.ContainsFunc(s.ExternalIPs, ofFamily) || slices.ContainsFunc(s.LoadBalancerIPs,
		ofFamily)
	if s.InternalPolicy == service.Cluster || external {
		all = append(all, o.choose(p, family, false)...)
	}
	if s.InternalPolicy == service.Local || external && s.ExternalPolicy == service.Local {
		all = append(all, o.choose(p, family, true)...)
	}
	return all
}

func (o *oracle) local(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(o.node.HostAddresses, a)
}

// servesNodePorts says whether the address serves node ports. With "primary" the node's
// first address of the family does. With CIDRs the local addresses in them do. A family
// without a CIDR, or with one that holds all addresses, serves on all local addresses.
// Loopback addresses do not: see servesLoopback.
func (o *oracle) servesNodePorts(a netip.Addr) bool {
	if a.IsLoopback() {
		return false
	}
	var cidrs []netip.Prefix
	primary := len(o.nodePortAddresses) == 0
	for _, s := range o.nodePortAddresses {
		if s == "primary" {
			primary = true
		} else if c := netip.MustParsePrefix(s); c.Addr().Is6() == a.Is6() {
			cidrs = append(cidrs, c)
		}
	}
	if slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Bits() == 0 }) {
		return o.local(a)
	}
	if primary {
		for _, own := range o.node.Addresses {
			if own.Is6() == a.Is6() {
				if own == a {
					return true
				}
				return o.local(a) && slices.ContainsFunc(cidrs, func(c netip.Prefix) bool { return c.Contains(a) })
			}
		}
	}
	return o.local(a) && (len(cidrs) == 0 || slices.ContainsFunc(cidrs, func(c netip.Prefix) bool {
		return c.Contains(a)
	}))
}

// servesLoopback says whether the packet is one that the proxy sends for a client on loopback, where a range of
// loopback addresses with 127.0.0.1 or ::1 is in the list.
func (o *oracle) servesLoopback(p nft.Packet) bool {
	dst := p.Dst.Addr()
	return p.FromNode && !p.Src.Addr().IsLoopback() && slices.Contains([]string{"127.0.0.1", "::1"}, dst.String()) &&
		slices.ContainsFunc(o.nodePortAddresses, func(s string) bool {
			c, err := netip.ParsePrefix(s)
			return err == nil && c.Addr().IsLoopback() && c.Contains(dst)
		})
}

// targets returns the addresses by which the client reaches the Service port, and its
// node port.
func (o *oracle) targets(v visit) []*target {
	i := slices.IndexFunc(o.services, func(s *service.Service) bool { return s.Name == v.service })
	if i < 0 {
		return nil
	}
	s := o.services[i]
	var all []*target
	add := func(t *target) {
		if t != nil && t.s == s && t.port.Port == v.port && t.port.Protocol == v.protocol &&
			t.at.Addr().Is6() == v.client.Is6() {
			all = append(all, t)
		}
	}
	for _, a := range s.Addresses() {
		add(o.address(netip.AddrPortFrom(a, v.port), v.protocol))
	}
	unspecified := ip.Of(v.client).Unspecified()
	for _, p := range s.Ports {
		if p.NodePort != 0 {
			add(o.nodePort(netip.AddrPortFrom(unspecified, p.NodePort), v.protocol))
		}
	}
	return all
}

// direct returns the ranges of the annotation source-ranges that count for a node port or an external IP; nil if
// everybody may come.
func (o *oracle) direct(t *target) []netip.Prefix {
	everybody := func(r netip.Prefix) bool { return r.Bits() == 0 && r.Addr().Is6() == t.at.Addr().Is6() }
	direct := t.s.Options.SourceRanges
	if direct == nil || slices.ContainsFunc(direct.Ranges(), everybody) || !t.at.Addr().IsUnspecified() &&
		!slices.Contains(t.s.ExternalIPs, t.at.Addr()) {
		return nil
	}
	return append([]netip.Prefix{}, direct.Ranges()...)
}

// asOtherNode says whether the packet comes in as one of another node does: by the interface that has the address which
// it asks, unless pods of the node may do so, too.
func (o *oracle) asOtherNode(p nft.Packet) bool {
	if !p.ToInput {
		return false
	}
	a := p.Dst.Addr()
	inPods := false
	for _, r := range o.cfg.PodRanges(o.node, ip.Of(a)) {
		inPods = inPods || r.Contains(a)
	}
	if slices.Contains(o.node.SharedAddresses, a) || inPods && !slices.Contains(o.node.Addresses, a) {
		o.saw("external Local: a pod of any node at an address that pods share")
		return false
	}
	return true
}

// refusesOtherPod says that a node port without an endpoint on this node refuses the packet, of a pod of another node,
// before source ranges count.
func (o *oracle) refusesOtherPod(p nft.Packet, t *target) bool {
	pod, _ := o.fromPod(p)
	lists := o.lists(t)
	return o.asOtherNode(p) && pod && !o.podOfNode(p) && !o.local(p.Src.Addr()) && t.s.ExternalPolicy == service.Local &&
		t.s.Options.ExternalFailover != service.FailoverCluster && len(lists[all]) > 0 && len(lists[own]) == 0
}
