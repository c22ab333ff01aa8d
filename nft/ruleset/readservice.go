package ruleset

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"

	"nftproxy/model/ip"
	"nftproxy/model/obstacle"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// addFrontend adds a frontend to its port. text is the port's text in the frontend's
// comment. Frontends by address come before node ports.
func (s *Served) addFrontend(f *Frontend, text string) {
	var p *ServedPort
	if f.IsNodePort() {
		p = s.portOfNodePort(f, text)
	} else {
		p = s.portOfAddress(f)
	}
	if p == nil {
		p = newServedPort(f, text)
		s.Ports = append(s.Ports, p)
	}
	if p.Port.Port == 0 && !p.IsRange() {
		p.Port.Port = f.servicePort // the other family's node port did not tell it
	}
	p.Frontends = append(p.Frontends, f)
	if f.IsNodePort() {
		p.NodePort = f.Port
	}
}

// portOfAddress finds the port by its number; nil if it is new.
func (s *Served) portOfAddress(f *Frontend) *ServedPort {
	for _, p := range s.Ports {
		if p.Protocol == f.Protocol && p.Port.Port == f.Port && p.IsRange() == (f.Ranges != "") {
			return p
		}
	}
	return nil
}

// portOfNodePort finds the port by its node port, which the other family may have
// told, or by its text; nil if it is new. Of several ports with the same text, which
// was cut, it takes one with the same endpoints, or else the first.
func (s *Served) portOfNodePort(f *Frontend, text string) *ServedPort {
	var sameText []*ServedPort
	for _, p := range s.Ports {
		switch {
		case p.Protocol != f.Protocol, p.IsRange():
		case p.NodePort == f.Port:
			return p
		case p.NodePort == 0 && p.text == text:
			sameText = append(sameText, p)
		}
	}
	for _, p := range sameText {
		if slices.ContainsFunc(p.Frontends, func(o *Frontend) bool { return slices.Equal(o.Cluster, f.Cluster) }) {
			return p
		}
	}
	if len(sameText) > 0 {
		return sameText[0]
	}
	return nil
}

// newServedPort makes the port of its first frontend. If that is a node port which does not tell the port's number, it
// is that in the text, if there is one. A port may have another number for its name.
func newServedPort(f *Frontend, text string) *ServedPort {
	p := &ServedPort{Port: &service.Port{Name: text, Protocol: f.Protocol, Port: f.servicePort}, text: text}
	if n, err := strconv.ParseUint(text, 10, 16); f.servicePort == 0 && f.IsNodePort() && err == nil {
		p.Port.Port = uint16(n)
	}
	if text == strconv.Itoa(int(p.Port.Port)) || f.Ranges != "" {
		p.Name = ""
	}
	p.Ranges = f.Ranges
	return p
}

// join makes the Service of its frontends: addresses first, then policies, then endpoints.
func (s *Served) join(r *readback) {
	svc := s.Service
	s.setAddresses(svc)
	s.setFirewall(svc, r.node)
	for f := range s.frontends() {
		svc.ExternalPolicy = svc.ExternalPolicy || service.TrafficPolicy(f.twoLists || f.Fate == obstacle.Passed)
		svc.Options.ExternalFailover = max(svc.Options.ExternalFailover, f.failover())
		svc.Options.Hold = max(svc.Options.Hold, f.hold)
		svc.AffinityTimeout = max(svc.AffinityTimeout, f.Affinity)
		svc.Options.Balance = max(svc.Options.Balance, f.balance)
		svc.Options.Flows = cmp.Or(svc.Options.Flows, f.flows)
	}
	s.setTimeouts(svc)
	svc.InternalPolicy = s.internalPolicy(svc)
	slices.SortStableFunc(s.Ports, func(a, b *ServedPort) int {
		return cmp.Compare(rangeOrder(a.Port), rangeOrder(b.Port))
	})
	for _, p := range s.Ports {
		var endpoints []service.Endpoint
		for _, family := range ip.Families() {
			endpoints = append(endpoints, p.inFamily(svc, family).endpoints(r, svc)...)
		}
		p.Endpoints = service.MergeEndpoints(endpoints)
		svc.Ports = append(svc.Ports, *p.Port)
	}
	svc.Options.PortRanges = service.NewRangesByProtocol(func(protocol service.Protocol) service.PortRanges {
		for _, p := range s.Ports {
			if p.Protocol == protocol && p.IsRange() {
				return p.Ranges
			}
		}
		return ""
	})
}

