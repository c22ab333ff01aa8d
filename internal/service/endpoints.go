package service

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// MergeEndpoints sorts the endpoints of one service port by address and port
// and leaves one of each. Between duplicates (the same pod in two slices) one
// that is not terminating wins over one that is, then a ready one, then a
// serving one, then the one on the node whose name sorts first, then the one
// whose hints do: so the result does not depend on the order of the slices. It works in place.
func MergeEndpoints(endpoints []Endpoint) []Endpoint {
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return cmp.Or(b.rank()-a.rank(), strings.Compare(a.Node, b.Node), cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Zones, b.Zones))
	})
	return slices.CompactFunc(endpoints, func(a, b Endpoint) bool { return a.Addr == b.Addr })
}

func (e Endpoint) rank() int {
	rank := 0
	if !e.Terminating {
		rank += 4
	}
	if e.Ready {
		rank += 2
	}
	if e.Serving {
		rank++
	}
	return rank
}

// Choice is where new connections to a service port go, in one family. Its
// lists are sorted and have no duplicates.
type Choice struct {
	// Cluster takes the connections under policy Cluster, and under external
	// policy Local those of pods and of the node itself.
	Cluster []netip.AddrPort
	// Local takes those under policy Local: endpoints on the node.
	Local []netip.AddrPort
	// Anywhere says whether there is any endpoint, here or elsewhere: without
	// one connections are refused, while with endpoints elsewhere only, policy
	// Local drops them, so that a load balancer looks for another node.
	Anywhere bool
}

// Choose chooses the endpoints of the service's port in one family. In each
// list are the ready endpoints or, where there is none, those that still serve
// while they terminate (KEP-1669, KEP-1672). Topology narrows the ready ones of
// the list Cluster, for whatever traffic, and nothing else.
func (s *Service) Choose(p *Port, node *Node, v6 bool) Choice {
	var c Choice
	external := s.External(p, v6)
	if s.InternalPolicy == Cluster || external {
		c.Cluster = p.usable(v6, p.near(node, v6))
		c.Anywhere = len(c.Cluster) > 0
	}
	if s.InternalPolicy == Local || s.ExternalPolicy == Local && external {
		c.Local = p.usable(v6, func(e *Endpoint) bool { return e.Node == node.Name })
		c.Anywhere = c.Anywhere || len(p.usable(v6, func(*Endpoint) bool { return true })) > 0
	}
	return c
}

// External says whether the port can be reached, in one family, other than by a
// cluster IP.
func (s *Service) External(p *Port, v6 bool) bool {
	ours := func(a netip.Addr) bool { return a.Is6() == v6 }
	return p.NodePort != 0 || slices.ContainsFunc(s.ExternalIPs, ours) || slices.ContainsFunc(s.LoadBalancerIPs, ours)
}

// near says which ready endpoints the topology of the cluster leaves: those
// hinted for this node (KEP-3015, PreferSameNode), else those hinted for its
// zone, else all. Hints count only if every ready endpoint of the family has
// some of the kind and any of them names this node or zone: one without, and
// nobody is left out. Endpoints that are not ready have no say, and pass.
func (p *Port) near(node *Node, v6 bool) func(*Endpoint) bool {
	for _, kind := range []struct {
		hints func(*Endpoint) Hints
		here  string
	}{
		{func(e *Endpoint) Hints { return e.Nodes }, node.Name},
		{func(e *Endpoint) Hints { return e.Zones }, node.Zone},
	} {
		if p.hinted(v6, kind.hints, kind.here) {
			return func(e *Endpoint) bool { return !e.Ready || kind.hints(e).Has(kind.here) }
		}
	}
	return func(*Endpoint) bool { return true }
}

// hinted says whether every ready endpoint of the family carries hints of a
// kind, and any of them names what is here.
func (p *Port) hinted(v6 bool, hints func(*Endpoint) Hints, here string) bool {
	named := false
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		if e.Addr.Addr().Is6() != v6 || !e.Ready {
			continue
		}
		if hints(e) == "" {
			return false
		}
		named = named || hints(e).Has(here)
	}
	return named
}

// usable lists the ready endpoints of the family among those considered or,
// where there is none, the serving ones that terminate.
func (p *Port) usable(v6 bool, considered func(*Endpoint) bool) []netip.AddrPort {
	ready := p.addresses(v6, func(e *Endpoint) bool { return e.Ready && considered(e) })
	if len(ready) > 0 {
		return ready
	}
	return p.addresses(v6, func(e *Endpoint) bool { return e.Serving && e.Terminating && considered(e) })
}

func (p *Port) addresses(v6 bool, wanted func(*Endpoint) bool) []netip.AddrPort {
	var addrs []netip.AddrPort
	for i := range p.Endpoints {
		if e := &p.Endpoints[i]; e.Addr.Addr().Is6() == v6 && wanted(e) {
			if addrs == nil {
				addrs = make([]netip.AddrPort, 0, len(p.Endpoints)-i)
			}
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// OnNode yields the distinct addresses of the chosen endpoints that run on the
// node: those that can reach themselves through the service.
func (c Choice) OnNode(p *Port, node *Node) []netip.Addr {
	var local []netip.Addr
	for _, list := range [][]netip.AddrPort{c.Cluster, c.Local} {
		for _, a := range list {
			i, ok := slices.BinarySearchFunc(p.Endpoints, a, func(e Endpoint, a netip.AddrPort) int {
				return e.Addr.Compare(a)
			})
			if ok && p.Endpoints[i].Node == node.Name && !slices.Contains(local, a.Addr()) {
				local = append(local, a.Addr())
			}
		}
	}
	return local
}
