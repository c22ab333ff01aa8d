package ruleset_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// oracle tells the outcome of a new connection in the slowest and plainest way: it looks
// at every service in turn. It follows kube-proxy's behaviour, but refuses TCP with a
// reset instead of ICMP. It knows nothing of programs.
type oracle struct {
	node     *service.Node
	services []*service.Service
	cfg      ruleset.Config
	// serviceCIDRs are the ranges of cluster IPs.
	serviceCIDRs []netip.Prefix
	// nodePortAddresses is the value of --nodeport-addresses.
	nodePortAddresses []string
	// memory has the endpoint of each client, for session affinity.
	memory map[visit]netip.AddrPort
	// drawn is the endpoint that the rules have drawn by a hash, not valid if they drop what they draw. Which of the list
	// it is, the oracle does not know.
	drawn netip.AddrPort
	// seen counts how often each case came up.
	seen map[string]int
}

func (o *oracle) saw(what string) {
	if o.seen != nil {
		o.seen[what]++
	}
}

// outcomes lists all possible outcomes of the packet, sorted.
func (o *oracle) outcomes(p nft.Packet) []nft.Result {
	dst, protocol := p.Dst.Addr(), service.Protocol(p.Protocol)
	if t := o.address(p.Dst, protocol); t != nil {
		switch {
		case o.keptOut(p.Src.Addr(), t):
			return []nft.Result{{Fate: nft.Dropped}}
		case slices.Contains(t.s.ClusterIPs, dst):
			return o.internal(p, t)
		}
		return o.external(p, t)
	}
	if by, answers := o.answersPing(p); answers {
		hairpin := p.FromNode && p.Src.Addr() == by && o.onNode(by) // an endpoint on the host's network
		return []nft.Result{{Fate: nft.DNATed, To: netip.AddrPortFrom(by, p.Dst.Port()), Masqueraded: hairpin,
			Source: o.sourceOf(hairpin, by.Is6())}}
	}
	if o.isClusterIP(dst) && !o.hasHosts(dst) {
		if !o.local(dst) {
			o.saw("cluster IP: other port")
			return refusal(p)
		}
		o.saw("cluster IP: other port, bound here")
	}
	if o.unserved(dst) {
		o.saw("unallocated cluster IP")
		return []nft.Result{{Fate: nft.Dropped}}
	}
	if t := o.nodePort(p.Dst, protocol); t != nil {
		if o.servesNodePorts(dst) || o.servesLoopback(p) {
			if dst.IsLoopback() {
				o.saw("node port: loopback")
			}
			o.saw("node port: served")
			if !o.refusesOtherPod(p, t) && o.keptOut(p.Src.Addr(), t) {
				return []nft.Result{{Fate: nft.Dropped}}
			}
			return o.external(p, t)
		}
		o.saw("node port: other address")
	}
	return []nft.Result{{Fate: nft.Untouched}}
}

// masqueradedTo returns the node's address that masqueraded connections get: with MasqueradeToNode the Node's first
// address that the host has.
func (o *oracle) masqueradedTo(v6 bool) netip.Addr {
	for _, a := range o.node.Addresses {
		if o.cfg.MasqueradeToNode && a.Is6() == v6 && o.local(a) {
			o.saw("masquerading: to the Node's address")
			return a
		}
	}
	return netip.Addr{}
}

func (o *oracle) sourceOf(masqueraded, v6 bool) netip.Addr {
	if !masqueraded {
		return netip.Addr{}
	}
	return o.masqueradedTo(v6)
}