// setTimeouts sets what the Service asks for. UDP port 53 does not tell, since its time-outs may be the
// configuration's: a Service with no other port of UDP has none.
func (s *Served) setTimeouts(svc *service.Service) {
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			if !isDNS(p.Port) && (len(f.Cluster) > 0 || len(f.Local) > 0) {
				svc.Options.SetTimeouts(f.timeouts)
			}
		}
	}
}

// rangeOrder sorts ranges behind other ports, by their protocols.
func rangeOrder(p *service.Port) int {
	if !p.IsRange() {
		return 0
	}
	return 1 + int(p.Protocol)
}

// setAddresses sets the cluster IPs of each family in which the Service has a
// frontend. All other addresses are external IPs, until setFirewall.
func (s *Served) setAddresses(svc *service.Service) {
	var served ip.PerFamily[bool]
	for f := range s.frontends() {
		*served.Of(f.Family) = true
	}
	for _, family := range ip.Families() {
		list := *s.clusterIPs.Of(family)
		if len(list) == 0 && *served.Of(family) {
			list = []netip.Addr{unknownClusterIP(family)}
		}
		svc.ClusterIPs = append(svc.ClusterIPs, list...)
	}
	for f := range s.frontends() {
		if !f.IsNodePort() && !slices.Contains(svc.ClusterIPs, f.Addr) && !slices.Contains(svc.ExternalIPs, f.Addr) {
			svc.ExternalIPs = append(svc.ExternalIPs, f.Addr)
		}
	}
}

// unknownClusterIP stands for the cluster IP of a Service that has lost all ports on
// it to others, so that no table names it. A Service is served only in families where
// it has a cluster IP. No packet goes to this address, and no Service has it.
func unknownClusterIP(family ip.Family) netip.Addr {
	if family == ip.V6 {
		return netip.AddrFrom16([16]byte{0: 0x01}) // 100::, of the range for discarding (RFC 6666)
	}
	return netip.AddrFrom4([4]byte{3: 1}) // 0.0.0.1, of "this network" (RFC 1122)
}

// setFirewall makes the addresses load balancers' at which the Service's own source
// ranges restrict all of its ports, unless they are the ranges of node ports and external IPs.
func (s *Served) setFirewall(svc *service.Service, node *service.Node) {
	direct := s.directSources(svc, node)
	otherwise, lists := map[netip.Addr]bool{}, map[*service.Sources]bool{}
	balanced := func(f *Frontend) bool {
		ranges := *direct.Of(f.Family)
		return f.restrictedByItself() && !f.IsNodePort() && (ranges == nil || f.Sources != f.list || !f.listIs(ranges))
	}
	for f := range s.frontends() {
		if balanced(f) {
			lists[f.Sources] = true
		} else {
			otherwise[f.Addr] = true
		}
	}
	for f := range s.frontends() {
		switch {
		case balanced(f) && !otherwise[f.Addr] && !slices.Contains(svc.LoadBalancerIPs, f.Addr):
			svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, f.Addr)
		case f.restrictedByItself() && !f.IsNodePort() && !balanced(f) && slices.Contains(svc.ClusterIPs, f.Addr) &&
			!slices.Contains(svc.ExternalIPs, f.Addr):
			svc.ExternalIPs = append(svc.ExternalIPs, f.Addr)
		}
	}
	svc.Options.SourceRanges = inBothFamilies(direct)
	if len(lists) == 0 || len(svc.LoadBalancerIPs) == 0 {
		return
	}
	var sources []netip.Prefix
	for list := range lists {
		sources = append(sources, list.Ranges()...)
	}
	svc.Sources = service.NewSources(sources)
	svc.ExternalIPs = slices.DeleteFunc(svc.ExternalIPs, func(a netip.Addr) bool {
		return slices.Contains(svc.LoadBalancerIPs, a)
	})
}

