package eject

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/ejection"
	"nftproxy/model/service"
)

// A tenant's hundred endpoints are silent for a minute, and cost looks, connects and steps. Another tenant's pod that
// dies then is left out within five seconds, and all of it has kept to the budget.
func TestOthersCrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var nodes []string
		var crowd []netip.AddrPort
		for i := range 200 {
			nodes = append(nodes, fmt.Sprint("node-", i%10))
			if i%2 == 1 {
				crowd = append(crowd, endpointAt(i))
			}
		}
		s := snapshot(nodes...)
		evil := s.Services.At("shop/web").Clone()
		evil.Name = "evil/web"
		shop := s.Services.At("shop/web").Clone()
		shop.Ports[0].Endpoints = service.MergeEndpoints([]service.Endpoint{
			{Addr: endpointAt(250), Node: "node-1", Ready: true, Serving: true}, {Addr: endpointAt(251), Node: "node-2",
				Ready: true, Serving: true},
		})
		s.Services = s.Services.Set(evil.Name, evil).Set(shop.Name, shop)
		connections := &table{cpu: 10 * time.Millisecond, to: crowd}
		out := make(chan time.Time, 1)
		cpu := time.Duration(0)
		e := newEjector(Config{
			Table: connections, Mode: service.EjectOn, Observe: func(r Report) { cpu += r.CPU },
			Set: func(left service.Adjustments) {
				if left.At("shop/web") != nil {
					select {
					case out <- time.Now():
					default:
					}
				}
			},
			Repeats: func() (uint64, error) { return uint64(time.Now().UnixNano()), nil },
			Connect: func(_ context.Context, to []netip.AddrPort) ejection.Answer {
				if !slices.Contains(crowd, to[0]) && to[0] != endpointAt(250) {
					return ejection.Answered
				}
				time.Sleep(ejection.Patience)
				return ejection.Unanswered
			},
		})
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		e.Notify(s)
		time.Sleep(time.Minute)
		connections.change(append(slices.Clone(crowd), endpointAt(250)), nil)
		began := time.Now()
		if took := (<-out).Sub(began); took > 5*time.Second {
			t.Errorf("left out after %v", took)
		}
		cancel()
		<-done
		if most := burst + 65*time.Second/rest*3/2; cpu > most {
			t.Errorf("%v of CPU time in a minute, want %v at most", cpu, most)
		}
		time.Sleep(ejection.Patience) // the last connects
	})
}
