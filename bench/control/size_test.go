package control

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nftproxy/bench/result"
)

func TestFind(t *testing.T) {
	for text, want := range map[string]Size{
		"1,000x10":    {Name: "1,000x10", Services: 1000, Endpoints: 10},
		"44000x1":     {Name: "44,000x1", Services: 44_000, Endpoints: 1},
		"30000x10":    {Name: "30,000x10", Services: 30_000, Endpoints: 10},
		"5,000x20 LB": {Name: "5,000x20 LB", Services: 5000, Endpoints: 20, LoadBalancer: true},
		"7x2":         {Name: "7x2", Services: 7, Endpoints: 2},
		"7x2 LB":      {Name: "7x2 LB", Services: 7, Endpoints: 2, LoadBalancer: true},
	} {
		got, err := Find(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	for _, text := range []string{"", "x", "10", "0x1", "1x0", "70000x1", "60000x60"} {
		if s, err := Find(text); err == nil {
			t.Errorf("%q: %+v", text, s)
		}
	}
}

// TestSizes: the average number of endpoints is as the name says, and the Services'
// numbers differ.
func TestSizes(t *testing.T) {
	for _, name := range []string{"10000x10", "1000x10", "5006x50", "44000x1", "30000x3", "1x10000", "5000x20 LB"} {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		got, want := s.total(), s.Services*s.Endpoints
		if got < want*99/100 || got > want*101/100 {
			t.Errorf("%s: %d endpoints, want about %d", s.Name, got, want)
		}
		if s.Services > 1 && s.Endpoints > 2 && s.endpointsOf(0) == s.endpointsOf(1) {
			t.Errorf("%s: all services have %d endpoints", s.Name, s.endpointsOf(0))
		}
	}
}

// TestObjects: every address is there once, and no slice is larger than a slice of the
// EndpointSlice controller.
func TestObjects(t *testing.T) {
	for _, name := range []string{"3x1", "50x10", "2x250", "1x1000", "20x5 LB"} {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]bool{}
		note := func(text string) {
			t.Helper()
			a := netip.MustParseAddr(text)
			if seen[a] {
				t.Errorf("%s: %s is there twice", name, a)
			}
			seen[a] = true
		}
		services, endpoints, ports := 0, 0, map[int32]bool{}
		err = s.objects(func(objects []runtime.Object) error {
			for _, o := range objects {
				switch o := o.(type) {
				case *corev1.Service:
					services++
					note(o.Spec.ClusterIPs[0])
					for _, in := range o.Status.LoadBalancer.Ingress {
						note(in.IP)
					}
					ports[o.Spec.Ports[0].NodePort] = true
				case *discoveryv1.EndpointSlice:
					if n := len(o.Endpoints); n == 0 || n > maxSlice {
						t.Errorf("%s: slice %s has %d endpoints", name, o.Name, n)
					}
					for _, e := range o.Endpoints {
						endpoints++
						note(e.Addresses[0])
					}
				}
			}
			return nil
		})
		if err != nil || services != s.Services || endpoints != s.total() {
			t.Errorf("%s: %d services, %d endpoints, error %v", name, services, endpoints, err)
		}
		if want := map[bool]int{false: 1, true: s.Services}[s.LoadBalancer]; len(ports) != want {
			t.Errorf("%s: %d node ports", name, len(ports))
		}
	}
}

// TestRanges: the ranges of addresses do not overlap, even at the largest possible
// numbers.
func TestRanges(t *testing.T) {
	const laterMost = 1 << 22
	ranges := []struct{ first, last netip.Addr }{
		{clusterIP(0), clusterIP(maxServices - 1)},
		{endpointIP(0), endpointIP(maxEndpoints - 1)},
		{laterIP(0), laterIP(laterMost)},
		{netip.MustParseAddr("10.244.0.0"), netip.MustParseAddr("10.244.255.255")}, // pods
		{ingressIP(0, 0), ingressIP(maxServices-1, 0)},
		{ingressIP(0, 1), ingressIP(maxServices-1, 1)},
	}
	for i, r := range ranges[1:] {
		if !ranges[i].last.Less(r.first) || r.last.Less(r.first) {
			t.Errorf("range %v to %v begins before the end of %v to %v", r.first, r.last, ranges[i].first, ranges[i].last)
		}
	}
	if cidr := netip.MustParsePrefix("10.96.0.0/12"); !cidr.Contains(clusterIP(0)) {
		t.Error("addresses of services outside of the ServiceCIDR")
	}
}

// TestChurnTime: slow proxies go on as long as nftproxy only at the sizes that targets
// name.
func TestChurnTime(t *testing.T) {
	for _, name := range []string{"10000x10", "1000x10", "5006x50", "44000x1", "30000x3", "1x10000", "5000x20 LB"} {
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		r := &run{Config: Config{Samples: Full()}, size: s}
		whole := s.Name == result.Small || s.Name == result.Usual
		if ours, slow := r.churnTime(true), r.churnTime(false); ours != time.Minute || (slow == ours) != whole {
			t.Errorf("%s: %v for nftproxy, %v for others", s.Name, ours, slow)
		}
	}
	if got, err := Find(result.Small); err != nil {
		t.Errorf("the size of a quick run: %+v, error %v", got, err)
	}
}

// TestHopeless: a proxy that failed at a size gets only a part of the limit at sizes that
// are not smaller. Other proxies get all of it.
func TestHopeless(t *testing.T) {
	find := func(name string) Size {
		t.Helper()
		s, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	failed := failures{result.KubeProxyIPTables: {find(result.Usual)}}
	for name, want := range map[string]time.Duration{
		result.Usual: 30 * time.Second, result.Wide: 30 * time.Second, "30,000x3": 30 * time.Second,
		"5,000x20 LB": 30 * time.Second,
		result.Small:  3 * time.Minute, result.Many: 3 * time.Minute, "1x10,000": 3 * time.Minute,
	} {
		got, note := failed.limit(3*time.Minute, result.KubeProxyIPTables, find(name))
		if got != want || strings.Contains(note, result.Usual) != (got < 3*time.Minute) {
			t.Errorf("%s: %v, %q; want %v", name, got, note, want)
		}
		if got, note := failed.limit(3*time.Minute, result.KubeProxyNFTables, find(name)); got != 3*time.Minute ||
			note != "" {
			t.Errorf("%s, who never failed: %v, %q", name, got, note)
		}
	}
}

func worldOf(t *testing.T, name string) *world {
	t.Helper()
	s, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return newIndex(s)
}

// TestSpots: lists of places keep their promises.
func TestSpots(t *testing.T) {
	one := "1x1000"
	if testing.Short() {
		one = "1x200"
	}
	for _, name := range []string{"40x1", "40x10", one, "7x3"} {
		w := worldOf(t, name)
		total := w.size.total()
		for what, list := range map[string][]spot{"scattered": w.scattered(total), "few": w.spots(5),
			"many": w.spots(3 * total)} {
			distinct := map[spot]bool{}
			for _, at := range list {
				distinct[at] = true
				// Panics when there is no such place.
				w.replace(at, laterIP(1))
			}
			switch {
			case what == "few" && len(list) != 5, what == "many" && len(list) != 3*total:
				t.Errorf("%s, %s: %d places", name, what, len(list))
			case what == "scattered" && len(distinct) != total:
				t.Errorf("%s, %s: %d places of %d endpoints", name, what, len(distinct), total)
			}
		}
	}
	w := worldOf(t, "40x10")
	if row := w.scattered(10); row[0].service == row[1].service {
		t.Errorf("neighbours in one service: %+v", row)
	}
}

// TestReplace: one endpoint of the slice is another, and the seeded slice stays as it
// was.
func TestReplace(t *testing.T) {
	w := worldOf(t, "5x10")
	at := spot{3, 0, 4}
	before, after := w.slice(3, 0), w.replace(at, laterIP(7))
	for j := range before.Endpoints {
		was, is := before.Endpoints[j].Addresses[0], after.Endpoints[j].Addresses[0]
		if changed := was != is; changed != (j == 4) {
			t.Errorf("endpoint %d: %s, then %s", j, was, is)
		}
	}
	if diff := cmp.Diff(before, w.slice(3, 0)); diff != "" {
		t.Errorf("the slice that nobody wrote (-before +after):\n%s", diff)
	}
}