// directSources returns the Service's own ranges for node ports and external IPs of each family, nil where they are
// open to all. Node ports tell them. So does an address that may not reach itself where a load balancer's could.
// Without these, and with two lists and no address that is open, it is the list which has all of the other: load
// balancers' addresses have what is in both. One list alone may as well be the load balancers'.
func (s *Served) directSources(svc *service.Service,
	node *service.Node) (direct ip.PerFamily[*service.Sources]) {
	var open, told ip.PerFamily[bool]
	for f := range s.frontends() {
		isTold, isOpen, list := told.Of(f.Family), open.Of(f.Family), direct.Of(f.Family)
		switch {
		case f.IsNodePort() || f.restrictedByItself() && f.unlikeBalancer(node):
			*isTold, *isOpen, *list = true, f.Sources == nil, f.list
		case *isTold, f.Sources != nil && !f.restrictedByItself():
		case f.Sources == nil:
			*isOpen = *isOpen || !slices.Contains(svc.ClusterIPs, f.Addr)
		case *list == nil:
			*list = f.list
		case !f.listIs(*list) && f.list.And(*list).Digest(f.Family) == (*list).Digest(f.Family):
			*list = f.list
		}
	}
	for _, family := range ip.Families() {
		list, two := direct.Of(family), false
		for f := range s.frontends() {
			two = two || f.Family == family && *list != nil && f.restrictedByItself() && !f.listIs(*list)
		}
		if *open.Of(family) || !*told.Of(family) && !two {
			*list = nil
		}
	}
	return direct
}

// unlikeBalancer says that the address cannot reach itself, though a load balancer's address with these ranges could.
func (f *Frontend) unlikeBalancer(node *service.Node) bool {
	wall := service.Firewall{Sources: f.list, Addresses: []netip.Addr{f.Addr}}
	return node != nil && f.Sources == f.list && len(wall.Itself(node, f.Family)) > 0
}

// inBothFamilies joins the ranges of the families; nil stands for all sources.
func inBothFamilies(of ip.PerFamily[*service.Sources]) *service.Sources {
	if of == (ip.PerFamily[*service.Sources]{}) {
		return nil
	}
	var ranges []netip.Prefix
	for _, family := range ip.Families() {
		if list := *of.Of(family); list != nil {
			ranges = append(ranges, list.Ranges()...)
		} else {
			ranges = append(ranges, allAddresses(family))
		}
	}
	return service.NewSources(ranges)
}

// listIs says whether the frontend's list of ranges is this one.
func (f *Frontend) listIs(s *service.Sources) bool {
	return f.list.Digest(f.Family) == s.Digest(f.Family)
}

// restrictedByItself says whether the firewall is that of the frontend's Service.
func (f *Frontend) restrictedByItself() bool { return f.Sources != nil && f.by == f.comment }

// restrictions returns the restrictions by other Services; nil for none.
func (s *Served) restrictions(svc *service.Service) *service.Restrictions {
	var list []service.Restriction
	for f := range s.frontends() {
		if _, _, own := svc.FirewallAt(f.Claim(), nil); f.Sources != nil && !own {
			list = append(list, service.Restriction{
				Claim: f.Claim(), By: service.Name(f.by),
				Firewall: service.Firewall{Sources: f.Sources, Addresses: []netip.Addr{f.Addr}},
			})
		}
	}
	return service.NewRestrictions(list)
}

