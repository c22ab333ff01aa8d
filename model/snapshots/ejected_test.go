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

// An endpoint that is left out counts as not ready, for the port that does without it and for no other, until it comes
// back. The Service that the source has set stays as it was.
func TestEjections(t *testing.T) {
	first, second := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	endpoints := service.MergeEndpoints([]service.Endpoint{
		{Addr: first, Node: "a", Ready: true, Serving: true}, {Addr: second, Node: "b", Ready: true, Serving: true},
	})
	s := &service.Service{Name: "shop/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []service.Port{
			{Name: "web", Protocol: service.TCP, Port: 80, Endpoints: endpoints}, {Name: "admin", Protocol: service.TCP,
				Port: 81, Endpoints: endpoints},
		}}
	b := snapshots.NewBuilder(service.Node{Name: "n"})
	b.Set(s)
	before := b.Snapshot()
	chosen := func(port int) int {
		served := b.Snapshot().Services.At(s.Name)
		choice := share.Choose(served, &served.Ports[port], b.Node(), ip.V4)
		return choice.Cluster.Len()
	}
	e := service.NewAdjusted([]service.Adjustment{{PortEndpoint: service.PortEndpoint{Protocol: service.TCP, Port: 80,
		Addr: first}, Share: service.NoShare, Since: time.Unix(1, 0), Why: "silent"}})
	b.SetAdjustments(service.Adjustments{}.Set(s.Name, e))
	if web, admin := chosen(0), chosen(1); web != 1 || admin != 2 {
		t.Errorf("%d and %d endpoints are chosen, want 1 and 2", web, admin)
	}
	served := b.Snapshot().Services.At(s.Name)
	if got := served.Ports[0].Endpoints.Find(service.Endpoint{Addr: first}); got.TakesNew() || got.Serves() || !got.Ready {
		t.Errorf("the endpoint is %+v", *got)
	}
	if why := b.Snapshot().Adjustments.At(s.Name).Find(&served.Ports[0], first); why == nil || why.Why != "silent" {
		t.Errorf("the reason is %v", why)
	}
	if b.Service(s.Name) != s || s.Ports[0].Endpoints.Find(service.Endpoint{Addr: first}).Share != service.WholeShare {
		t.Error("the source's Service is another")
	}
	// A change of the Service keeps it, and the same value again keeps the pointer.
	next := s.Clone()
	next.ExternalPolicy = service.Local
	b.Set(next)
	if n := chosen(0); n != 1 {
		t.Errorf("after a change %d endpoints are chosen, want 1", n)
	}
	b.Set(s)
	b.Snapshot()
	b.SetAdjustments(service.Adjustments{})
	if after := b.Snapshot(); after.Services.At(s.Name) != before.Services.At(s.Name) {
		t.Error("the Service is not the one from before")
	}
}
