package service_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/test/gen"
)

func endpoint(addr, node string, conditions ...string) service.Endpoint {
	return service.Endpoint{
		Addr: netip.MustParseAddrPort(addr), Node: node,
		Ready:       slices.Contains(conditions, "ready"),
		Serving:     slices.Contains(conditions, "serving"),
		Terminating: slices.Contains(conditions, "terminating"),
	}
}

func TestMergeEndpoints(t *testing.T) {
	for _, test := range []struct {
		name     string
		in, want []service.Endpoint
	}{
		{name: "none"},
		{
			name: "sorted by address, not by its text",
			in: []service.Endpoint{endpoint("10.0.1.10:80", ""), endpoint("[fd00::1]:80", ""), endpoint("10.0.1.9:80", ""),
				endpoint("10.0.1.9:8", "")},
			want: []service.Endpoint{endpoint("10.0.1.9:8", ""), endpoint("10.0.1.9:80", ""), endpoint("10.0.1.10:80", ""),
				endpoint("[fd00::1]:80", "")},
		}, {
			name: "one that does not terminate wins, even if it is not ready",
			in: []service.Endpoint{endpoint("10.0.0.1:80", "a", "ready", "serving", "terminating"),
				endpoint("10.0.0.1:80", "b")},
			want: []service.Endpoint{endpoint("10.0.0.1:80", "b")},
		}, {
			name: "then a ready one",
			in:   []service.Endpoint{endpoint("10.0.0.1:80", "a", "serving"), endpoint("10.0.0.1:80", "b", "ready")},
			want: []service.Endpoint{endpoint("10.0.0.1:80", "b", "ready")},
		}, {
			name: "then a serving one",
			in: []service.Endpoint{endpoint("10.0.0.1:80", "a", "terminating"), endpoint("10.0.0.1:80", "b", "serving",
				"terminating")},
			want: []service.Endpoint{endpoint("10.0.0.1:80", "b", "serving", "terminating")},
		}, {
			name: "then the node's name",
			in:   []service.Endpoint{endpoint("10.0.0.1:80", "b", "ready"), endpoint("10.0.0.1:80", "a", "ready")},
			want: []service.Endpoint{endpoint("10.0.0.1:80", "a", "ready")},
		}, {
			name: "one address, two ports: two endpoints",
			in:   []service.Endpoint{endpoint("10.0.0.1:81", "a", "ready"), endpoint("10.0.0.1:80", "a", "ready")},
			want: []service.Endpoint{endpoint("10.0.0.1:80", "a", "ready"), endpoint("10.0.0.1:81", "a", "ready")},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := gocmp.Diff(test.want, slices.Collect(service.MergeEndpoints(test.in).All()), byValue); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestMergeEndpointsOrder: whatever order and grouping the endpoints of one
// port come in, the same list comes out.
func TestMergeEndpointsOrder(t *testing.T) {
	opts := gen.Options{Endpoints: 10}
	seeds(t, 100, func(t *testing.T, rng *rand.Rand) {
		var all []service.Endpoint
		for range 4 { // four slices with overlapping addresses
			for _, p := range gen.Service(rng, opts).Ports {
				all = slices.AppendSeq(all, p.Endpoints.All())
			}
		}
		want := service.MergeEndpoints(slices.Clone(all))
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if diff := gocmp.Diff(want, service.MergeEndpoints(slices.Clone(all)), byValue); diff != "" {
			t.Fatalf("shuffled (-want +got):\n%s", diff)
		}
		cut := rng.IntN(len(all) + 1)
		parts := slices.Collect(service.MergeEndpoints(slices.Clone(all[:cut])).All())
		parts = slices.AppendSeq(parts, service.MergeEndpoints(slices.Clone(all[cut:])).All())
		if diff := gocmp.Diff(want, service.MergeEndpoints(parts), byValue); diff != "" {
			t.Fatalf("in two parts (-want +got):\n%s", diff)
		}
	})
}

func TestIDAndName(t *testing.T) {
	long := strings.Repeat("n", 63)
	s := &service.Service{Name: service.NewName(long, long), Ports: []service.Port{{Name: long, Port: 80}, {Port: 81}}}
	got := []string{s.ID(&s.Ports[0]), s.ID(&s.Ports[1])}
	want := []string{long + "/" + long + ":" + long, long + "/" + long + ":81"}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("ID (-want +got):\n%s", diff)
	}
	if ns, name := s.Name.Split(); ns != long || name != long {
		t.Errorf("Split: %s, %s", ns, name)
	}
}
