package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/treap"
)

// Share is how much of its weight an endpoint has on this node. The zero value is all of it. Those of a slow start are
// powers of two, so that pools stay short: beside 99 endpoints of the same weight an endpoint makes a row of 397 slots
// with a quarter of it, 199 with a half and 100 with the whole; with tenths up to 999.
type Share uint8

// The shares, the greatest first. An endpoint without a share is left out: it counts as not ready.
const (
	WholeShare Share = iota
	ThreeQuarters
	Half
	Quarter
	NoShare
)

// Quarters is the share in quarters, 0 to 4.
func (s Share) Quarters() uint32 { return uint32(NoShare - s) }

// ShareOf returns the share of that many quarters, 4 at most.
func ShareOf(quarters uint32) Share { return NoShare - Share(quarters) }

// String is, for example, "1/4".
func (s Share) String() string { return fmt.Sprintf("%d/%d", s.Quarters(), WholeShare.Quarters()) }

// ParseShare reads what String writes of a share that is not the whole.
func ParseShare(text string) (s Share, ok bool) {
	for s = ThreeQuarters; s <= NoShare; s++ {
		if s.String() == text {
			return s, true
		}
	}
	return WholeShare, false
}

// PortEndpoint names an endpoint of one port of a service.
type PortEndpoint struct {
	Protocol Protocol
	// Port is the service's own. Where only the node port is known, it is 0, and NodePort has that; else NodePort is 0.
	Port, NodePort uint16
	Addr           netip.AddrPort
}

// At names one of the port's endpoints.
func (p *Port) At(addr netip.AddrPort) PortEndpoint {
	return PortEndpoint{Protocol: p.Protocol, Port: p.Port, Addr: addr}
}

// AtNodePort names it without the number of the port. The port must have a node port.
func (p *Port) AtNodePort(addr netip.AddrPort) PortEndpoint {
	return PortEndpoint{Protocol: p.Protocol, NodePort: p.NodePort, Addr: addr}
}

// Compare orders them by protocol, port and address.
func (e PortEndpoint) Compare(o PortEndpoint) int {
	return cmp.Or(cmp.Compare(e.Protocol, o.Protocol), cmp.Compare(e.Port, o.Port),
		cmp.Compare(e.NodePort, o.NodePort), e.Addr.Compare(o.Addr))
}

// Adjustment says that this node gives an endpoint of one port of a service less than the source's objects say: it is
// left out since it does not answer, or it is growing since it is new.
type Adjustment struct {
	PortEndpoint
	// Share is less than the whole.
	Share Share
	// Since is when the endpoint was left out, or was new.
	Since time.Time
	// Why says in words why it is left out; empty for one that grows.
	Why string
}

// Text is, for example, "since 12:03:07: 1/4 of its weight", or "since 12:03:07: 5 connections without answer, 2 tries
// of this node failed". The time is UTC.
func (a Adjustment) Text() string {
	why := a.Why
	if a.Share != NoShare {
		why = a.Share.String() + " of its weight"
	}
	return fmt.Sprintf("since %s: %s", a.Since.UTC().Format(time.TimeOnly), why)
}

// Adjusted are the adjustments of one service, sorted by protocol, port and address, each endpoint once. A nil one has
// none.
type Adjusted []Adjustment

// Adjustments are those of all services that have any.
type Adjustments = treap.Map[Name, *Adjusted]

// NewAdjusted sorts in place and keeps the slice. Of duplicates it keeps the first. It returns nil for an empty list.
func NewAdjusted(list []Adjustment) *Adjusted {
	if len(list) == 0 {
		return nil
	}
	order := func(a, b Adjustment) int { return a.Compare(b.PortEndpoint) }
	slices.SortStableFunc(list, order)
	sorted := Adjusted(slices.CompactFunc(list, func(a, b Adjustment) bool { return order(a, b) == 0 }))
	return &sorted
}

// from returns those of an endpoint and of what comes after it.
func (a *Adjusted) from(e PortEndpoint) []Adjustment {
	if a == nil {
		return nil
	}
	i, _ := slices.BinarySearchFunc(*a, e, func(at Adjustment, e PortEndpoint) int { return at.Compare(e) })
	return (*a)[i:]
}

// Find returns the adjustment of an endpoint of a port, or nil.
func (a *Adjusted) Find(p *Port, addr netip.AddrPort) *Adjustment {
	if list := a.from(p.At(addr)); len(list) > 0 && list[0].PortEndpoint == p.At(addr) {
		return &list[0]
	}
	return nil
}

// Of returns those of one port.
func (a *Adjusted) Of(p *Port) []Adjustment {
	list := a.from(p.At(netip.AddrPort{}))
	if end := slices.IndexFunc(list, func(at Adjustment) bool { return at.PortEndpoint != p.At(at.Addr) }); end >= 0 {
		return list[:end]
	}
	return list
}

// Growing counts the endpoints that are growing.
func (a *Adjusted) Growing() (n int) {
	for _, at := range a.All() {
		if at.Share != NoShare {
			n++
		}
	}
	return n
}

// All returns all of them.
func (a *Adjusted) All() []Adjustment { return a.from(PortEndpoint{}) }

// Equal reports whether both have the same adjustments.
func (a *Adjusted) Equal(o *Adjusted) bool { return a == o || slices.Equal(a.All(), o.All()) }

// Over returns the adjustments, and those of o of the endpoints that have none.
func (a *Adjusted) Over(o *Adjusted) *Adjusted {
	switch {
	case a == nil:
		return o
	case o == nil:
		return a
	}
	return NewAdjusted(slices.Concat(*a, *o))
}