// answersPing says whether the packet is an echo request that the node answers for a service, and by which address: a
// port of the service has endpoints for clients outside, and no source ranges.
func (o *oracle) answersPing(p nft.Packet) (by netip.Addr, answers bool) {
	dst := p.Dst.Addr()
	if !o.cfg.AnswerPing || p.Protocol != map[bool]uint8{false: nft.ICMP, true: nft.ICMPv6}[dst.Is6()] || o.local(dst) ||
		o.hasHosts(dst) {
		return by, false
	}
	i := slices.IndexFunc(o.node.Addresses, func(a netip.Addr) bool { return a.Is6() == dst.Is6() && o.local(a) })
	for _, s := range o.services {
		for _, port := range s.Ports {
			t := o.address(netip.AddrPortFrom(dst, port.Port), port.Protocol)
			if port.IsRange() {
				t = o.rangesAt(netip.AddrPortFrom(dst, 0), port.Protocol)
			}
			if t == nil || t.s != s {
				continue
			}
			list := all
			if !slices.Contains(s.ClusterIPs, dst) && s.ExternalPolicy == service.Local {
				list = own
			}
			answers = answers || len(o.lists(t)[list]) > 0 && o.restricting(t) == nil && o.direct(t) == nil
		}
	}
	switch {
	case !answers:
		return by, false
	case i < 0:
		o.saw("ping: the node has no address")
		return by, false
	case slices.ContainsFunc(o.services, func(s *service.Service) bool { return slices.Contains(s.ClusterIPs, dst) }):
		o.saw("ping: cluster IP")
	default:
		o.saw("ping: external address")
	}
	return o.node.Addresses[i], true
}

// keptOut says whether source ranges forbid the packet. Packets to a load balancer's
// address and port must come from the source ranges, whichever service they lead to. If a
// range holds an address of this node, packets from the load balancer's addresses are
// admitted too.
func (o *oracle) keptOut(src netip.Addr, t *target) bool {
	dst, by := t.at.Addr(), o.restricting(t)
	if direct := o.direct(t); direct != nil && by != t.s {
		in := slices.ContainsFunc(direct, func(r netip.Prefix) bool { return r.Contains(src) })
		o.saw(fmt.Sprintf("sources of the annotation: node port %v, let in %v", dst.IsUnspecified(), in))
		return !in
	}
	if by == nil {
		return false
	}
	if slices.Contains(t.s.ClusterIPs, dst) || slices.Contains(t.s.ExternalIPs, dst) {
		o.saw("sources: address has another use")
	}
	if by != t.s {
		o.saw("sources: those of another service")
	}
	node := false
	for _, r := range by.Sources.Ranges() {
		if r.Contains(src) {
			o.saw("sources: let in")
			return false
		}
		if r.Addr().Is6() == dst.Is6() && slices.ContainsFunc(o.node.Addresses, r.Contains) {
			node = true
		}
	}
	if node && slices.Contains(by.LoadBalancerIPs, src) {
		o.saw("sources: the address itself")
		return false
	}
	o.saw("sources: kept out")
	return true
}

// restricting returns the service whose source ranges count for an address. That is the
// service which is served there. If it has no ranges, it is the oldest service with that
// cluster IP, which lost the address only by its age. Without such a service it is the
// oldest of all.
func (o *oracle) restricting(t *target) *service.Service {
	if t.port.IsRange() {
		return nil // Services with source ranges have no ranges of ports, and restrict none of others.
	}
	dst := t.at.Addr()
	var found *service.Service
	for _, s := range o.byAge() {
		everybody := func(r netip.Prefix) bool { return r.Bits() == 0 && r.Addr().Is6() == dst.Is6() }
		serves := slices.ContainsFunc(s.Ports, func(p service.Port) bool {
			return p.Protocol == t.port.Protocol && p.Port == t.at.Port()
		})
		switch {
		case s.Sources == nil || slices.ContainsFunc(s.Sources.Ranges(), everybody):
		case !serves || !inFamily(s, ip.Of(dst)) || !slices.Contains(s.LoadBalancerIPs, dst):
		case s == t.s:
			return s
		case found == nil, slices.Contains(s.ClusterIPs, dst) && !slices.Contains(found.ClusterIPs, dst):
			found = s
		}
	}
	return found
}

