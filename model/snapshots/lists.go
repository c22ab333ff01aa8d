package snapshots

import (
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// affinity decides which services have the session affinity that they ask for, on some ports.
type affinity struct{ quota[amount] }

// replace replaces what a service asks for by what its version s does, nil if the service goes. A service with more
// ports than a namespace may have asks for nothing: it would only keep younger services from being admitted.
func (a *affinity) replace(name service.Name, s *service.Service) {
	n := affinityPorts(s)
	if n > service.NamespaceShare(a.limit) {
		n = 0
	}
	a.quota.replace(name, s, amountOf(name, n))
}

// affinityPorts is the number of ports for which a service asks for affinity. The
// service may be nil.
func affinityPorts(s *service.Service) int {
	if s == nil || s.AffinityTimeout == 0 {
		return 0
	}
	return len(s.Ports)
}

// reasonWithout says why the service is served without session affinity. It is nil if the service has affinity or does
// not ask for it.
func (a *affinity) reasonWithout(s *service.Service) *service.WithoutAffinity {
	n := affinityPorts(s)
	if n == 0 {
		return nil
	}
	namespace, _ := s.Name.Split()
	own, d := a.namespaces[namespace], amount{s.Name, n}
	switch {
	case own == nil || own.admitted[d] == "":
		return &service.WithoutAffinity{Ports: n, Limit: service.NamespaceShare(a.limit), Namespace: true}
	case a.all.admitted[d] == "":
		return &service.WithoutAffinity{Ports: n, Limit: a.limit}
	}
	return nil
}

// sourceListKey tells lists of source ranges apart, as the program has them: it is zero in
// a family that takes no set. A service with other ranges for its external IPs and node ports than for
// its load balancer's addresses has two lists, which count as two wherever else they are. The zero value
// stands for no list.
type sourceListKey [2]ip.PerFamily[service.Digest]

// sourceList returns the service's lists. The service may be nil.
func sourceList(s *service.Service) sourceListKey {
	var key sourceListKey
	if s == nil {
		return key
	}
	for _, family := range ip.Families() {
		balanced := digestFor(s, s.Sources, family, slices.ContainsFunc(s.LoadBalancerIPs, family.Has))
		direct := digestFor(s, s.Options.SourceRanges, family, hasNodePort(s) || slices.ContainsFunc(s.ExternalIPs,
			family.Has))
		*key[0].Of(family) = balanced
		if balanced == (service.Digest{}) {
			*key[0].Of(family) = direct
		} else if direct != balanced {
			*key[1].Of(family) = direct
		}
	}
	return key
}

// digestFor returns the digest of sources if the service has addresses in the family that need a set of them.
func digestFor(s *service.Service, sources *service.Sources, family ip.Family, needed bool) service.Digest {
	if ranges, _ := sources.Of(family); len(ranges) > 0 && needed && s.InFamily(family) {
		return sources.Digest(family)
	}
	return service.Digest{}
}

// size is how many lists the key stands for.
func (k sourceListKey) size() int {
	if k[1] == (ip.PerFamily[service.Digest]{}) {
		return 1
	}
	return 2
}

// rangeListKey tells lists of port ranges apart. The zero value stands for no list.
type rangeListKey service.RangesByProtocol

// rangeList is the service's list among those that a node has; empty for none. The service may be nil.
func rangeList(s *service.Service) rangeListKey {
	if s == nil || !s.HasRanges() {
		return ""
	}
	return rangeListKey(s.Options.PortRanges)
}

// size is that of one list in the bound on different lists.
func (rangeListKey) size() int { return 1 }

// withoutRanges returns the service without the ports that are ranges.
func withoutRanges(s *service.Service) *service.Service {
	c := *s
	c.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p service.Port) bool { return p.IsRange() })
	return &c
}
