package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"nftproxy/model/sorted"
	"nftproxy/model/treap"
)

// WholePart is the Part of an endpoint that has grown. Parts are powers of two, so that pools stay short: beside 99 endpoints
// of the same weight an endpoint makes a row of 397 slots with a quarter of it, 199 with a half and 100 with the whole; with
// tenths up to 999.
const WholePart = 4

// MaxSlowStart is the greatest Options.SlowStart.
const MaxSlowStart = time.Hour

func slowStartOption() option {
	return option{
		key: "slow-start",
		set: func(o *Options, value string) error {
			d, ok := wholeSeconds(value, MaxSlowStart)
			if !ok {
				return fmt.Errorf("not a time with whole seconds from 1s to %dh, such as 30s; new endpoints have their whole weight at once", int(MaxSlowStart.Hours()))
			}
			o.SlowStart = d
			return nil
		},
		get: func(o *Options) string {
			if o.SlowStart == 0 {
				return ""
			}
			return strconv.Itoa(int(o.SlowStart.Seconds())) + "s"
		},
	}
}

// Growing says that an endpoint of one port of a service is new, and has only a part of its weight yet.
type Growing struct {
	Protocol Protocol
	// Port is the service's own.
	Port uint16
	Addr netip.AddrPort
	// Part of WholePart is its part of the weight: 1 or 2.
	Part int
	// Since is when it was new.
	Since time.Time
}

// Growers are the growing endpoints of one service, sorted by protocol, port and address, each once.
type Growers []Growing

// Growth has the growing endpoints of all services that have any.
type Growth = treap.Map[Name, *Growers]

func (g Growing) compare(o Growing) int {
	return cmp.Or(cmp.Compare(g.Protocol, o.Protocol), cmp.Compare(g.Port, o.Port), g.Addr.Compare(o.Addr))
}

// Text is, for example, "since 12:03:07: 1/4 of its weight". The time is UTC.
func (g Growing) Text() string {
	return fmt.Sprintf("since %s: %d/%d of its weight", g.Since.UTC().Format(time.TimeOnly), g.Part, WholePart)
}

// NewGrowers sorts in place and keeps the slice. Of duplicates it keeps the first.
func NewGrowers(list []Growing) Growers {
	slices.SortStableFunc(list, Growing.compare)
	return slices.CompactFunc(list, func(a, b Growing) bool { return a.compare(b) == 0 })
}

// Find returns what there is of an endpoint of a port, or nil. A nil Growers has none.
func (g *Growers) Find(p *Port, addr netip.AddrPort) *Growing {
	if g == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(*g, Growing{Protocol: p.Protocol, Port: p.Port, Addr: addr}, Growing.compare)
	if !found {
		return nil
	}
	return &(*g)[i]
}

// SetGrowth replaces the growing endpoints. A service that is in both with the same pointer costs nothing.
func (b *Builder) SetGrowth(g Growth) {
	for change := range treap.Diff(b.snapshot.Growth, g) {
		if s := b.Service(change.Key); s != nil {
			b.edit(change.Key, s)
		}
	}
	b.snapshot.Growth = g
}

// grown returns the service with the present part of the weight of growing endpoints, and as many slots as fit the limit on its
// elements; the service itself if it has none of them. A weight above 0 stays above 0.
func (s *Service) grown(growing *Growers, limit int) *Service {
	if growing == nil {
		return s
	}
	edits := make([][]sorted.Edit[Endpoint], len(s.Ports))
	for _, g := range *growing {
		i := slices.IndexFunc(s.Ports, func(p Port) bool { return p.Protocol == g.Protocol && p.Port == g.Port })
		if i < 0 {
			continue
		}
		if have := s.Ports[i].Endpoints.Find(Endpoint{Addr: g.Addr}); have != nil && !have.Drained() {
			part := *have
			part.Weight = NewWeight(uint16(max(1, int(have.Weight.Number())*g.Part/WholePart)))
			edits[i] = append(edits[i], sorted.Edit[Endpoint]{Item: part})
		}
	}
	served := s
	for i := range edits {
		if len(edits[i]) == 0 {
			continue
		}
		if served == s {
			served = s.Clone()
		}
		served.Ports[i].Endpoints = s.Ports[i].Endpoints.Edit(edits[i])
	}
	if served == s {
		return s
	}
	return served.fitted(limit)
}
