package service

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"nftproxy/model/ip"
	"nftproxy/model/sorted"
)

// Endpoints are the endpoints of a service port, sorted by address and port, each once.
type Endpoints = sorted.List[Endpoint]

// Compare orders endpoints by address and port, and by nothing else.
func (e Endpoint) Compare(o Endpoint) int { return e.Addr.Compare(o.Addr) }

// MergeEndpoints makes Endpoints of the endpoints in all slices of one service port. Of
// duplicates (the same pod in two slices) it keeps one: not terminating goes before
// terminating, then ready before not ready, then serving before not serving. Then the
// node name that sorts first decides, then the hints, then the weight. So the result does not depend on
// the order of the slices. MergeEndpoints sorts in place and keeps the slice.
func MergeEndpoints(endpoints []Endpoint) Endpoints {
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		if c := a.Compare(b); c != 0 {
			return c
		}
		return cmp.Or(b.rank()-a.rank(), compareBools(a.Node == "", b.Node == ""), strings.Compare(a.Node, b.Node),
			cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.Zones, b.Zones), compareBools(a.Weight != 0, b.Weight != 0),
			cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.Share, b.Share))
	})
	return sorted.Of(slices.CompactFunc(endpoints, func(a, b Endpoint) bool { return a.Addr == b.Addr }))
}

// rank orders duplicates; the highest is kept.
func (e Endpoint) rank() int {
	rank := 0
	if !e.Terminating {
		rank += 4
	}
	if e.Ready && e.Share != NoShare {
		rank += 2
	}
	if e.Serving && e.Share != NoShare {
		rank++
	}
	return rank
}

// Drained says that the endpoint's weight is 0: it gets no new connections, and keeps those that it has.
func (e *Endpoint) Drained() bool { return e.Weight == NewWeight(0) }

// Weighted says that the endpoint has another weight than the default one, or a part of it.
func (e *Endpoint) Weighted() bool {
	return e.Weight != 0 || e.Share != WholeShare && e.Share != NoShare
}

// Quarters is what the endpoint weighs on this node: the quarters of its weight that it has. Each share of each weight
// is a whole number of them.
func (e *Endpoint) Quarters() uint32 { return uint32(e.Weight.Number()) * e.Share.Quarters() }

// TakesNew says that the endpoint's conditions let it get new connections, at least while no better endpoint does. One
// that is left out gets none, and nor does a nil one.
func (e *Endpoint) TakesNew() bool {
	return e != nil && e.Share != NoShare && (e.Ready || e.Serving && e.Terminating)
}

// Serves says that the endpoint answers what comes to it. One that terminates may do so, although new connections go
// elsewhere.
func (e *Endpoint) Serves() bool { return e.Share != NoShare && (e.Ready || e.Serving) }

// State says in words what the endpoint's conditions, weight and share mean.
func (e *Endpoint) State() string {
	text := "not ready"
	switch {
	case e.Share == NoShare:
		text = "left out, because it does not answer this node"
	case e.Terminating && e.Serving:
		text = "terminating, and still serves"
	case e.Terminating:
		text = "terminating, and no longer serves"
	case e.Ready:
		text = "ready"
	}
	if e.Weight != 0 {
		text += fmt.Sprintf(", of weight %d", e.Weight.Number())
	}
	return text
}

// Count counts the endpoints of one family in all states. IPv4 sorts first.
func (p *Port) Count(family ip.Family) int {
	v4 := 0
	for chunk := range p.Endpoints.Chunks() {
		n, _ := slices.BinarySearchFunc(chunk, true, func(e Endpoint, _ bool) int {
			if e.Addr.Addr().Is6() {
				return 1
			}
			return -1
		})
		if v4 += n; n < len(chunk) {
			break
		}
	}
	if family == ip.V6 {
		return p.Endpoints.Len() - v4
	}
	return v4
}

// HasEndpoints reports whether the port has endpoints for new connections, anywhere, in one family.
func (p *Port) HasEndpoints(family ip.Family) bool {
	for chunk := range p.Endpoints.Chunks() {
		for i := range chunk {
			if e := &chunk[i]; family.Has(e.Addr.Addr()) && e.TakesNew() {
				return true
			}
		}
	}
	return false
}

// External reports whether the port can be reached, in one family, other than by a
// cluster IP.
func (s *Service) External(p *Port, family ip.Family) bool {
	return p.NodePort != 0 || slices.ContainsFunc(s.ExternalIPs, family.Has) || slices.ContainsFunc(s.LoadBalancerIPs,
		family.Has)
}
