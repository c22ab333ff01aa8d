package share

import (
	"nftproxy/model/service"
	"nftproxy/model/sorted"
)

// Apply returns a service with the shares that its endpoints have; the service itself if it has none of them. One
// that is not ready is not left out. A port that is ranges does without what no other port has, and its endpoints grow
// on their own.
func Apply(s *service.Service, list *service.Adjusted) *service.Service {
	share := func(e *service.Endpoint, a service.Adjustment) service.Share {
		if e.Drained() && a.Share != service.NoShare || !e.Ready && a.Share == service.NoShare {
			return e.Share
		}
		return a.Share
	}
	served := withShares(s, list, share)
	if served != s && served.HasRanges() && list.Growing() < len(*list) {
		served.FillRanges()
		served = withShares(served, list, share)
	}
	return served
}

// Unadjusted returns a service of a snapshot with the whole weight of all its endpoints; nil if there is none.
func Unadjusted(s service.Snapshot, name service.Name) *service.Service {
	svc := s.Services.At(name)
	if svc == nil {
		return nil
	}
	return withShares(svc, s.Adjustments.At(name), func(*service.Endpoint, service.Adjustment) service.Share {
		return service.WholeShare
	})
}

// WithSlots returns a service whose endpoints have the slots that another step of feedback has found, if it asks for
// feedback and has room for it; the service itself if nothing changes.
func WithSlots(s *service.Service, slots service.Slotted) *service.Service {
	if s.Options.Balance != service.ByLeastConnections || s.SlotLimit == service.NoSlots || len(slots) == 0 {
		return s
	}
	served := s
	for i := range s.Ports {
		p := &s.Ports[i]
		var edits []sorted.Edit[service.Endpoint]
		for e := range p.Endpoints.All() {
			if next := slots.Of(p, e.Addr); next != e.Slots {
				e.Slots = next
				edits = append(edits, sorted.Edit[service.Endpoint]{Item: e})
			}
		}
		if len(edits) == 0 {
			continue
		}
		if served == s {
			served = s.Clone()
		}
		served.Ports[i].Endpoints = p.Endpoints.Edit(edits)
	}
	return served
}

// withShares returns a service with the shares that share gives to the adjusted endpoints; the service itself if
// nothing changes.
func withShares(s *service.Service, list *service.Adjusted,
	share func(*service.Endpoint, service.Adjustment) service.Share) *service.Service {
	served := s
	for i := range s.Ports {
		var edits []sorted.Edit[service.Endpoint]
		for _, a := range list.Of(&s.Ports[i]) {
			if have := s.Ports[i].Endpoints.Find(service.Endpoint{Addr: a.Addr}); have != nil {
				e := *have
				if e.Share = share(have, a); e.Share != have.Share {
					edits = append(edits, sorted.Edit[service.Endpoint]{Item: e})
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
