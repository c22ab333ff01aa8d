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
// serving one, then the one on the node whose name sorts first: so the result
// does not depend on the order of the slices. It works in place.
func MergeEndpoints(endpoints []Endpoint) []Endpoint {
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		if c := a.Addr.Compare(b.Addr); c != 0 {
			return c
		}
		return cmp.Or(b.rank()-a.rank(), strings.Compare(a.Node, b.Node))
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

// Choose returns the addresses of one family that new connections to the port
// go to: the ready endpoints or, where there is none, those that still serve
// while they terminate (KEP-1669). The result is sorted and has no duplicates;
// empty means that connections are to be refused.
func (p *Port) Choose(v6 bool) []netip.AddrPort {
	ready := p.addresses(v6, func(e *Endpoint) bool { return e.Ready })
	if len(ready) > 0 {
		return ready
	}
	return p.addresses(v6, func(e *Endpoint) bool { return e.Serving && e.Terminating })
}

func (p *Port) addresses(v6 bool, usable func(*Endpoint) bool) []netip.AddrPort {
	var addrs []netip.AddrPort
	for i := range p.Endpoints {
		if e := &p.Endpoints[i]; e.Addr.Addr().Is6() == v6 && usable(e) {
			if addrs == nil {
				addrs = make([]netip.AddrPort, 0, len(p.Endpoints)-i)
			}
			addrs = append(addrs, e.Addr)
		}
	}
	return addrs
}

// Local yields the distinct addresses of one family of those chosen endpoints
// that run on the node: the ones that can reach themselves through the service.
func (p *Port) Local(node string, v6 bool) []netip.Addr {
	var local []netip.Addr
	for _, a := range p.Choose(v6) {
		i, ok := slices.BinarySearchFunc(p.Endpoints, a, func(e Endpoint, a netip.AddrPort) int {
			return e.Addr.Compare(a)
		})
		if ok && p.Endpoints[i].Node == node && !slices.Contains(local, a.Addr()) {
			local = append(local, a.Addr())
		}
	}
	return local
}
