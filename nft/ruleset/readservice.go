package ruleset

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"nftproxy/internal/service"
)

// served is what the tables tell of one service.
type served struct {
	name service.Name
	// clusterIPs of each family, as far as the tables say whose they are.
	clusterIPs [2][]netip.Addr
	ports      []*servedPort
}

// servedPort is a port with its entries in both families.
type servedPort struct {
	service.Port
	// text is what the comments say of it: name, number, a part, or nothing.
	text    string
	entries []*readEntry
}

// add files an entry. Those by address have to come before node ports, which do
// not tell the port's number.
func (s *served) add(e *readEntry, text string) {
	p := s.portOf(e, text)
	p.entries = append(p.entries, e)
	if e.nodePort() {
		p.NodePort = e.port
	}
}

func (s *served) portOf(e *readEntry, text string) *servedPort {
	var candidates []*servedPort
	for _, p := range s.ports {
		switch {
		case p.Protocol != e.protocol:
		case !e.nodePort() && p.Port.Port == e.port, e.nodePort() && p.NodePort == e.port:
			return p
		case e.nodePort() && p.NodePort == 0 && p.text == text:
			candidates = append(candidates, p)
		}
	}
	// Texts that were cut short may be the same: then one with these endpoints.
	for _, p := range candidates {
		if slices.ContainsFunc(p.entries, func(o *readEntry) bool { return slices.Equal(o.all, e.all) }) {
			return p
		}
	}
	if len(candidates) > 0 {
		return candidates[0]
	}
	p := &servedPort{Port: service.Port{Name: text, Protocol: e.protocol}, text: text}
	if n, err := strconv.ParseUint(text, 10, 16); e.nodePort() && err == nil {
		p.Port.Port = uint16(n)
	} else if !e.nodePort() {
		p.Port.Port = e.port
	}
	if text == strconv.Itoa(int(p.Port.Port)) {
		p.Name = ""
	}
	s.ports = append(s.ports, p)
	return p
}

// service is the service as far as the tables tell it.
func (s *served) service(r *readback) *service.Service {
	svc := &service.Service{Name: s.name}
	for i := range r.families {
		svc.ClusterIPs = append(svc.ClusterIPs, s.clusterIPsOf(r, i)...)
	}
	for e := range s.entries() {
		svc.ExternalPolicy = svc.ExternalPolicy || service.TrafficPolicy(e.external)
		svc.AffinityTimeout = max(svc.AffinityTimeout, e.affinity)
		if !e.nodePort() && !slices.Contains(svc.ClusterIPs, e.addr) && !slices.Contains(svc.ExternalIPs, e.addr) {
			svc.ExternalIPs = append(svc.ExternalIPs, e.addr)
		}
	}
	s.setFirewall(svc)
	for _, p := range s.ports {
		for i := range r.families {
			if p.lists(svc, i == 1).internalOnly() {
				svc.InternalPolicy = service.Local
			}
		}
	}
	for _, p := range s.ports {
		port := p.Port
		for i := range r.families {
			port.Endpoints = append(port.Endpoints, p.lists(svc, i == 1).endpoints(r, svc, i)...)
		}
		port.Endpoints = service.MergeEndpoints(port.Endpoints)
		svc.Ports = append(svc.Ports, port)
	}
	return svc
}

// setFirewall finds the addresses that the service itself restricts: at all of
// its ports.
func (s *served) setFirewall(svc *service.Service) {
	open, ranged := map[netip.Addr]bool{}, [2]bool{}
	var sources []netip.Prefix
	for e := range s.entries() {
		switch {
		case e.nodePort():
		case e.restricted && e.by == e.comment:
			ranged[family(e.v6)] = true
			sources = append(sources, e.sources...)
		case !e.restricted || e.by != "":
			open[e.addr] = true
		}
	}
	for e := range s.entries() {
		// Where nobody is let in, nothing says by whom.
		own := e.by == e.comment || e.by == "" && !ranged[family(e.v6)]
		if e.restricted && own && !open[e.addr] && !slices.Contains(svc.LoadBalancerIPs, e.addr) {
			svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, e.addr)
		}
	}
	if len(svc.LoadBalancerIPs) == 0 {
		return
	}
	svc.Sources = service.NewSources(sources)
	svc.ExternalIPs = slices.DeleteFunc(svc.ExternalIPs, func(a netip.Addr) bool { return slices.Contains(svc.LoadBalancerIPs, a) })
}

// restrictions are those that the service has by others; nil for none.
func (s *served) restrictions(svc *service.Service) *service.Restrictions {
	var list []service.Restriction
	for e := range s.entries() {
		if e.restricted && !svc.Firewall().Restricts(e.claim()) {
			list = append(list, service.Restriction{
				Claim: e.claim(), By: service.Name(e.by),
				Firewall: service.Firewall{Sources: service.NewSources(e.sources), Addresses: []netip.Addr{e.addr}},
			})
		}
	}
	return service.NewRestrictions(list)
}