// internal returns the outcomes for a cluster IP.
func (o *oracle) internal(p nft.Packet, t *target) []nft.Result {
	chosen := o.lists(t)[all]
	if len(chosen) == 0 && t.s.InternalPolicy == service.Local && len(o.choose(t.port, ip.Of(t.at.Addr()), false)) > 0 {
		o.saw("internal Local: none here")
		return []nft.Result{{Fate: nft.Dropped}}
	}
	pod, known := o.fromPod(p)
	return o.deliver(p, t, all, o.cfg.MasqueradeAll || known && !pod)
}

// external returns the outcomes for external addresses and node ports.
func (o *oracle) external(p nft.Packet, t *target) []nft.Result {
	lists := o.lists(t)
	pod, _ := o.fromPod(p)
	failover := t.s.Options.ExternalFailover
	if t.s.ExternalPolicy == service.Cluster || failover == service.FailoverPass && t.at.Addr().IsUnspecified() {
		failover = service.FailoverDrop
	}
	switch {
	case len(lists[all]) == 0 && failover == service.FailoverPass:
		o.saw("failover: passed, no endpoint at all")
		return o.pass(t)
	case len(lists[all]) == 0:
		return o.nowhere(p, t)
	case t.s.ExternalPolicy == service.Cluster:
		return o.deliver(p, t, all, true)
	case pod && !t.at.Addr().IsUnspecified():
		o.saw("external Local: pod at an address, of this node for certain " + strconv.FormatBool(o.podOfNode(p)))
		return o.deliver(p, t, all, false)
	case pod && o.podOfNode(p):
		o.saw("external Local: pod at a node port")
		return o.deliver(p, t, all, false)
	case o.local(p.Src.Addr()):
		o.saw("external Local: the node")
		return o.deliver(p, t, all, true)
	case len(lists[own]) == 0 && failover == service.FailoverPass:
		o.saw("failover: passed")
		return o.pass(t)
	case len(lists[own]) == 0 && failover == service.FailoverCluster:
		o.saw("failover: any endpoint")
		return o.deliver(p, t, all, true)
	case len(lists[own]) == 0 && pod:
		if o.asOtherNode(p) {
			o.saw("external Local: pod of another node, none here")
			return refusal(p)
		}
		o.saw("external Local: pod of a node that is not known, none here")
		return o.deliver(p, t, all, true)
	case len(lists[own]) == 0:
		o.saw("external Local: none here")
		return []nft.Result{{Fate: nft.Dropped}}
	}
	o.saw("external Local: outsider")
	return o.deliver(p, t, own, false)
}

// pass returns the outcome of a packet that is left to routing.
func (o *oracle) pass(t *target) []nft.Result {
	if o.unserved(t.at.Addr()) {
		o.saw("failover: passed to an address of services")
		return []nft.Result{{Fate: nft.Dropped}}
	}
	return []nft.Result{{Fate: nft.Untouched}}
}

// The lists of endpoints of a target. all is the list of its policy. Under external
// policy Local, all serves pods and the node itself, and own serves outsiders.
const (
	all = "all"
	own = "own"
)

func (o *oracle) lists(t *target) map[string][]netip.AddrPort {
	lists := o.endpointLists(t)
	if t.port.IsRange() {
		for _, list := range lists {
			for i, a := range list {
				list[i] = netip.AddrPortFrom(a.Addr(), t.at.Port())
			}
		}
	}
	return lists
}

// endpointLists are the lists as the service has them.
func (o *oracle) endpointLists(t *target) map[string][]netip.AddrPort {
	family := ip.Of(t.at.Addr())
	if slices.Contains(t.s.ClusterIPs, t.at.Addr()) {
		return map[string][]netip.AddrPort{all: o.choose(t.port, family, t.s.InternalPolicy == service.Local)}
	}
	lists := map[string][]netip.AddrPort{all: o.choose(t.port, family, false)}
	if t.s.ExternalPolicy == service.Local {
		lists[own] = o.choose(t.port, family, true)
	}
	return lists
}

