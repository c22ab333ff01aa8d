package gen

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"

	"nftproxy/model/service"
)

// Growth draws growing endpoints of the snapshot's services with a slow start: any of them, with any part of their
// weight, also all of a port. The order of ports and endpoints makes no difference.
func Growth(rng *rand.Rand, s service.Snapshot) service.Adjustments {
	var growing service.Adjustments
	drawn := rng.Uint64()
	for name, svc := range s.Services.All() {
		if svc.Options.SlowStart == 0 {
			continue
		}
		var list []service.Adjustment
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for e := range p.Endpoints.All() {
				sum := fnv.New64a()
				_, _ = fmt.Fprint(sum, drawn, name, p.Protocol, p.Port, e.Addr)
				if quarters := uint32(uint8(sum.Sum64()>>32) % 6); quarters > 0 && quarters < 4 {
					list = append(list, service.Adjustment{PortEndpoint: p.At(e.Addr), Share: service.ShareOf(quarters)})
				}
			}
		}
		if len(list) > 0 {
			growing = growing.Set(name, service.NewAdjusted(list))
		}
	}
	return growing
}
