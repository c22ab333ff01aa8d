package watch

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// TestOtherPorts: a Service whose port has no endpoint keeps the ports of its slices that it does not take, and forgets
// them once its port has endpoints.
func TestOtherPorts(t *testing.T) {
	ix := newIndex("node-0")
	svc := grabbing("web", 1, "10.96.0.9")
	svc.Spec.Ports = svc.Spec.Ports[:1]
	svc.Spec.Ports[0].Name = "http"
	ix.setService(convertService(svc))
	set := func(port string) []service.SlicePort {
		slice := sliceFor(svc, "web-1", "10.0.0.1")
		slice.Ports[0].Name = &port
		ix.setSlice(convertSlice(slice))
		snapshot := ix.flush()
		s, _ := snapshot.Services.Get("tenant/web")
		if s == nil {
			t.Fatal("no Service")
		}
		return s.OtherPorts
	}
	for _, name := range []string{"", "HTTP", "web", "http", "other"} {
		want := []service.SlicePort{{Name: name, Protocol: service.TCP}}
		if name == "http" {
			want = nil
		}
		if got := set(name); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

// TestUsableNodeAddresses: a Node's first address of a family that clients elsewhere can use serves node ports. Where a
// family has none, all addresses do, but not before the kubelet has told any.
func TestUsableNodeAddresses(t *testing.T) {
	for given, want := range map[string]string{
		"fe80::1 2001:db8:50::1 192.168.0.2":             "192.168.0.2 2001:db8:50::1",
		"169.254.1.1 192.168.0.2 febf::1 2001:db8:50::1": "192.168.0.2 2001:db8:50::1",
		"127.0.0.1 192.168.0.2 ::1 2001:db8:50::1":       "192.168.0.2 2001:db8:50::1",
		"0.0.0.0 192.168.0.2 :: 2001:db8:50::1":          "192.168.0.2 2001:db8:50::1",
		"224.0.0.1 192.168.0.2 ff02::1 2001:db8:50::1":   "192.168.0.2 2001:db8:50::1",
		"::ffff:169.254.1.1 ::ffff:192.168.0.2 fe80::1":  "192.168.0.2 all",
		"169.254.1.1 fe80::1":                            "all all",
		"127.0.0.1":                                      "all all",
		"0.0.0.0 ff02::1":                                "none none",
		"":                                               "none none",
	} {
		ix := newIndex("node-0")
		ix.expectNode()
		n := convertNode(node(strings.Fields(given)...))
		ix.setNode(n)
		var got []string
		for _, family := range ip.Families() {
			addrs, all := service.NodePortAddresses{}.On(ix.builder.Snapshot().Node, family)
			switch {
			case all:
				got = append(got, "all")
			case len(addrs) == 0:
				got = append(got, "none")
			}
			for _, a := range addrs {
				got = append(got, a.String())
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q: node ports on %v, want %s", given, got, want)
		}
		if passed := len(strings.Fields(given)) - len(n.facts.Addresses); len(n.problems) != passed {
			t.Errorf("%q: %d problems, want one for each of %d that are passed over", given, len(n.problems), passed)
		}
	}
}

// TestForeignNode: a Node none of whose addresses is on an interface here is a problem, once, whether it comes from an
// API server or from manifests.
func TestForeignNode(t *testing.T) {
	foreign := func(ix *index) (n int) {
		for _, p := range ix.problems {
			if errors.Is(p.Err, ErrForeignNode) {
				n++
			}
		}
		ix.problems = nil
		return n
	}
	here, there := []netip.Addr{netip.MustParseAddr("192.168.0.9")}, []netip.Addr{netip.MustParseAddr("192.168.0.2"),
		netip.MustParseAddr("10.0.0.1")}
	ix := newIndex("node-0")
	ix.expectNode()
	ix.setHostAddresses(here, nil, nil)
	if n := foreign(ix); n != 0 {
		t.Error("a problem before there is a Node")
	}
	ix.setNode(convertNode(node("192.168.0.2")))
	if n := foreign(ix); n != 1 {
		t.Errorf("%d problems, want one", n)
	}
	ix.setNode(convertNode(node("192.168.0.2")))
	ix.setHostAddresses(here, nil, nil)
	if n := foreign(ix); n != 0 {
		t.Error("the problem comes again without a change")
	}
	ix.setHostAddresses(there, nil, nil)
	if n := foreign(ix); n != 0 {
		t.Error("a problem although an interface has the address")
	}
	ix.setHostAddresses(here, nil, nil)
	if n := foreign(ix); n != 1 {
		t.Errorf("%d problems after the address has gone, want one", n)
	}
	manifests := newIndex("node-0")
	manifests.setHostAddresses(here, nil, nil)
	manifests.setNode(convertNode(node("192.168.0.2")))
	if n := foreign(manifests); n != 1 {
		t.Errorf("%d problems about a Node of a manifest, want one", n)
	}
	// Addresses of no use to others are none by which one tells whose the Node is: each host has 127.0.0.1.
	loopback := newIndex("node-0")
	loopback.setHostAddresses(append(here, netip.MustParseAddr("127.0.0.1")), nil, nil)
	loopback.setNode(convertNode(node("127.0.0.1", "192.168.0.2")))
	if n := foreign(loopback); n != 1 {
		t.Errorf("%d problems about a Node with a loopback address, want one", n)
	}
}
