package service

import (
	"net/netip"
	"slices"
)

// Servers are TCP endpoints of a server that the node itself needs, such as the API
// servers. A value never changes.
type Servers []netip.AddrPort

// leadsTo says whether the service sends all connections to the claim to the servers: it
// has an endpoint there that may get connections, and each such is one of them. These are
// the ready ones. Those that end but still serve count where none is ready, as in kube-proxy, and
// with externalTrafficPolicy Local always: there they get the node's share while other
// nodes have ready ones. The service's source ranges must admit the node.
func (r *rules) leadsTo(s *Service, c Claim, servers *Servers) bool {
	if s == nil || c.Protocol != TCP || r.shutsOut(s, c) {
		return false
	}
	ready, ending := heading{}, heading{}
	for i := range s.Ports {
		p := &s.Ports[i]
		number := p.Port
		if c.Addr.IsUnspecified() {
			number = p.NodePort
		}
		if p.Protocol != TCP || number != c.Port {
			continue
		}
		for e := range p.Endpoints.All() {
			at := &ready
			switch {
			case e.Addr.Addr().Is6() != c.Addr.Is6():
				continue
			case e.Ready:
			case e.Serving && e.Terminating:
				at = &ending
			default:
				continue
			}
			at.some = true
			at.elsewhere = at.elsewhere || !slices.Contains(*servers, e.Addr)
			if ready.elsewhere {
				return false
			}
		}
	}
	if ready.some && s.ExternalPolicy == Cluster {
		return true
	}
	return (ready.some || ending.some) && !ending.elsewhere
}

// heading says of endpoints in one state whether there are some, and whether one of them is
// none of the servers.
type heading struct{ some, elsewhere bool }

// shutsOut says whether the service's source ranges keep the node from the claim.
func (r *rules) shutsOut(s *Service, c Claim) bool {
	wall, _, restricted := s.FirewallAt(c, nil)
	return restricted && !slices.ContainsFunc(r.node, func(a netip.Addr) bool {
		return a.Is6() == c.Addr.Is6() && wall.Sources.Contains(a)
	})
}
