package ejection_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"nftproxy/model/ejection"
	"nftproxy/model/service"
)

// A node dies: no connection that begins three seconds later is slow. It comes back at its first answer.
func TestNodeDies(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "a", "b")
	w.run(5*time.Second, w.traffic("shop/web"))
	w.wantLeft()
	if w.asks > 0 {
		t.Errorf("%d connects while all is well", w.asks)
	}
	w.dead["a"] = true
	w.run(40*time.Second, w.traffic("shop/web"))
	w.wantLeft("shop/web:web 11.1.0.1:8080")
	t.Logf("slow: %v", w.slow)
	if last := slices.Max(w.slow); last > 8*time.Second {
		t.Errorf("the last slow connection began %v after the node had gone", last-5*time.Second)
	}
	if e := w.verdict.Left[0]; e.Why == "" || e.Since.IsZero() {
		t.Errorf("no reason: %+v", e)
	}
	w.dead["a"] = false
	w.run(13*time.Second, w.traffic("shop/web"))
	w.wantLeft()
}

// With mode report the same is found, and nothing is left out.
func TestReport(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "a", "b")
	w.modes["shop/web"] = ejection.Report
	w.dead["a"] = true
	w.run(30*time.Second, w.traffic("shop/web"))
	w.wantLeft("shop/web:web 11.1.0.1:8080")
	if n := w.builder.Snapshot().Ejections.Len(); n != 0 {
		t.Errorf("%d Services do without an endpoint", n)
	}
	w.modes["shop/web"] = ejection.Off
	w.wants = -1
	w.run(5*time.Second, w.traffic("shop/web"))
	w.wantLeft()
}

// A tenant opens half connections to another's pods with senders that do not exist: the pods answer the node, so none is
// left out, and they are not asked often.
func TestSpoofedHalfConnections(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c")
	victim := s.Ports[0].Endpoints.Few()[1].Addr
	w.run(5*time.Minute, func(int) {
		for range 20 {
			w.ids++
			w.flows = append(w.flows, flow{ejection.Flow{ID: w.ids, To: victim}, w.now, "spoofed", true})
		}
		kept := w.flows
		w.flows = nil
		for _, f := range kept { // They stay, whatever the pod answers.
			if w.now.Sub(f.begun) < 10*time.Second {
				w.flows = append(w.flows, f)
			}
		}
		var flows []ejection.Flow
		for _, f := range w.flows {
			flows = append(flows, f.Flow)
		}
		if w.now.Sub(w.looked) >= time.Second {
			w.machine.Looked(w.now, flows)
			w.looked = w.now
		}
		w.flows, kept = nil, w.flows
		w.step()
		w.flows = kept
		w.wantLeft()
	})
	if w.asks > 80 {
		t.Errorf("asked %d times in five minutes", w.asks)
	}
}

// A policy forbids a client, or the client and the node, to reach the endpoints of a Service: nobody else loses any.
func TestNetworkPolicy(t *testing.T) {
	for name, forbidden := range map[string]func(to netip.AddrPort, client string) bool{
		"client":          func(_ netip.AddrPort, client string) bool { return client == "client-0" },
		"client and node": func(_ netip.AddrPort, client string) bool { return client != "client-1" },
		"client and node, but for pods of the node": func(to netip.AddrPort, client string) bool {
			return client == "client-0" || client == "node" && to.Addr() != netip.MustParseAddr("11.1.0.0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.service("shop/web", "own", "a", "b", "c", "d")
			w.service("default/kubernetes", "x", "y", "z")
			w.forbidden = func(to netip.AddrPort, client string) bool {
				return to.Addr().As4()[1] == 1 && forbidden(to, client)
			}
			w.run(time.Minute, func(i int) { w.traffic("shop/web")(i); w.wantLeft() })
		})
	}
	// The client has session affinity: it knows one endpoint only.
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c", "d")
	w.service("default/kubernetes", "x", "y", "z")
	w.forbidden = func(to netip.AddrPort, client string) bool {
		return to.Addr().As4()[1] == 1 && client != "client-1" && to.Addr() != netip.MustParseAddr("11.1.0.0")
	}
	w.run(time.Minute, func(i int) {
		w.connectTo(s.Ports[0].Endpoints.Few()[1].Addr, "client-0")
		w.connect("shop/web", "client-1")
		w.wantLeft()
	})
	w.wantHeld(ejection.NoControl)
}

