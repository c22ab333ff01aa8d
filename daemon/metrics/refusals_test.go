package metrics_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/metrics"
	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
)

// TestWaitingConnections: the gauge has the latest look's connections, and nobody waits for a Service any more once the
// rules have its first endpoint. The sets of flows leave the program with the last Service that holds.
func TestWaitingConnections(t *testing.T) {
	const services = 52
	name := func(i int) service.Name { return service.NewName("ns", fmt.Sprintf("web-%02d", i)) }
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	set := func(i int, endpoints ...service.Endpoint) {
		b.Set(&service.Service{
			Name: name(i), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})},
			Ports:   []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(endpoints)}},
			Options: service.Options{Hold: 30 * time.Second},
		})
	}
	there := service.Endpoint{Addr: netip.MustParseAddrPort("10.244.1.1:80"), Node: "node", Ready: true, Serving: true}
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	gauges := func() map[string]float64 {
		return gaugesOf(t, r, "nftproxy_waiting_connections", "namespace", "service")
	}
	sets := func() bool {
		s := aSync(b.Snapshot())
		m.Observe(s)
		return s.Program.Table(nft.IPv4).Set("held-flows") != nil || s.Program.Table(nft.IPv4).Set("held-before") != nil
	}
	want := map[string]float64{" ": 2}
	var look traffic.Refusals
	for i := range services {
		set(i)
		look.Held = append(look.Held, traffic.Held{Name: name(i), Connections: 1})
		if i < 50 {
			want[fmt.Sprintf("ns web-%02d", i)] = 1
		}
	}
	if !sets() {
		t.Error("no set while Services hold")
	}
	m.ObserveRefusals(look)
	if diff := cmp.Diff(want, gauges()); diff != "" {
		t.Errorf("all wait (-want +got):\n%s", diff)
	}
	set(0, there)
	if !sets() {
		t.Error("no set while some Services hold")
	}
	delete(want, "ns web-00")
	want["ns web-50"], want[" "] = 1, 1
	if diff := cmp.Diff(want, gauges()); diff != "" {
		t.Errorf("one has its endpoint (-want +got):\n%s", diff)
	}
	for i := range services {
		set(i, there)
	}
	if sets() {
		t.Error("a set, though no Service holds")
	}
	if diff := cmp.Diff(map[string]float64{" ": 0}, gauges()); diff != "" {
		t.Errorf("all have their endpoints (-want +got):\n%s", diff)
	}
}
