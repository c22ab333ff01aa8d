package gen

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"

	"nftproxy/model/service"
)

// Growth draws growing endpoints of the snapshot's services with a slow start: any of them, with any part of their
// weight, also all of a port. The order of ports and endpoints makes no difference.
func Growth(rng *rand.Rand, s service.Snapshot) service.Growth {
	var growth service.Growth
	drawn := rng.Uint64()
	for name, svc := range s.Services.All() {
		if svc.Options.SlowStart == 0 {
			continue
		}
		var list []service.Growing
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for e := range p.Endpoints.All() {
				sum := fnv.New64a()
				_, _ = fmt.Fprint(sum, drawn, name, p.Protocol, p.Port, e.Addr)
				if part := uint8(sum.Sum64()>>32) % (service.WholePart + 2); part > 0 && part < service.WholePart {
					list = append(list, service.Growing{PortEndpoint: p.At(e.Addr), Part: part})
				}
			}
		}
		if len(list) > 0 {
			growers := service.NewNotes(list)
			growth = growth.Set(name, &growers)
		}
	}
	return growth
}
