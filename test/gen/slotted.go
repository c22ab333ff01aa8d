package gen

import (
	"math/rand/v2"

	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/treap"
)

// Slots draws slots for the endpoints of the snapshot's services with feedback, right and wrong ones, and none for some
// endpoints. The order of ports and endpoints makes no difference to other draws.
func Slots(rng *rand.Rand, s service.Snapshot) map[service.Name]service.Slotted {
	all := map[service.Name]service.Slotted{}
	own := rand.New(rand.NewPCG(rng.Uint64(), 0))
	for name, svc := range s.Services.All() {
		if svc.Options.Balance != service.ByLeastConnections {
			continue
		}
		all[name] = service.Slotted{}
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for e := range p.Endpoints.All() {
				if own.IntN(8) > 0 {
					all[name][p.At(e.Addr)] = service.Slots{Cluster: uint16(own.IntN(40)), Local: uint16(own.IntN(40))}
				}
			}
		}
	}
	return all
}

// Slotted returns the snapshot with such slots.
func Slotted(rng *rand.Rand, s service.Snapshot) service.Snapshot {
	edits := map[service.Name]*service.Service{}
	for name, slots := range Slots(rng, s) {
		edits[name] = share.WithSlots(s.Services.At(name), slots)
	}
	s.Services = s.Services.Apply(treap.Edits(edits))
	return s
}
