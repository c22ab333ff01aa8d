package snapshots_test

import (
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/snapshots"
)

// growingOf has the endpoints with these numbers growing, at TCP port 80 of the Service.
func growingOf(name service.Name, quarters uint32, numbers ...byte) service.Adjustments {
	var list []service.Adjustment
	for _, n := range numbers {
		list = append(list, service.Adjustment{PortEndpoint: service.PortEndpoint{Protocol: service.TCP, Port: 80,
			Addr: endpointAt(n)}, Share: service.ShareOf(quarters), Since: time.Unix(1, 0)})
	}
	return service.Adjustments{}.Set(name, service.NewAdjusted(list))
}

func endpointAt(n byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 80)
}

// growable has two ports with n endpoints each.
func growable(n int, weight service.Weight) *service.Service {
	var list []service.Endpoint
	for i := range n {
		list = append(list, service.Endpoint{Addr: endpointAt(byte(i)), Ready: true, Serving: true, Weight: weight})
	}
	endpoints := service.MergeEndpoints(list)
	return &service.Service{Name: "shop/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []service.Port{
			{Name: "web", Protocol: service.TCP, Port: 80, Endpoints: endpoints}, {Name: "admin", Protocol: service.TCP,
				Port: 81, Endpoints: endpoints},
		}}
}

// TestGrowth: a growing endpoint has a part of its own weight, however small that is, at the port where it is growing
// and at no other. The Service that the source has set stays as it was.
func TestGrowth(t *testing.T) {
	for _, c := range []struct {
		weight uint16
		part   uint32
		want   uint32 // in quarters
	}{
		{100, 1, 100}, {100, 2, 200}, {65535, 1, 65535}, {7, 1, 7}, {7, 2, 14}, {1, 1, 1}, {1, 2, 2}, {0, 1, 0},
		{200, 2, 400},
	} {
		b, s := snapshots.NewBuilder(service.Node{Name: "n"}), growable(3, service.NewWeight(c.weight))
		b.Set(s)
		before := b.Snapshot()
		b.SetGrowing(growingOf(s.Name, c.part, 1, 77))
		weight := func(port int, n byte) uint32 {
			return b.Snapshot().Services.At(s.Name).Ports[port].Endpoints.Find(service.Endpoint{Addr: endpointAt(n)}).Quarters()
		}
		if got := weight(0, 1); got != c.want {
			t.Errorf("%d/4 of %d is %d quarters, want %d", c.part, c.weight, got, c.want)
		}
		if whole := 4 * uint32(c.weight); weight(0, 0) != whole || weight(1, 1) != whole ||
			b.Service(s.Name) != s {
			t.Errorf("others have %d and %d quarters, want those of %d", weight(0, 0), weight(1, 1), c.weight)
		}
		if b.SetGrowing(service.Adjustments{}); b.Snapshot().Services.At(s.Name) != before.Services.At(s.Name) {
			t.Error("the grown Service is another one")
		}
	}
}

// TestGrowthBounded: the slots of a growing Service fit a quarter of the bound on its elements, too. Where they do not,
// there are fewer, down to one for each endpoint.
func TestGrowthBounded(t *testing.T) {
	for _, limit := range []int{250, 300, 1600, 2000, 2400, 4400, 1 << 18} {
		b, s := snapshots.NewBuilder(service.Node{Name: "n"}), growable(100, 0)
		b.SetMaxElements(limit)
		b.Set(s)
		whole := b.Snapshot().Services.At(s.Name)
		if len(whole.Ports) != 2 {
			t.Fatalf("limit %d: the Service has not all of its ports without growth", limit)
		}
		b.SetGrowing(growingOf(s.Name, 1, 99))
		grown := b.Snapshot().Services.At(s.Name)
		elements := len(grown.ClusterIPs)
		for i := range grown.Ports {
			elements += 1 + share.MostSlots(grown, &grown.Ports[i], ip.V4)
		}
		if elements > limit || len(grown.Ports) != 2 {
			t.Errorf("limit %d: %d ports and %d elements", limit, len(grown.Ports), elements)
		}
		if full := 1 + 1 + 397 + 1 + 100; limit >= 4*full && elements != full {
			t.Errorf("limit %d: %d elements, want %d", limit, elements, full)
		}
	}
}
