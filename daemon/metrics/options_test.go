package metrics_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// TestServicesWithOption: after each change, the gauges count the Services of the snapshot that have the option, and
// the endpoints that are growing.
func TestServicesWithOption(t *testing.T) {
	positive := map[string]int{}
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 32))
		b := snapshots.NewBuilder(gen.PlainNode())
		r := prometheus.NewRegistry()
		m := metrics.New(r)
		for i, c := range gen.Changes(rng, 200, gen.Options{Annotations: true}) {
			if c.Service == nil {
				b.Delete(c.Name)
			} else {
				b.Set(c.Service)
			}
			b.SetGrowing(gen.Growth(rng, b.Snapshot()))
			snapshot := b.Snapshot()
			m.Observe(proxy.Sync{Snapshot: snapshot})
			growing := 0.0
			for _, adjusted := range snapshot.Adjustments.All() {
				growing += float64(len(*adjusted))
			}
			if growing > 0 {
				positive["growing"]++
			}
			if got := gaugesOf(t, r, "nftproxy_growing_endpoints")[""]; got != growing {
				t.Fatalf("seed %d, after change %d: %g endpoints are growing, want %g", seed, i, got, growing)
			}
			want := map[string]float64{}
			for _, s := range snapshot.Services.All() {
				for key := range s.Options.All() {
					want[key]++
				}
				if weighted(s) {
					want["weight"]++
				}
			}
			for key := range want {
				positive[key]++
			}
			if diff := cmp.Diff(want, withOption(t, r)); diff != "" {
				t.Fatalf("seed %d, after change %d (-want +got):\n%s", seed, i, diff)
			}
		}
	}
	for _, key := range []string{"balance", "external-failover", "port-ranges", "weight", "growing"} {
		if positive[key] == 0 {
			t.Errorf("no Service ever had the option %s: %s", key, fmt.Sprint(positive))
		}
	}
}

func weighted(s *service.Service) bool {
	for i := range s.Ports {
		for e := range s.Ports[i].Endpoints.All() {
			if e.Weight.Number() != 100 || e.Share != service.WholeShare {
				return true
			}
		}
	}
	return false
}

// withOption returns the gauges above 0.
func withOption(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	above := gaugesOf(t, r, "nftproxy_services_with_option", "option")
	maps.DeleteFunc(above, func(_ string, n float64) bool { return n == 0 })
	return above
}