// fromPod says whether a pod of the cluster sends the packet, and whether that is known.
// It goes by the interface, or by the family's ranges of the cluster or of the node.
func (o *oracle) fromPod(p nft.Packet) (pod, known bool) {
	if i := o.cfg.PodInterface; i.Name != "" {
		if i.Prefix {
			return strings.HasPrefix(p.Input, i.Name), true
		}
		return p.Input == i.Name, true
	}
	ranges := o.cfg.ClusterCIDRs
	if o.cfg.NodeCIDR {
		ranges = o.node.PodCIDRs
	}
	for _, c := range ranges {
		if c.Addr().Is6() != p.Src.Addr().Is6() {
			continue
		}
		if o.cfg.NodeCIDR {
			o.saw("pods: by the node's ranges")
		}
		if known && !pod && c.Contains(p.Src.Addr()) {
			o.saw("pods: by a further range")
		}
		pod, known = pod || c.Contains(p.Src.Addr()), true
	}
	return pod, known
}

// podOfNode says whether the pod that sends the packet is known to be on the node: by the
// interface, or by the node's ranges.
func (o *oracle) podOfNode(p nft.Packet) bool {
	return o.cfg.PodInterface.Name != "" ||
		slices.ContainsFunc(o.node.PodCIDRs, func(c netip.Prefix) bool { return c.Contains(p.Src.Addr()) })
}

// deliver sends the packet to each endpoint of the list. With session affinity it sends
// the packet to the endpoint that the client had before.
func (o *oracle) deliver(p nft.Packet, t *target, list string, masquerade bool) []nft.Result {
	chosen := o.lists(t)[list]
	if len(chosen) == 0 {
		return o.nowhere(p, t)
	}
	if before, found := o.memory[o.visit(p.Src.Addr(), t, list)]; found {
		if len(chosen) > 1 {
			o.saw("affinity: came back, list " + list)
			if t.at.Addr().IsUnspecified() {
				o.saw("affinity: came back to a node port")
			}
			if o.restricting(t) != nil {
				o.saw("affinity: came back through sources")
			}
		}
		chosen = []netip.AddrPort{before}
	}
	var results []nft.Result
	outside := func(to netip.AddrPort) bool { return o.unserved(to.Addr()) && !o.inServiceCIDR(to.Addr()) }
	if b := t.s.Options.Balance; b.Hashes() && len(chosen) > 1 {
		o.saw("drawn by " + b.String())
		one := slices.DeleteFunc(slices.Clone(chosen), func(a netip.AddrPort) bool {
			return a != o.drawn && (o.drawn.IsValid() || !outside(a))
		})
		if len(one) > 0 {
			chosen = one
		}
	}
	if slices.ContainsFunc(chosen, outside) {
		// The packet would have to leave the node for a cluster IP that is in no ServiceCIDR.
		o.saw("endpoint is an unlisted cluster IP")
		results = []nft.Result{{Fate: nft.Dropped}}
	}
	for _, to := range chosen {
		switch {
		case outside(to):
			continue
		case o.unserved(to.Addr()):
			// What was translated goes there all the same.
			o.saw("endpoint is an address of services")
		}
		r := nft.Result{Fate: nft.DNATed, To: to, Timeout: t.s.Options.TimeoutsOf(service.Protocol(p.Protocol)).String()}
		if r.Timeout != "" {
			o.saw(fmt.Sprintf("time-outs: protocol %d, node port %v, affinity %v", p.Protocol, t.at.Addr().IsUnspecified(),
				t.s.AffinityTimeout > 0))
		}
		hairpin := to.Addr() == p.Src.Addr() && o.onNode(to.Addr())
		spared := slices.ContainsFunc(o.cfg.NoMasquerade, func(c netip.Prefix) bool { return c.Contains(to.Addr()) })
		switch {
		case o.local(to.Addr()) && !p.FromNode:
			// The packet stays on the node, so its source need not be hidden.
			o.saw("endpoint on the node itself")
		case masquerade && spared && !hairpin:
			o.saw("masquerading: spared")
		case masquerade || hairpin:
			if !masquerade {
				o.saw("hairpin")
			}
			r.Masqueraded, r.Source = true, o.masqueradedTo(to.Addr().Is6())
		}
		results = append(results, r)
	}
	return results
}

