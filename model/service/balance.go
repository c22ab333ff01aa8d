package service

import (
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/slots"
)

// Balance says how a new connection gets its endpoint.
type Balance uint8

// The ways: at random, by a hash of the client's address, or by a hash of the client's address and port. By a hash all
// nodes send the same client to the same endpoint, as far as they choose among the same endpoints.
const (
	ByRandom Balance = iota
	ByClient
	ByFlow
)

func balanceWords() []string { return []string{"random", "client", "flow"} }

func (b Balance) String() string { return balanceWords()[b] }

// MaxSlots returns the greatest number of slots that the service's lists of endpoints may have.
func (s *Service) MaxSlots() int {
	if s.SlotLimit == 0 {
		return slots.MaxSize
	}
	return s.SlotLimit
}

// noSlots is the SlotLimit of a service whose lists have a slot for each endpoint.
const noSlots = 1

// Weighted says whether some endpoint has another weight than the default one, or a part of it.
func (p *Port) Weighted() bool {
	for chunk := range p.Endpoints.Chunks() {
		for i := range chunk {
			if chunk[i].weighted() {
				return true
			}
		}
	}
	return false
}

// Slots returns the greatest number of slots that a list of the port's endpoints of a family may have on any node:
// a list of fewer endpoints never has more.
func (s *Service) Slots(p *Port, family ip.Family) int {
	n := p.endpoints(family)
	switch size := slots.TableSize(n, s.MaxSlots()); {
	case s.SlotLimit == noSlots:
		return n
	case s.Options.Balance != ByRandom:
		return max(n, size)
	case !p.Weighted():
		return n
	}
	weights := make([]uint32, 0, n)
	for e := range p.Endpoints.All() {
		if family.Has(e.Addr.Addr()) {
			weights = append(weights, e.Quarters())
		}
	}
	return max(n, slots.DrawnSize(weights, s.MaxSlots()))
}

// asksForSlots says whether a list of endpoints may have more slots than endpoints.
func (s *Service) asksForSlots() bool {
	return s.Options.Balance != ByRandom || slices.ContainsFunc(s.Ports, func(p Port) bool { return p.Weighted() })
}

// slotShare is the part of the limit on one service that its slots may fill, so that a change of all of them, such as
// of its balance, delays others less than one of everything: 65,536 elements cost 0.15 s of CPU time.
const slotShare = 4

// slotRoom is how many elements the service may have with its slots: without them it may need more.
func (s *Service) slotRoom(limit int) int {
	return max(limit/slotShare, min(limit, s.elements((*Port).endpoints)))
}

// fitted returns the service with as many slots as fit slotRoom, at most those that it asks for. It is the service
// itself if they all fit.
func (s *Service) fitted(limit int) *Service {
	room := s.slotRoom(limit)
	if s.SlotLimit == noSlots || s.elements(s.Slots) <= room {
		return s
	}
	fewer := *s
	for _, size := range slots.Smaller() {
		fewer.SlotLimit = size
		if fewer.elements(fewer.Slots) <= room {
			return &fewer
		}
	}
	fewer.SlotLimit = noSlots
	return &fewer
}