// This node's own network goes.
func TestOwnNetwork(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "own", "own", "a", "b", "c")
	w.service("shop/two", "own", "own", "d")
	w.dead["a"], w.dead["b"], w.dead["c"], w.dead["d"] = true, true, true, true
	w.run(time.Minute, func(i int) {
		w.connect("shop/web", "client")
		w.connect("shop/two", "client")
		w.wantLeft()
	})
	w.wantHeld(ejection.OwnNetwork)
}

// Half of the cluster is behind a partition: nothing is left out. With a fifth it is.
func TestPartition(t *testing.T) {
	for dead, want := range map[int]bool{2: true, 5: false} {
		w := newWorld(t)
		nodes := []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9"}
		w.service("shop/web", append(nodes, "own", "own")...)
		for _, n := range nodes[:dead] {
			w.dead[n] = true
		}
		w.run(time.Minute, w.traffic("shop/web"))
		if got := len(w.verdict.Left) == dead; got != want {
			t.Errorf("%d of %d nodes are gone: left out %q, held %v", dead, len(nodes), w.left(), w.verdict.Held)
		}
	}
}

// Half of the cluster is behind a partition, and one of its nodes is found silent a moment before the other: nothing is left out.
func TestPartitionOneByOne(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "own", "a", "b", "c", "d")
	w.dead["a"], w.dead["b"] = true, true
	w.late = map[netip.Addr]time.Duration{s.Ports[0].Endpoints.Few()[3].Addr.Addr(): 10 * tick}
	w.run(time.Minute, func(int) {
		for _, e := range s.Ports[0].Endpoints.Few() {
			w.connectTo(e.Addr, "client")
		}
		w.wantLeft()
	})
	w.wantHeld(ejection.OwnNetwork)
}

// A node dies with endpoints of 200 Services: few are asked, and all are left out, those of UDP ports too.
func TestManyEndpoints(t *testing.T) {
	w := newWorld(t)
	var names []service.Name
	for i := range 200 {
		s := w.service(fmt.Sprintf("ns-%d/web-%d", i%7, i), "a", "b", "c", "own", "b").Clone()
		names = append(names, s.Name)
		s.Ports = append(s.Ports, service.Port{Name: "dns", Protocol: service.UDP, Port: 53, Endpoints: s.Ports[0].Endpoints})
		w.builder.Set(s)
	}
	w.dead["a"] = true
	w.run(6*time.Second, func(int) {
		for range 5 {
			w.connect(names[w.rng.IntN(len(names))], "client")
		}
	})
	if n := len(w.verdict.Left); n != 400 {
		t.Fatalf("%d endpoints are left out, want 400; held %v", n, w.verdict.Held)
	}
	for second, n := range w.perSec {
		if n > 64 {
			t.Errorf("%d connects in second %d", n, second-start.Unix())
		}
	}
	w.dead["a"] = false
	w.run(12*time.Second, func(int) {})
	w.wantLeft()
}

// An endpoint that comes and goes every seven seconds is left out less and less often, and is not asked more than others.
func TestFlapping(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "a", "b", "c")
	changes, was := 0, 0
	w.run(5*time.Minute, func(i int) {
		w.dead["11.1.0.1"] = w.now.Sub(start)%(14*time.Second) < 7*time.Second
		w.connect("shop/web", "client")
		if n := len(w.verdict.Left); n != was {
			changes, was = changes+1, n
		}
	})
	if changes == 0 || changes > 30 {
		t.Errorf("%d changes in five minutes", changes)
	}
}

