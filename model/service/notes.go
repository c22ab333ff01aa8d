package service

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// PortEndpoint names an endpoint of one port of a service.
type PortEndpoint struct {
	Protocol Protocol
	// Port is the service's own.
	Port uint16
	Addr netip.AddrPort
}

// At names one of the port's endpoints.
func (p *Port) At(addr netip.AddrPort) PortEndpoint { return PortEndpoint{p.Protocol, p.Port, addr} }

func (e PortEndpoint) endpoint() PortEndpoint { return e }

func (e PortEndpoint) compare(o PortEndpoint) int {
	return cmp.Or(cmp.Compare(e.Protocol, o.Protocol), cmp.Compare(e.Port, o.Port), e.Addr.Compare(o.Addr))
}

// note is what is known of an endpoint beside the source's objects.
type note interface {
	comparable
	endpoint() PortEndpoint
}

// Notes are those of the endpoints of one service, sorted by protocol, port and address, each endpoint once. A nil one
// has none.
type Notes[N note] []N

// NewNotes sorts in place and keeps the slice. Of duplicates it keeps the first.
func NewNotes[N note](list []N) Notes[N] {
	order := func(a, b N) int { return a.endpoint().compare(b.endpoint()) }
	slices.SortStableFunc(list, order)
	return slices.CompactFunc(list, func(a, b N) bool { return order(a, b) == 0 })
}

// from returns those of an endpoint and of what comes after it.
func (n *Notes[N]) from(e PortEndpoint) []N {
	if n == nil {
		return nil
	}
	i, _ := slices.BinarySearchFunc(*n, e, func(at N, e PortEndpoint) int { return at.endpoint().compare(e) })
	return (*n)[i:]
}

// Find returns what there is of an endpoint of a port, or nil.
func (n *Notes[N]) Find(p *Port, addr netip.AddrPort) *N {
	if list := n.from(p.At(addr)); len(list) > 0 && list[0].endpoint() == p.At(addr) {
		return &list[0]
	}
	return nil
}

// Of returns those of one port.
func (n *Notes[N]) Of(p *Port) []N {
	list := n.from(p.At(netip.AddrPort{}))
	if end := slices.IndexFunc(list, func(at N) bool { return at.endpoint() != p.At(at.endpoint().Addr) }); end >= 0 {
		return list[:end]
	}
	return list
}

// noted returns the service with its endpoints as edit makes them, which says whether it changes one; the service
// itself if nothing changes.
func noted[N note](s *Service, notes *Notes[N], edit func(*Endpoint, N) bool) *Service {
	if notes == nil {
		return s
	}
	served := s
	for i := range s.Ports {
		var edits []sorted.Edit[Endpoint]
		for _, n := range notes.Of(&s.Ports[i]) {
			if have := s.Ports[i].Endpoints.Find(Endpoint{Addr: n.endpoint().Addr}); have != nil {
				if e := *have; edit(&e, n) {
					edits = append(edits, sorted.Edit[Endpoint]{Item: e})
				}
			}
		}
		if len(edits) == 0 {
			continue
		}
		if served == s {
			served = s.Clone()
		}
		served.Ports[i].Endpoints = s.Ports[i].Endpoints.Edit(edits)
	}
	return served
}

// setNotes replaces the notes of a snapshot. A service that is in both with the same pointer costs nothing.
func setNotes[N note](b *Builder, have *treap.Map[Name, *Notes[N]], next treap.Map[Name, *Notes[N]]) {
	for change := range treap.Diff(*have, next) {
		if b.Service(change.Key) != nil {
			b.edit(change.Key)
		}
	}
	*have = next
}
