package ejection_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/model/ejection"
	"nftproxy/model/service"
)

// A tenant writes the name of a node into its slices, at addresses where nothing answers, and connects to them. Another
// tenant's pods on that node answer, so they stay, whatever protocols their ports have.
func TestInventedNode(t *testing.T) {
	for _, protocol := range []service.Protocol{service.TCP, service.UDP} {
		t.Run(protocol.String(), func(t *testing.T) {
			w := newWorld(t)
			evil := w.service("evil/web", "a", "a", "a", "b", "b", "b", "c", "c")
			shop := w.service("shop/web", "a", "b", "c").Clone()
			if protocol == service.UDP {
				shop.Ports = append(shop.Ports, service.Port{Name: "dns", Protocol: protocol, Port: 53, Endpoints: shop.Ports[0].Endpoints})
				w.builder.Set(shop)
			}
			for _, e := range evil.Ports[0].Endpoints.Few()[:3] {
				w.dead[e.Addr.Addr().String()] = true
			}
			sure := false
			w.run(time.Minute, func(i int) {
				w.connect("evil/web", "client")
				for _, l := range w.left() {
					if sure = true; strings.HasPrefix(l, "shop/") {
						t.Fatalf("after %v: left out %q", w.now.Sub(start), w.left())
					}
				}
			})
			if !sure {
				t.Errorf("the tenant's own are not left out; held: %v", w.verdict.Held)
			}
		})
	}
}

// Two Services have the same pods, and the API says different things of them: one has hints of zones, or names another node.
// What does not answer is left out of both.
func TestSharedEndpoint(t *testing.T) {
	for name, change := range map[string]func(*service.Endpoint){
		"zones":       func(e *service.Endpoint) { e.Zones = "z1" },
		"node":        func(e *service.Endpoint) { e.Node = "elsewhere" },
		"terminating": func(e *service.Endpoint) { e.Terminating = true },
	} {
		for _, first := range []service.Name{"alpha/web", "zulu/web"} {
			t.Run(fmt.Sprint(name, " ", first), func(t *testing.T) {
				w := newWorld(t)
				s := w.service("shop/web", "own", "a", "b", "c")
				twin := s.Clone()
				twin.Name, twin.ClusterIPs = first, []netip.Addr{netip.MustParseAddr("10.96.9.9")}
				list := append([]service.Endpoint(nil), s.Ports[0].Endpoints.Few()...)
				for i := range list {
					change(&list[i])
				}
				twin.Ports[0].Endpoints = service.MergeEndpoints(list)
				w.builder.Set(twin)
				w.modes[first] = ejection.On
				w.dead["11.1.0.1"] = true
				w.run(20*time.Second, w.traffic("shop/web"))
				if n := len(w.verdict.Left); n != 2 {
					t.Errorf("left out: %q, want it of both; held: %v", w.left(), w.verdict.Held)
				}
			})
		}
	}
}

// A slice changes while the node tries to connect. What comes of that try says nothing about the new endpoint.
func TestLateAnswer(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c")
	to := s.Ports[0].Endpoints.Few()[1].Addr
	flows := []ejection.Flow{{ID: 1, To: to}, {ID: 2, To: to}, {ID: 3, To: to}}
	see := func() {
		w.machine.See(w.now, ejection.Look(w.builder.Snapshot(), func(*service.Service) ejection.Mode { return ejection.On }, w.machine.Wanted, w.machine.WantedNodes()))
	}
	askedFor := func() (about []ejection.Ask) {
		asks, _ := w.machine.Ask(w.now)
		for _, a := range asks {
			if a.Addr == to {
				about = append(about, a)
			} else {
				w.machine.Answered(w.now, a, ejection.Answered)
			}
		}
		return about
	}
	w.machine.Looked(w.now, flows)
	see()
	old := askedFor()
	w.now = w.now.Add(300 * time.Millisecond)
	old = append(old, askedFor()...)
	if len(old) != 2 {
		t.Fatalf("%d connects, want 2", len(old))
	}
	next := s.Clone()
	list := append([]service.Endpoint(nil), next.Ports[0].Endpoints.Few()...)
	list[1].Node = "d"
	next.Ports[0].Endpoints = service.MergeEndpoints(list)
	w.builder.Set(next)
	see()
	w.now = w.now.Add(300 * time.Millisecond)
	w.machine.Looked(w.now, flows)
	see()
	for _, a := range old {
		w.machine.Answered(w.now, a, ejection.Unanswered)
	}
	w.now = w.now.Add(1100 * time.Millisecond)
	w.machine.Looked(w.now, flows)
	see()
	if v := w.machine.Decide(w.now); len(v.Left) > 0 {
		t.Errorf("left out without a try: %v", v.Left)
	}
	if len(askedFor()) != 1 {
		t.Error("the new endpoint is not asked")
	}
}

// A tenant's endpoints die in two halves, those with lower addresses last. Those that are known to be dead count, too: a
// quarter of the room is all that one namespace gets.
func TestCrowdGrows(t *testing.T) {
	w := newWorld(t)
	var nodes []string
	for i := range 1500 {
		nodes = append(nodes, fmt.Sprint("x", i%10))
	}
	s := w.service("evil/web", nodes...)
	var addrs []netip.AddrPort
	for e := range s.Ports[0].Endpoints.All() {
		addrs = append(addrs, e.Addr)
	}
	for _, dead := range [][]netip.AddrPort{addrs[1000:1250], addrs[:250]} {
		for _, a := range dead {
			w.dead[a.Addr().String()] = true
		}
		w.run(15*time.Second, func(i int) {
			for j := range 50 {
				w.connectTo(dead[(50*i+j)%len(dead)], "client")
			}
		})
	}
	if n := len(w.verdict.Left); n == 0 || n > 256 {
		t.Errorf("%d endpoints of one namespace are left out, want 1 to 256; held: %v", n, w.verdict.Held)
	}
}