// frontends yields the frontends of all ports.
func (s *Served) frontends() func(yield func(*Frontend) bool) {
	return func(yield func(*Frontend) bool) {
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// portInFamily has the frontends of a port in one family that tell its endpoints. One
// is nil if the port has no such frontend.
type portInFamily struct {
	internal, external *Frontend
}

func (p *ServedPort) inFamily(svc *service.Service, family ip.Family) (in portInFamily) {
	for _, f := range p.Frontends {
		switch {
		case f.Family != family:
		case slices.Contains(svc.ClusterIPs, f.Addr):
			in.internal = f
		case in.external == nil || f.twoLists:
			in.external = f
		}
	}
	return in
}

// internalPolicy is Local if a port shows it. Else Cluster makes the same rules.
func (s *Served) internalPolicy(svc *service.Service) service.TrafficPolicy {
	for _, p := range s.Ports {
		for _, family := range ip.Families() {
			if p.inFamily(svc, family).showsInternalLocal() {
				return service.Local
			}
		}
	}
	return service.Cluster
}

// showsInternalLocal says whether the cluster IP drops packets, remembers its clients
// apart, or has other endpoints or slots than the other addresses. Only internal policy Local does
// so.
func (in portInFamily) showsInternalLocal() bool {
	return in.internal != nil && (in.internal.Fate == obstacle.Dropped || in.internal.localOnly ||
		in.external != nil && (!slices.Equal(in.internal.Cluster, in.external.Cluster) ||
			!maps.Equal(in.internal.ClusterSlots, in.external.ClusterSlots)))
}

// elsewhere is the name of another node, and a hint for it: no node has this name.
const elsewhere = "-"

// endpoints returns the endpoints of all lists, such that Choose makes the same lists.
func (in portInFamily) endpoints(r *readback, svc *service.Service) []service.Endpoint {
	var cluster, local readList
	switch {
	case in.external != nil:
		cluster = readList{in.external.Cluster, in.external.ClusterSlots}
	case in.internal != nil && svc.InternalPolicy == service.Cluster:
		cluster = readList{in.internal.Cluster, in.internal.ClusterSlots}
	}
	switch {
	case in.internal != nil && svc.InternalPolicy == service.Local:
		local = readList{in.internal.Cluster, in.internal.ClusterSlots}
	case in.external != nil && in.external.twoLists:
		local = readList{in.external.Local, in.external.LocalSlots}
	default:
		for _, a := range cluster.targets {
			if r.onNode[a.Addr()] {
				local.targets = append(local.targets, a)
			}
		}
	}
	feedback, localSlots := svc.Options.Balance == service.ByLeastConnections, local.slots
	if in.internal != nil && (in.external == nil || !in.external.twoLists) { // The policy may be Local and not show it.
		localSlots = in.internal.ClusterSlots
	}
	all, weights := slices.Concat(cluster.targets, local.targets), map[netip.AddrPort]service.Weight(nil)
	if !feedback || !cluster.mayBeEven() || !local.mayBeEven() {
		weights = weightsOf(cluster, local)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	all = slices.Compact(all)
	hinted := len(cluster.targets) > 0 && len(all) > len(cluster.targets)
	list := make([]service.Endpoint, len(all))
	for i, a := range all {
		list[i] = service.Endpoint{Addr: a, Ready: true, Serving: true, Node: elsewhere, Weight: weights[a]}
		if feedback {
			list[i].Slots = service.Slots{Cluster: uint16(cluster.slots[a]), Local: uint16(localSlots[a])}
		}
		if local.has(a) {
			list[i].Node = r.node.Name
		} else if r.onNode[a.Addr()] || r.maybeOnNode[a.Addr()] {
			list[i].Node = ""
		}
		if hinted {
			list[i].Nodes = elsewhere
			if cluster.has(a) {
				list[i].Nodes = service.NewHints([]string{r.node.Name})
			}
		}
	}
	return list
}

// weightsOf returns weights by which both lists get the slots that they have; none if each endpoint has one slot. Slots
// say the proportions of weights in a list, and no more. An endpoint of both lists says the proportion between them.
func weightsOf(cluster, local readList) map[netip.AddrPort]service.Weight {
	if cluster.slots == nil && local.slots == nil {
		return nil
	}
	perCluster, perLocal := 1, 1
	if i := slices.IndexFunc(local.targets, cluster.has); i >= 0 {
		shared := local.targets[i]
		perCluster, perLocal = local.slotsOf(shared), cluster.slotsOf(shared)
		divisor := int(share.GCD(uint64(perCluster), uint64(perLocal)))
		perCluster, perLocal = perCluster/divisor, perLocal/divisor
	}
	numbers := make(map[netip.AddrPort]int, len(cluster.targets)+len(local.targets))
	for _, a := range local.targets {
		numbers[a] = local.slotsOf(a) * perLocal
	}
	for _, a := range cluster.targets {
		numbers[a] = cluster.slotsOf(a) * perCluster
	}
	divisor := 1 // for weights of 16 bits
	for _, n := range numbers {
		divisor = max(divisor, (n+math.MaxUint16-1)/math.MaxUint16)
	}
	weights := make(map[netip.AddrPort]service.Weight, len(numbers))
	for a, n := range numbers {
		weights[a] = service.NewWeight(uint16(max(1, n/divisor)))
	}
	return weights
}
