package watch

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/service"
)

// TestOtherPorts: a Service whose port has no endpoint keeps the ports of its slices that it does not take, and forgets them once
// its port has endpoints.
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

// TestForeignNode: a Node of an API server none of whose addresses is on an interface here is a problem, once.
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
	here, there := []netip.Addr{netip.MustParseAddr("192.168.0.9")}, []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("10.0.0.1")}
	ix := newIndex("node-0")
	ix.expectNode()
	ix.setHostAddresses(here, nil)
	if n := foreign(ix); n != 0 {
		t.Error("a problem before there is a Node")
	}
	ix.setNode(convertNode(node("192.168.0.2")))
	if n := foreign(ix); n != 1 {
		t.Errorf("%d problems, want one", n)
	}
	ix.setNode(convertNode(node("192.168.0.2")))
	ix.setHostAddresses(here, nil)
	if n := foreign(ix); n != 0 {
		t.Error("the problem comes again without a change")
	}
	ix.setHostAddresses(there, nil)
	if n := foreign(ix); n != 0 {
		t.Error("a problem although an interface has the address")
	}
	ix.setHostAddresses(here, nil)
	if n := foreign(ix); n != 1 {
		t.Errorf("%d problems after the address has gone, want one", n)
	}
	manifests := newIndex("node-0")
	manifests.setHostAddresses(here, nil)
	manifests.setNode(convertNode(node("192.168.0.2")))
	if n := foreign(manifests); n != 0 {
		t.Error("a problem about a Node of a manifest")
	}
}
