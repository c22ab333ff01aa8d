package gen

import (
	"math/rand/v2"

	"nftproxy/model/service"
)

// Growth draws growing endpoints of the snapshot's services with a slow start: any of them, with any part of their weight, also all
// of a port.
func Growth(rng *rand.Rand, s service.Snapshot) service.Growth {
	var growth service.Growth
	for name, svc := range s.Services.All() {
		if svc.Options.SlowStart == 0 || rng.IntN(4) == 0 {
			continue
		}
		var list []service.Growing
		for i := range svc.Ports {
			p := &svc.Ports[i]
			for e := range p.Endpoints.All() {
				if rng.IntN(2) == 0 {
					list = append(list, service.Growing{Protocol: p.Protocol, Port: p.Port, Addr: e.Addr, Part: 1 + rng.IntN(service.WholePart-1)})
				}
			}
		}
		if len(list) > 0 {
			growers := service.NewGrowers(list)
			growth = growth.Set(name, &growers)
		}
	}
	return growth
}