// A pod whose API object changes, or says that it is not ready, is not left out any more.
func TestChangedSlice(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c")
	w.dead["11.1.0.1"] = true
	w.run(10*time.Second, w.traffic("shop/web"))
	w.wantLeft("shop/web:web 11.1.0.1:8080")
	next := s.Clone()
	list := slices.Clone(next.Ports[0].Endpoints.Few())
	list[1].Ready = false
	next.Ports[0].Endpoints = service.MergeEndpoints(list)
	w.builder.Set(next)
	w.run(tick, func(int) {})
	w.wantLeft()
	if e := w.builder.Snapshot().Services.At("shop/web").Ports[0].Endpoints.Few()[1]; e.Ready || e.Silent {
		t.Errorf("the endpoint is %+v", e)
	}
}

// The last endpoint on the node stays where a policy is Local, and so does one of one.
func TestLastStays(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c").Clone()
	s.InternalPolicy = service.Local
	w.builder.Set(s)
	w.service("shop/one", "a")
	w.dead["11.1.0.0"], w.dead["11.2.0.0"] = true, true
	w.run(20*time.Second, func(i int) {
		w.connectTo(s.Ports[0].Endpoints.Few()[0].Addr, "client")
		w.connect("shop/one", "client")
	})
	w.wantHeld(ejection.MostSilent)
	if len(w.verdict.Held) != 2 {
		t.Errorf("held: %v", w.verdict.Held)
	}
}

// A tenant with hundreds of dead endpoints takes neither the memory nor the attention from others.
func TestCrowd(t *testing.T) {
	if testing.Short() {
		t.Skip("has a thousand endpoints")
	}
	w := newWorld(t)
	var nodes []string
	for i := range 1500 {
		nodes = append(nodes, fmt.Sprint("x", i))
	}
	w.service("evil/web", nodes...)
	w.service("shop/web", "own", "a", "b", "c")
	for i := range 700 {
		w.dead[nodes[i]] = true
	}
	w.dead["11.2.0.1"] = true
	w.run(30*time.Second, func(i int) {
		for range 10 {
			w.connect("evil/web", "client")
		}
		w.connect("shop/web", "client")
	})
	if !slices.Contains(w.left(), "shop/web:web 11.2.0.1:8080") {
		t.Errorf("the pod of the other namespace is not left out: %q", w.left())
	}
}

// Whatever dies and comes back, the bounds hold (world.bounds), and when everything answers again nothing is left out.
func TestRandom(t *testing.T) {
	seeds := uint64(8)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		w := newWorld(t)
		w.rng = rand.New(rand.NewPCG(seed, 7))
		nodes := []string{"own", "a", "b", "c", "d", "e"}
		var names []service.Name
		for i := range 6 {
			var on []string
			for range 1 + w.rng.IntN(8) {
				on = append(on, nodes[w.rng.IntN(len(nodes))])
			}
			names = append(names, w.service(fmt.Sprintf("ns-%d/s%d", i%2, i), on...).Name)
		}
		ever := false
		w.run(2*time.Minute, func(i int) {
			if w.rng.IntN(100) == 0 {
				w.dead[nodes[1+w.rng.IntN(len(nodes)-1)]] = w.rng.IntN(3) == 0
				w.dead[fmt.Sprintf("11.%d.0.%d", 1+w.rng.IntN(6), w.rng.IntN(8))] = w.rng.IntN(3) == 0
			}
			w.connect(names[w.rng.IntN(len(names))], "client")
			ever = ever || len(w.verdict.Left) > 0
		})
		if !ever {
			t.Errorf("seed %d: nothing was ever left out", seed)
		}
		clear(w.dead)
		w.run(13*time.Second, func(int) {})
		w.wantLeft()
		if !w.machine.Idle() {
			w.run(time.Minute, func(int) {})
			if !w.machine.Idle() {
				t.Errorf("seed %d: something is still suspected", seed)
			}
		}
	}
}