// entries yields those of all ports.
func (s *served) entries() func(yield func(*readEntry) bool) {
	return func(yield func(*readEntry) bool) {
		for _, p := range s.ports {
			for _, e := range p.entries {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// clusterIPsOf are the service's cluster IPs in a family. It has one where it
// is served, but the table does not say so of one that another service has:
// then the service's entries tell or, with all of them lost, it is any on which
// others have all of its ports.
func (s *served) clusterIPsOf(r *readback, i int) []netip.Addr {
	if len(s.clusterIPs[i]) > 0 {
		return s.clusterIPs[i]
	}
	isServed, shared := false, map[netip.Addr]sharing{}
	var external []netip.Addr
	isShared := func(e *readEntry) bool { _, known := r.families[i].clusterIPs[e.addr]; return known }
	for _, p := range s.ports {
		for _, e := range p.entries {
			if e.v6 != (i == 1) {
				continue
			}
			isServed = true
			if isShared(e) {
				shared[e.addr] = max(shared[e.addr], s.sharing(p, e, isShared))
			} else if !e.nodePort() {
				external = append(external, e.addr)
			}
		}
	}
	if !isServed {
		return nil
	}
	like := func(wanted sharing) []netip.Addr {
		list := slices.SortedFunc(maps.Keys(shared), netip.Addr.Compare)
		return slices.DeleteFunc(list, func(a netip.Addr) bool { return shared[a] != wanted })
	}
	var candidates []netip.Addr
	candidates = append(candidates, like(asClusterIP)...)
	if r.masqueradesAll {
		candidates = append(candidates, like(masqueraded)...)
	}
	candidates = append(candidates, like(refused)...)
	candidates = append(candidates, s.lostCompletely(r, i)...)
	candidates = append(candidates, like(masqueraded)...)
	candidates = append(candidates, external...)
	return candidates[:min(1, len(candidates))]
}

// sharing says what the entries of a service on another's cluster IP are like.
type sharing int

const (
	// refused fits cluster IPs and external addresses alike, masqueraded does
	// so if everything is masqueraded; asClusterIP and asExternal are certain.
	refused sharing = 1 + iota
	masqueraded
	asClusterIP
	asExternal
)

func (s *served) sharing(p *servedPort, e *readEntry, isShared func(*readEntry) bool) sharing {
	policyLocal := false
	for o := range s.entries() {
		policyLocal = policyLocal || o.external
	}
	unlike := slices.ContainsFunc(p.entries, func(o *readEntry) bool {
		return o.v6 == e.v6 && !isShared(o) && !slices.Equal(o.all, e.all)
	})
	switch {
	case e.external:
		return asExternal
	case e.drop, unlike, len(e.all) > 0 && (!e.masquerade || policyLocal):
		return asClusterIP
	case len(e.all) > 0:
		return masqueraded
	}
	return refused
}

// lostCompletely are the cluster IPs on which others have all of the ports.
func (s *served) lostCompletely(r *readback, i int) []netip.Addr {
	return slices.DeleteFunc(slices.SortedFunc(maps.Keys(r.families[i].clusterIPs), netip.Addr.Compare), func(a netip.Addr) bool {
		return slices.ContainsFunc(s.ports, func(p *servedPort) bool {
			owner := r.owners[service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port.Port}]
			return p.Port.Port != 0 && (owner == "" || owner == s.name)
		})
	})
}

// endpointLists are those of a port in one family. An entry is nil where the
// port has none of the kind.
type endpointLists struct {
	internal, external *readEntry
}

func (p *servedPort) lists(s *service.Service, v6 bool) (l endpointLists) {
	for _, e := range p.entries {
		switch {
		case e.v6 != v6:
		case slices.Contains(s.ClusterIPs, e.addr):
			l.internal = e
		case l.external == nil || e.external:
			l.external = e
		}
	}
	return l
}

// internalOnly says that a cluster IP has other endpoints than everybody else
// has: only internal policy Local does that.
func (l endpointLists) internalOnly() bool {
	return l.internal != nil && (l.internal.drop || l.external != nil && !slices.Equal(l.internal.all, l.external.all))
}

// elsewhere is a hint for a node that is not this one; no node has such a name.
const elsewhere service.Hints = "-"

// endpoints are those of all lists, such that Choose makes the same lists.
func (l endpointLists) endpoints(r *readback, s *service.Service, i int) []service.Endpoint {
	var cluster, local []netip.AddrPort
	switch {
	case l.external != nil:
		cluster = l.external.all
	case l.internal != nil && s.InternalPolicy == service.Cluster:
		cluster = l.internal.all
	}
	switch {
	case l.internal != nil && s.InternalPolicy == service.Local:
		local = l.internal.all
	case l.external != nil && l.external.external:
		local = l.external.own
	default:
		for _, a := range cluster {
			if r.families[i].onNode[a.Addr()] {
				local = append(local, a)
			}
		}
	}
	all := slices.Concat(cluster, local)
	slices.SortFunc(all, netip.AddrPort.Compare)
	all = slices.Compact(all)
	hinted := len(cluster) > 0 && len(all) > len(cluster)
	list := make([]service.Endpoint, len(all))
	for i, a := range all {
		list[i] = service.Endpoint{Addr: a, Ready: true, Serving: true}
		if _, ok := slices.BinarySearchFunc(local, a, netip.AddrPort.Compare); ok {
			list[i].Node = r.node.Name
		}
		if hinted {
			list[i].Nodes = elsewhere
			if _, ok := slices.BinarySearchFunc(cluster, a, netip.AddrPort.Compare); ok {
				list[i].Nodes = service.NewHints([]string{r.node.Name})
			}
		}
	}
	return list
}