// nowhere returns the outcome of the first packet to a port without any endpoint.
func (o *oracle) nowhere(p nft.Packet, t *target) []nft.Result {
	if t.s.Options.Hold == 0 {
		return refusal(p)
	}
	o.saw(fmt.Sprintf("held: node port %v", t.at.Addr().IsUnspecified()))
	return []nft.Result{{Fate: nft.Dropped}}
}

func refusal(p nft.Packet) []nft.Result {
	if p.Protocol == uint8(service.TCP) {
		return []nft.Result{{Fate: nft.Reset}}
	}
	return []nft.Result{{Fate: nft.Unreachable}}
}

// visit is a client at a Service port that is served from one of its lists. All addresses
// of the port share a visit.
type visit struct {
	client   netip.Addr
	service  service.Name
	port     uint16
	protocol service.Protocol
	// local says that the list only has endpoints on the node.
	local bool
}

func (o *oracle) visit(client netip.Addr, t *target, list string) visit {
	internal := slices.Contains(t.s.ClusterIPs, t.at.Addr())
	local := list == own || internal && t.s.InternalPolicy == service.Local
	return visit{client, t.s.Name, t.port.Port, t.port.Protocol, local}
}

// unserved says whether packets without translation must not get to the address, since it
// is for services.
func (o *oracle) unserved(a netip.Addr) bool {
	inRange := o.inServiceCIDR(a)
	return (inRange || o.isClusterIP(a)) && !o.local(a) && !o.hasHosts(a)
}

// hasHosts says whether the address, which is for services, is in a network that the node
// reaches, or an API server's.
func (o *oracle) hasHosts(a netip.Addr) bool {
	inRange := o.inServiceCIDR(a)
	unknown := !slices.ContainsFunc(o.serviceCIDRs, func(c netip.Prefix) bool { return c.Addr().Is6() == a.Is6() })
	switch {
	case inRange && slices.ContainsFunc(o.node.Networks, func(n netip.Prefix) bool { return n.Contains(a) }):
		o.saw("service address in a network of the node")
		return true
	case (inRange || unknown) && slices.Contains(o.node.APIServers, a):
		o.saw("service address is an API server's")
		return true
	}
	return false
}

// remember notes to which endpoint a client of a service with affinity was sent. The
// client keeps that endpoint in each list that has it, unless the client has another one
// there.
func (o *oracle) remember(p nft.Packet, r nft.Result) {
	t := o.target(p)
	if r.Fate != nft.DNATed || t == nil || t.s.AffinityTimeout == 0 {
		return
	}
	for list, endpoints := range o.lists(t) {
		v := o.visit(p.Src.Addr(), t, list)
		if _, found := o.memory[v]; found || !slices.Contains(endpoints, r.To) {
			continue
		}
		o.memory[v] = r.To
		o.saw("affinity: remembered")
		if o.local(r.To.Addr()) {
			o.saw("affinity: remembered on the node itself")
		}
		if r.To.Addr() == p.Src.Addr() && r.Masqueraded {
			o.saw("affinity: remembered a hairpin")
		}
	}
}

// forget follows a change of the services. Clients forget an endpoint that is no longer
// in the list, and one whose list no address uses any more.
func (o *oracle) forget() {
	for v, to := range o.memory {
		if o.keeps(v, to) {
			o.saw("affinity: kept over a change")
			continue
		}
		o.saw("affinity: forgotten")
		delete(o.memory, v)
	}
}

func (o *oracle) inServiceCIDR(a netip.Addr) bool {
	return slices.ContainsFunc(o.serviceCIDRs, func(c netip.Prefix) bool { return c.Contains(a) })
}

func (o *oracle) keeps(v visit, to netip.AddrPort) bool {
	for _, t := range o.targets(v) {
		for list, endpoints := range o.lists(t) {
			if t.s.AffinityTimeout > 0 && o.visit(v.client, t, list) == v && slices.Contains(endpoints, to) {
				return true
			}
		}
	}
	return false
}
