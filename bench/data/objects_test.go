package data

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"nftproxy/bench/result"
)

// TestSteps: growing from size to size makes as many services as asked for, with
// no name, address or node port twice, and what is measured is there.
func TestSteps(t *testing.T) {
	names, addresses, ports := map[string]bool{}, map[netip.AddrPort]*corev1.Service{}, map[int32]bool{}
	endpoints := map[string]int{}
	before, plain := 0, 0
	for _, size := range Sizes() {
		for _, step := range steps(before, size) {
			for _, object := range step {
				switch o := object.(type) {
				case *corev1.Service:
					if names[o.Name] {
						t.Errorf("two services %s", o.Name)
					}
					names[o.Name] = true
					at := netip.AddrPortFrom(netip.MustParseAddr(o.Spec.ClusterIPs[0]), uint16(o.Spec.Ports[0].Port))
					if addresses[at] != nil {
						t.Errorf("%s and %s at %v", o.Name, addresses[at].Name, at)
					}
					addresses[at] = o
					if o.Spec.SessionAffinity == corev1.ServiceAffinityNone {
						plain++
					}
					if port := o.Spec.Ports[0].NodePort; port != 0 {
						if ports[port] || port < 20_000 || port > 32_767 {
							t.Errorf("%s has node port %d, of somebody else or out of range", o.Name, port)
						}
						ports[port] = true
					}
				case *discoveryv1.EndpointSlice:
					endpoints[o.Labels[discoveryv1.LabelServiceName]] = len(o.Endpoints)
				}
			}
		}
		if plain != size {
			t.Errorf("%d services, want %d", plain, size)
		}
		for _, target := range Full().targets() {
			node := netip.MustParseAddr("192.168.100.1")
			to := target.service(size, node)
			if target.from == fromOutside {
				if !ports[int32(to.Port())] || to.Addr() != node {
					t.Errorf("%s at %d: no service has the node port of %v", target.name, size, to)
				}
				continue
			}
			s := addresses[to]
			if s == nil || endpoints[s.Name] != endpointCount ||
				target.affinity != (s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP) {
				t.Errorf("%s at %d: %v has service %+v, with %d endpoints", target.name, size, to, s, endpoints[s.Name])
			}
		}
		before = size
	}
}

// TestLastIsLast: the last service of a size is written after all others.
func TestLastIsLast(t *testing.T) {
	got := steps(1, 4)
	var names []string
	for _, step := range got {
		for _, object := range step {
			if s, ok := object.(*corev1.Service); ok {
				names = append(names, s.Name)
			}
		}
		names = append(names, "|")
	}
	want := []string{"|", "service-00001", "service-00002", "|", "service-00003", "affinity-00004", "|"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNodePorts: all that sizes could have are different and in range.
func TestNodePorts(t *testing.T) {
	seen := map[uint16]int{}
	for i := range maxServices {
		if i%everyPort != 0 && i%everyPort != everyPort-1 {
			continue
		}
		p := nodePort(i)
		if other, found := seen[p]; found || p < 20_000 || p > 32_767 {
			t.Fatalf("service %d has port %d, as %d has", i, p, other)
		}
		seen[p] = i
	}
}

// TestQuestions: each is asked once, and the targets of the project find them.
func TestQuestions(t *testing.T) {
	for _, e := range []Effort{Full(), Quick()} {
		seen := map[string]bool{}
		for _, q := range e.questions() {
			if seen[q] {
				t.Errorf("%q is asked twice", q)
			}
			seen[q] = true
		}
		for _, q := range []string{
			result.ConnectionSetup + ", pod to cluster IP, last service", result.ConnectionSetup +
				", node to cluster IP, last service", result.ConnectionSetup + ", outside to node port, last service",
		} {
			if !seen[q] {
				t.Errorf("%q is not asked", q)
			}
		}
		c := Config{Sizes: []int{1, 10}, Effort: e}
		if diff := cmp.Diff(fmt.Sprint(2*len(seen)*len(c.backends())), fmt.Sprint(c.Cells())); diff != "" {
			t.Errorf("cells (-want +got):\n%s", diff)
		}
	}
}
