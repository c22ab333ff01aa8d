package metrics_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/test/gen"
)

// gaugesOf returns the values of the gauges of a name by those of its labels, in the order asked for.
func gaugesOf(t *testing.T, r *prometheus.Registry, name string, labels ...string) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			of := map[string]string{}
			for _, l := range m.GetLabel() {
				of[l.GetName()] = l.GetValue()
			}
			var values []string
			for _, label := range labels {
				values = append(values, of[label])
			}
			all[strings.Join(values, " ")] = m.GetGauge().GetValue()
		}
	}
	return all
}

// gauges returns the gauge's values by traffic policy and family.
func gauges(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	return gaugesOf(t, r, "kubeproxy_sync_proxy_rules_no_local_endpoints_total", "traffic_policy", "ip_family")
}

// TestNoLocalEndpoints has the cases of kube-proxy's TestNoEndpointsMetric and a few
// more, in both families. The node is node-0.
func TestNoLocalEndpoints(t *testing.T) {
	const here, elsewhere = "node-0", "node-1"
	for name, c := range map[string]struct {
		internal, external service.TrafficPolicy
		nodePort           uint16
		endpoints          []string
		// Terminating endpoints go on serving.
		terminating                bool
		wantInternal, wantExternal float64
	}{
		"internal, local ones": {service.Local, service.Cluster, 30080, []string{here, elsewhere}, false, 0,
			0},
		"external, local ones": {service.Cluster, service.Local, 30080, []string{here, elsewhere}, false, 0,
			0},
		"both, local ones": {service.Local, service.Local, 30080, []string{here, elsewhere}, false, 0, 0},
		"internal, only elsewhere": {service.Local, service.Cluster, 30080, []string{elsewhere, elsewhere}, false,
			1, 0},
		"external, only elsewhere": {service.Cluster, service.Local, 30080, []string{elsewhere, elsewhere}, false,
			0, 1},
		"both, only elsewhere": {service.Local, service.Local, 30080, []string{elsewhere, elsewhere}, false, 1,
			1},
		"both, none at all":                   {service.Local, service.Local, 30080, nil, false, 0, 0},
		"neither, only elsewhere":             {service.Cluster, service.Cluster, 30080, []string{elsewhere}, false, 0, 0},
		"both, no external way in":            {service.Local, service.Local, 0, []string{elsewhere}, false, 1, 0},
		"both, terminating here":              {service.Local, service.Local, 30080, []string{here}, true, 0, 0},
		"both, terminating and elsewhere":     {service.Local, service.Local, 30080, []string{elsewhere}, true, 1, 1},
		"external, none and no policy inside": {service.Cluster, service.Local, 30080, nil, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := &service.Service{
				Name: "ns/svc1", InternalPolicy: c.internal, ExternalPolicy: c.external,
				ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.1.1"), netip.MustParseAddr("fd00:172:30::1")},
				Ports:      []service.Port{{Protocol: service.TCP, Port: 80, NodePort: c.nodePort}},
			}
			var list []service.Endpoint
			for _, format := range []string{"10.0.1.%d:80", "[fd00:10::%d]:80"} {
				for i, node := range c.endpoints {
					list = append(list, service.Endpoint{
						Addr: netip.MustParseAddrPort(fmt.Sprintf(format, i+1)), Node: node,
						Ready: !c.terminating, Serving: true, Terminating: c.terminating,
					})
				}
			}
			s.Ports[0].Endpoints = service.MergeEndpoints(list)
			b := snapshots.NewBuilder(gen.PlainNode())
			b.Set(s)
			r := prometheus.NewRegistry()
			metrics.New(r).Observe(proxy.Sync{Snapshot: b.Snapshot()})
			want := map[string]float64{
				"internal IPv4": c.wantInternal, "internal IPv6": c.wantInternal, "external IPv4": c.wantExternal,
				"external IPv6": c.wantExternal,
			}
			if diff := cmp.Diff(want, gauges(t, r)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestNoLocalEndpointsFollows: a count that follows from sync to sync equals a new
// count, after all changes and whichever family is in force.
func TestNoLocalEndpointsFollows(t *testing.T) {
	positive := 0
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 7))
		b := snapshots.NewBuilder(gen.PlainNode())
		r := prometheus.NewRegistry()
		m := metrics.New(r)
		want := map[string]float64{}
		for i, c := range gen.Changes(rng, 200, gen.Options{LoadBalancers: true}) {
			if c.Service == nil {
				b.Delete(c.Name)
			} else {
				b.Set(c.Service)
			}
			if rng.IntN(40) == 0 {
				n := gen.PlainNode()
				n.Name = fmt.Sprintf("node-%d", rng.IntN(3))
				b.SetNode(n)
			}
			sync := proxy.Sync{Snapshot: b.Snapshot()}
			failed := map[nft.Family]error{}
			for _, f := range nft.Families() {
				if rng.IntN(3) == 0 {
					failed[f] = errors.New("no")
				}
			}
			if len(failed) > 0 {
				sync.Err = proxy.FamilyErrors(failed)
			}
			m.Observe(sync)
			anew := prometheus.NewRegistry()
			metrics.New(anew).Observe(proxy.Sync{Snapshot: sync.Snapshot})
			for name, n := range gauges(t, anew) {
				family := nft.IPv4
				if name[len(name)-1] == '6' {
					family = nft.IPv6
				}
				if sync.InForce(family) {
					want[name] = n
				}
				if n > 0 {
					positive++
				}
			}
			if diff := cmp.Diff(want, gauges(t, r)); diff != "" {
				t.Fatalf("seed %d, after change %d (-want +got):\n%s", seed, i, diff)
			}
		}
	}
	if positive < 250 {
		t.Errorf("only %d gauges were above zero: the cases are too narrow", positive)
	}
}
