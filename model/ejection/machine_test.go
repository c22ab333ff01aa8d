package ejection_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/ejection"
	"nftproxy/model/service"
)

// A node dies: all that is there is left out, UDP ports too, and comes back with it. While all is well nobody is asked.
func TestNodeDies(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b").Clone()
	s.Ports = append(s.Ports, service.Port{Name: "dns", Protocol: service.UDP, Port: 53, Endpoints: s.Ports[0].Endpoints})
	w.set(s)
	w.run(5*time.Second, w.traffic("shop/web"))
	if w.wantLeft(); w.asks > 0 {
		t.Errorf("%d connects while all is well", w.asks)
	}
	w.dead["a"] = true
	took := w.within(4*time.Second, "left out", w.traffic("shop/web"), func() bool { return len(w.left()) == 2 })
	w.wantLeft("shop/web:web 11.1.0.1:8080", "shop/web:dns 11.1.0.1:8080")
	t.Logf("left out after %v: %v", took, w.verdict.Left)
	w.dead["a"] = false
	w.within(10*time.Second, "back", w.traffic("shop/web"), func() bool { return len(w.left()) == 0 })
}

// A pod dies, and comes back.
func TestPodDies(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "a", "b", "a")
	w.gone[netip.MustParseAddr("11.1.0.1")] = true
	w.within(3*time.Second, "left out", w.traffic("shop/web"), func() bool { return len(w.left()) == 1 })
	w.run(time.Minute, w.traffic("shop/web"))
	w.wantLeft("shop/web:web 11.1.0.1:8080")
	w.gone[netip.MustParseAddr("11.1.0.1")] = false
	w.within(10*time.Second, "back", w.traffic("shop/web"), func() bool { return len(w.left()) == 0 })
	w.run(time.Minute, func(int) {})
	if !w.machine.Idle() {
		t.Error("something is still suspected")
	}
}

// With mode report the same is found, and nothing is left out; with off nothing is found.
func TestReport(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "a", "b")
	w.modes["shop/web"] = service.EjectReport
	w.dead["a"] = true
	w.run(30*time.Second, w.traffic("shop/web"))
	w.wantLeft("shop/web:web 11.1.0.1:8080")
	if n := w.builder.Snapshot().Adjustments.Len(); n != 0 {
		t.Errorf("%d Services do without an endpoint", n)
	}
	w.modes["shop/web"] = service.EjectOff
	w.edit("shop/web", func(_ int, e *service.Endpoint) { e.Weight = 7 })
	w.run(5*time.Second, w.traffic("shop/web"))
	w.wantLeft()
}

// Row 1: a Service has endpoints that take no connections. They answer the node, which the others may not: nothing is
// left out, since those that take connections would be missed.
func TestDrained(t *testing.T) {
	for name, drain := range map[string]func(*service.Endpoint){
		"weight 0":    func(e *service.Endpoint) { e.Weight = service.NewWeight(0) },
		"terminating": func(e *service.Endpoint) { e.Ready, e.Terminating = false, true },
		"other zone":  func(e *service.Endpoint) { e.Zones = "z2" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.service("shop/web", "a", "b", "c", "d")
			w.edit("shop/web", func(i int, e *service.Endpoint) {
				if e.Zones = "z1"; i < 2 {
					drain(e)
				}
			})
			green := func(a netip.AddrPort) bool { return a.Addr().As4()[0] == 11 && a.Addr().As4()[3] >= 2 }
			w.forbidden = func(to netip.AddrPort, client string) bool {
				return green(to) && (client == "node" || client == "denied")
			}
			w.run(time.Minute, func(i int) {
				w.connect("shop/web", "denied")
				w.connect("shop/web", "admitted")
				w.wantLeft()
			})
			w.wantHeld(ejection.NoControl)
		})
	}
}

// Row 2: pods of one Service on a node are silent, others of it answer elsewhere. A pod of another Service on that node
// answers this node, and is never left out.
func TestNeighbourOnNode(t *testing.T) {
	w := newWorld(t)
	nodes := []string{"a", "a", "a"}
	for i := range 60 {
		nodes = append(nodes, string(rune('b'+i%4)))
	}
	s := w.service("shop/a", nodes...)
	b := w.service("shop/b", "a", "b", "c")
	for i := range 3 {
		w.lose(s, i, true)
	}
	w.run(2*time.Minute, func(int) {
		for range 10 {
			w.connect("shop/a", "client")
		}
		w.connect("shop/b", "client")
		if w.out("shop/b", endpoint(b, 0)) {
			t.Fatal("a healthy pod is left out")
		}
	})
	w.wantLeft("shop/a:web 11.1.0.0:8080", "shop/a:web 11.1.0.1:8080", "shop/a:web 11.1.0.2:8080")
}

// Row 3: whatever a tenant's crowd of silent endpoints does, the dead pod of another one is left out in 5 s.
func TestCrowd(t *testing.T) {
	for _, c := range []struct{ endpoints, namespaces int }{{100, 1}, {1500, 1}, {2000, 5}} {
		t.Run(fmt.Sprint(c.endpoints), func(t *testing.T) {
			w := newWorld(t)
			for n := range c.namespaces {
				var nodes []string
				for i := range c.endpoints / c.namespaces {
					nodes = append(nodes, string(rune('a'+i%5)))
				}
				s := w.service(fmt.Sprintf("evil-%d/web", n), nodes...)
				i := 0
				for e := range s.Ports[0].Endpoints.All() {
					i++
					w.gone[e.Addr.Addr()] = i%10 != 0
				}
			}
			shop := w.service("shop/web", "own", "a", "b", "c")
			attack := func(i int) {
				for n := range c.namespaces {
					for range 20 {
						w.connect(service.Name(fmt.Sprintf("evil-%d/web", n)), "client")
					}
				}
				w.connect("shop/web", "client")
			}
			w.run(20*time.Second, attack)
			w.lose(shop, 2, true)
			took := w.within(5*time.Second, "left out", attack, func() bool { return w.out("shop/web", endpoint(shop, 2)) })
			t.Logf("left out after %v; %d of others are, %d connects a second", took, len(w.left())-1, w.asks/20)
		})
	}
}

// Row 4: tenants invent nodes, and place silent endpoints there. That is nobody's network, and others are served as
// before.
func TestInventedNodes(t *testing.T) {
	w := newWorld(t)
	var nodes []string
	for i := range 40 {
		nodes = append(nodes, fmt.Sprint("invented-", i))
	}
	for _, name := range []string{"evil/web", "fiend/web"} {
		s := w.service(name, nodes...)
		for i := range nodes {
			w.lose(s, i, i%10 != 0)
		}
	}
	shop := w.service("shop/web", "own", "a", "b", "c")
	traffic := w.traffic("evil/web", "fiend/web", "shop/web")
	w.run(20*time.Second, traffic)
	w.lose(shop, 1, true)
	w.within(5*time.Second, "the pod is left out", traffic, func() bool { return w.out("shop/web", endpoint(shop, 1)) })
	w.dead["b"] = true
	w.within(5*time.Second, "the node is left out", traffic, func() bool { return w.out("shop/web", endpoint(shop, 2)) })
}

// Row 4, with names that are Nodes: a tenant places silent endpoints on nodes that live, and its own living ones on a
// dead one.
func TestWrongNodes(t *testing.T) {
	w := newWorld(t)
	evil := w.service("evil/web", "a", "a", "a", "b", "b", "b", "c", "c")
	shop := w.service("shop/web", "a", "b", "c").Clone()
	shop.Ports = append(shop.Ports, service.Port{Name: "dns", Protocol: service.UDP, Port: 53,
		Endpoints: shop.Ports[0].Endpoints})
	w.set(shop)
	for i := range 6 {
		w.lose(evil, i, true)
	}
	w.run(time.Minute, func(int) {
		w.connect("evil/web", "client")
		for i := range 3 {
			if w.out("shop/web", endpoint(shop, i)) {
				t.Fatalf("left out: %q", w.left())
			}
		}
	})
	w.dead["d"] = true
	w.edit("evil/web", func(_ int, e *service.Endpoint) { e.Node = "d" })
	w.within(5*time.Second, "the other's are left out with the node", w.traffic("evil/web", "shop/web"), func() bool {
		return len(w.left()) > 0
	})
	w.run(10*time.Second, func(int) {})
	for i := 6; i < 8; i++ {
		if w.out("evil/web", endpoint(evil, i)) {
			t.Errorf("it answers, and is left out: %v", endpoint(evil, i))
		}
	}
}

// Row 5: a namespace that comes first by name lists another's dead pod and has 300 dead ones.
func TestListedByOthers(t *testing.T) {
	w := newWorld(t)
	var nodes []string
	for i := range 330 {
		nodes = append(nodes, string(rune('a'+i%5)))
	}
	evil := w.service("alpha/web", nodes...)
	shop := w.service("shop/web", "own", "a", "b", "c")
	list := evil.Ports[0].Endpoints
	all := []service.Endpoint{{Addr: endpoint(shop, 1), Node: "invented", Ready: true, Zones: "z9"}}
	for e := range list.All() {
		all = append(all, e)
	}
	evil = evil.Clone()
	evil.Ports[0].Endpoints = service.MergeEndpoints(all)
	w.set(evil)
	for i := range 300 {
		w.gone[netip.AddrFrom4([4]byte{11, 1, byte(i >> 8), byte(i)})] = true
	}
	attack := func(int) {
		for range 20 {
			w.connect("alpha/web", "client")
		}
		w.connect("shop/web", "client")
	}
	w.run(20*time.Second, attack)
	w.lose(shop, 1, true)
	w.within(5*time.Second, "left out", attack, func() bool { return w.out("shop/web", endpoint(shop, 1)) })
	// And who lists it no more does not matter.
	w.builder.Delete("alpha/web")
	w.run(10*time.Second, w.traffic("shop/web"))
	w.wantLeft("shop/web:web 11.2.0.1:8080")
	w.lose(shop, 1, false)
	w.within(10*time.Second, "back", w.traffic("shop/web"), func() bool { return len(w.left()) == 0 })
}

// Row 6: while one endpoint among many Services is silent, steps decide on its Service only.
func TestStepVisits(t *testing.T) {
	w := newWorld(t)
	for i := range 300 {
		w.service(fmt.Sprintf("ns-%d/s%d", i%10, i), "own", "a", "b", "c")
	}
	s := w.builder.Snapshot().Services.At("ns-7/s7")
	w.lose(s, 1, true)
	w.within(4*time.Second, "left out", w.traffic("ns-7/s7", "ns-8/s8"), func() bool { return len(w.left()) == 1 })
	w.decided = map[service.Name]bool{}
	w.run(time.Minute, w.traffic("ns-7/s7", "ns-8/s8"))
	w.wantLeft("ns-7/s7:web " + endpoint(s, 1).String())
	if delete(w.decided, "ns-7/s7"); len(w.decided) > 0 {
		t.Errorf("decided on %v, too", w.decided)
	}
}

// Row 7: five of thirty endpoints are on the node that dies, whatever is asked for comparison meanwhile.
func TestManyOfOnePort(t *testing.T) {
	for seed := range 50 {
		w := newWorld(t)
		for range seed {
			w.rng.Float64()
		}
		var nodes []string
		for i := range 30 {
			nodes = append(nodes, []string{"own", "a", "b", "c", "d", "e"}[i%6])
		}
		w.service("shop/many", nodes...)
		w.service("shop/web", "own", "a", "b")
		w.dead["a"] = true
		w.within(3*time.Second, "all are left out", func(int) {
			for range 5 {
				w.connect("shop/many", "client")
				w.connect("shop/web", "client")
			}
		}, func() bool { return len(w.left()) == 6 })
	}
}

// A tenant opens half connections to another's pods with senders that do not exist: the pods answer the node, so none
// is left out. One of them dies meanwhile.
func TestForgedHalfConnections(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c")
	attack := func(int) {
		for i := range 4 {
			w.ids++
			w.flows = append(w.flows, flow{ejection.Flow{ID: w.ids, To: endpoint(s, i)}, w.now, "forged"})
		}
		w.flows = w.flows[max(0, len(w.flows)-1000):]
	}
	w.run(5*time.Minute, func(i int) { attack(i); w.wantLeft() })
	if perSecond := w.asks / 300; perSecond > 4 {
		t.Errorf("asked %d times a second", perSecond)
	}
	w.lose(s, 1, true)
	w.within(5*time.Second, "left out", attack, func() bool { return w.out("shop/web", endpoint(s, 1)) })
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
			w.service("default/kubernetes", "b", "c", "d")
			w.forbidden = func(to netip.AddrPort, client string) bool { return to.Addr().As4()[1] == 1 && forbidden(to, client) }
			w.run(time.Minute, func(i int) { w.traffic("shop/web")(i); w.wantLeft() })
		})
	}
}

// This node's own network goes, and comes back.
func TestOwnNetwork(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "own", "own", "a", "b", "c")
	w.service("shop/two", "own", "own", "d")
	w.uplink = true
	w.run(time.Minute, func(i int) { w.traffic("shop/web", "shop/two")(i); w.wantLeft() })
	w.wantHeld(ejection.OwnNetwork)
	w.uplink = false
	w.run(time.Minute, func(i int) { w.traffic("shop/web", "shop/two")(i); w.wantLeft() })
}

// Half of the cluster is behind a partition, at one moment: nothing is left out, also where the API server takes its
// time to say where the nodes are. With one node of it, that is.
func TestPartition(t *testing.T) {
	for slow := time.Duration(0); slow <= 2*time.Second; slow += 100 * time.Millisecond {
		t.Run(slow.String(), func(t *testing.T) {
			w := newWorld(t)
			w.slow = slow
			delete(w.nodes, "e")
			w.service("shop/web", "own", "a", "b", "c", "d")
			w.builder.SetNode(service.Node{Name: "own", APIServers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
			w.dead["a"], w.dead["b"] = true, true
			w.run(time.Minute, func(i int) { w.traffic("shop/web")(i); w.wantLeft() })
			w.wantHeld(ejection.OwnNetwork)
			w.dead["b"] = false
			w.within(15*time.Second, "left out", w.traffic("shop/web"), func() bool { return len(w.left()) == 1 })
			w.wantLeft("shop/web:web 11.1.0.1:8080")
		})
	}
}

// A partition ends, and one of the nodes behind it dies a moment later. What had failed before says nothing, whoever
// answers first: nothing is left out until that node is dead, and nothing elsewhere.
func TestPartitionEnds(t *testing.T) {
	for moment := range 200 {
		w := newWorld(t)
		w.rng = rand.New(rand.NewPCG(uint64(moment), 3))
		delete(w.nodes, "e")
		for _, name := range []string{"shop/web", "shop/two"} {
			s := w.service(name, "own", "a", "b", "c", "d")
			for i, node := range []string{"own", "a", "b", "c", "d"} { // A pod that answers shows that its Node is back.
				facts := w.nodes[node]
				facts.PodCIDRs = append(facts.PodCIDRs, netip.PrefixFrom(endpoint(s, i).Addr(), 32))
				w.nodes[node] = facts
			}
		}
		w.builder.SetNode(service.Node{Name: "own", APIServers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
		w.dead["a"], w.dead["b"] = true, true
		traffic := w.traffic("shop/web", "shop/two")
		w.run(20*time.Second+time.Duration(moment%41)*tick, traffic)
		w.wantHeld(ejection.OwnNetwork)
		w.dead["a"], w.dead["b"] = false, false
		w.run(time.Duration(moment)*tick/4, func(i int) { traffic(i); w.wantLeft() })
		w.dead["a"] = true
		w.within(15*time.Second, "left out", traffic, func() bool { return len(w.left()) > 0 })
		w.run(5*time.Second, func(i int) {
			traffic(i)
			if s := w.left(); slices.ContainsFunc(s, func(s string) bool { return !strings.Contains(s, ".0.1:") }) {
				t.Fatalf("moment %d: left out: %q", moment, s)
			}
		})
		w.wantLeft("shop/two:web 11.2.0.1:8080", "shop/web:web 11.1.0.1:8080")
	}
}

// Several nodes die at one moment, and the API server or the nodes take their time to answer. While few of those that
// live have answered, it looks like this node's own network. That does not put off what is found out.
func TestNodesDie(t *testing.T) {
	for name, c := range map[string]struct{ slow, lag time.Duration }{
		"slow server": {1400 * time.Millisecond, 0}, "slow nodes": {0, 300 * time.Millisecond},
		"both": {500 * time.Millisecond, 600 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			for moment := range 40 {
				w := newWorld(t)
				w.rng = rand.New(rand.NewPCG(uint64(moment), 3))
				w.slow, w.lag = c.slow, c.lag
				names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i"}
				for i := 5; i < len(names); i++ {
					w.node(names[i], i+1)
				}
				w.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				for i := range 3 {
					w.service(fmt.Sprintf("shop/%d", i), append([]string{"own"}, names...)...)
				}
				traffic := w.traffic("shop/0", "shop/1", "shop/2")
				w.run(time.Duration(moment)*tick, traffic)
				for i := range 4 {
					w.dead[names[i]] = true
				}
				w.within(5*time.Second, "left out", traffic, func() bool { return len(w.left()) == 3*4 })
			}
		})
	}
}

// The API server is away, or a firewall between nodes drops what would ask them: endpoints are judged by themselves,
// and it is said why nodes are not.
func TestNodesNotJudged(t *testing.T) {
	for name, set := range map[string]func(*world){
		"API server": func(w *world) { w.noServer = true }, "firewall": func(w *world) { w.firewall = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			set(w)
			s := w.service("shop/web", "own", "a", "b").Clone()
			s.Ports = append(s.Ports, service.Port{Name: "dns", Protocol: service.UDP, Port: 53,
				Endpoints: s.Ports[0].Endpoints})
			w.set(s)
			w.gone[netip.MustParseAddr("11.1.0.1")] = true
			w.within(3*time.Second, "left out", w.traffic("shop/web"), func() bool { return len(w.left()) > 0 })
			w.run(10*time.Second, w.traffic("shop/web"))
			w.wantLeft("shop/web:web 11.1.0.1:8080")
			if len(w.verdict.Unjudged) != 1 || w.verdict.Unjudged[0].Node != "a" {
				t.Errorf("not judged: %v", w.verdict.Unjudged)
			}
		})
	}
}

// A firewall drops what would ask one living node where a pod is dead. Its other pods come back by their own answers,
// or all at once if the API server knows that they are there.
func TestFirewallOfOneNode(t *testing.T) {
	for i, others := range [][]string{{"b", "c", "d"}, {"b", "c", "d"}, nil, nil} {
		known := i%2 == 0
		t.Run(fmt.Sprint(known, others), func(t *testing.T) {
			w := newWorld(t)
			s := w.service("shop/web", append([]string{"own", "a", "a"}, others...)...)
			if facts := w.nodes["a"]; known {
				facts.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("11.1.0.0/16")}
				w.nodes["a"] = facts
			}
			for _, a := range w.nodes["a"].Addrs {
				w.gone[a.Addr()] = true
			}
			w.lose(s, 1, true)
			wasOut := 0
			w.run(30*time.Second, func(i int) {
				w.traffic("shop/web")(i)
				if w.out("shop/web", endpoint(s, 2)) {
					wasOut++
				}
			})
			w.wantLeft("shop/web:web 11.1.0.1:8080")
			if most := int(8 * time.Second / tick); wasOut > most {
				t.Errorf("it answers, and was left out in %d ticks, want %d at most", wasOut, most)
			}
		})
	}
}

// A port keeps half of its endpoints, also of those on the node where a policy is Local, and the last one. Those on a
// dead Node may be more than half.
func TestHalfStays(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "b", "b", "c").Clone()
	s.InternalPolicy = service.Local
	w.set(s)
	w.service("shop/one", "a")
	four := w.service("shop/four", "b", "b", "b", "c")
	w.service("shop/lost", "a", "a", "a", "b")
	both := w.service("shop/both", "a", "b", "a", "b", "b", "b")
	for i := range 3 {
		w.lose(four, i, true)
	}
	w.lose(both, 1, true)
	w.lose(s, 0, true)
	w.dead["a"] = true
	names := []service.Name{"shop/web", "shop/one", "shop/four", "shop/lost", "shop/both"}
	w.run(20*time.Second, w.traffic(names...))
	out := map[service.Name]int{}
	for _, l := range w.verdict.Left {
		out[l.Service]++
	}
	if want := (map[service.Name]int{"shop/four": 2, "shop/lost": 3, "shop/both": 3}); !maps.Equal(out, want) {
		t.Errorf("left out %v, want %v", out, want)
	}
	held := map[service.Name]ejection.Reason{}
	for _, h := range w.verdict.Held {
		held[h.Service] = h.Why
	}
	want := map[service.Name]ejection.Reason{
		"shop/web": ejection.Half, "shop/one": ejection.Half, "shop/four": ejection.Half,
	}
	if !maps.Equal(held, want) {
		t.Errorf("held %v, want %v", held, want)
	}
	before := w.left()
	w.run(time.Minute, func(i int) { w.traffic(names...)(i); w.wantLeft(before...) })
}

// One of two nodes dies, with most of a port's endpoints. Half of them stay, and those of UDP: there is no other Node
// to show that nodes answer each other at all. With a third one, only the last endpoint stays.
func TestOneOfTwo(t *testing.T) {
	third := func(w *world) { w.service("other/web", "own", "b") }
	for _, c := range []struct {
		name string
		set  func(*world)
		want int
	}{
		{"two", func(*world) {}, 1},
		{"server lost", func(w *world) { w.noServer = true }, 0},
		{"server here", func(w *world) {
			w.builder.SetNode(service.Node{Name: "own", APIServers: []netip.Addr{netip.MustParseAddr("127.0.0.1")}})
		}, 0},
		{"a third one", third, 4},
		{"a third one, slow server", func(w *world) { w.slow = 500 * time.Millisecond; third(w) }, 4},
		{"a third one, and a firewall", func(w *world) { w.firewall = true; third(w) }, 1},
		{"a third one, and invented ones", func(w *world) {
			var nodes []string
			for i := range 400 {
				nodes = append(nodes, fmt.Sprint("invented-", i))
			}
			w.service("evil/web", nodes...)
			third(w)
		}, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			s := w.service("shop/web", "own", "a", "a").Clone()
			s.Ports = append(s.Ports, service.Port{Name: "dns", Protocol: service.UDP, Port: 53,
				Endpoints: s.Ports[0].Endpoints})
			w.set(s)
			c.set(w)
			w.run(5*time.Second, w.traffic("shop/web"))
			w.wantLeft()
			w.dead["a"] = true
			w.run(4*time.Second, w.traffic("shop/web"))
			for range 20 {
				if w.run(time.Second, w.traffic("shop/web")); len(w.left()) != c.want {
					t.Fatalf("left out %q, want %d; held: %v, not judged: %v", w.left(), c.want, w.verdict.Held,
						w.verdict.Unjudged)
				}
			}
			w.dead["a"] = false
			w.within(10*time.Second, "back", w.traffic("shop/web"), func() bool { return len(w.left()) == 0 })
		})
	}
}

// One namespace loses a node with many of its endpoints. The Node is asked before all of them are.
func TestBigNamespace(t *testing.T) {
	w := newWorld(t)
	var names []service.Name
	for i := range 240 {
		names = append(names, w.service(fmt.Sprintf("shop/s%d", i), "own", "a", "b", "c").Name)
	}
	w.dead["a"] = true
	w.within(7*time.Second, "left out", w.traffic(names...), func() bool { return len(w.left()) == len(names) })
}

// A firewall drops what asks a living node. A tenant says by turns that a dead endpoint is there and here: other
// tenants' endpoints there, which answer, are not left out for long or often.
func TestTurnsOfNodeName(t *testing.T) {
	for _, nodes := range [][]string{{"a"}, {"a", "b", "c", "d", "e"}} {
		for _, period := range []int{20, 30, 60} {
			t.Run(fmt.Sprint(len(nodes), period), func(t *testing.T) {
				w := newWorld(t)
				maps.DeleteFunc(w.nodes, func(name string, _ ejection.Facts) bool {
					return name != "own" && !slices.Contains(nodes, name)
				})
				facts := w.nodes["a"]
				for _, a := range facts.Addrs {
					w.gone[a.Addr()] = true
				}
				facts.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("11.2.0.0/16")}
				w.nodes["a"] = facts
				evil := w.service("evil/web", "own", "own")
				w.service("shop/web", "a", "a", "a", nodes[len(nodes)-1])
				w.lose(evil, 0, true)
				traffic, out := w.traffic("evil/web", "shop/web"), 0
				w.run(2*time.Minute, func(i int) {
					traffic(i)
					if i%period == 0 {
						w.edit("evil/web", func(n int, e *service.Endpoint) {
							if n == 0 {
								e.Node = []string{"own", "a"}[i/period%2]
							}
						})
					}
					for _, l := range w.verdict.Left {
						if l.Service == "shop/web" {
							out++
						}
					}
				})
				if took := time.Duration(out) * tick; took > 2*time.Second {
					t.Errorf("endpoints that answer were left out for %v of 2 minutes together", took)
				}
			})
		}
	}
}

// A pod whose slice says that it is not ready, or does not have it any more, is not left out any more.
func TestChangedSlice(t *testing.T) {
	w := newWorld(t)
	w.service("shop/web", "own", "a", "b", "c")
	w.gone[netip.MustParseAddr("11.1.0.1")] = true
	w.run(10*time.Second, w.traffic("shop/web"))
	w.wantLeft("shop/web:web 11.1.0.1:8080")
	w.edit("shop/web", func(i int, e *service.Endpoint) { e.Ready = i != 1 })
	w.run(tick, func(int) {})
	w.wantLeft()
	if e := w.builder.Snapshot().Services.At("shop/web").Ports[0].Endpoints.Few()[1]; e.Ready ||
		e.Share == service.NoShare {
		t.Errorf("the endpoint is %+v", e)
	}
}

// A look finds connections to an endpoint before the snapshot has it. It is left out as soon as others. To an address
// that no Service has, nothing is asked.
func TestLookBeforeSnapshot(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c").Clone()
	w.run(1900*time.Millisecond, func(int) {})
	stray := netip.MustParseAddrPort("203.0.113.4:8080")
	w.run(5*time.Second, func(int) { w.connectTo(stray, "client") })
	if w.asks > 0 {
		t.Errorf("%d connects to an address of no Service", w.asks)
	}
	w.flows = nil
	w.run(2*time.Second-w.now.Sub(w.looked), func(int) {})
	s.Ports[0].Endpoints = service.MergeEndpoints(append(slices.Collect(s.Ports[0].Endpoints.All()),
		service.Endpoint{Addr: stray, Node: "a", Ready: true, Serving: true}))
	for w.now.Sub(w.looked) < time.Second-tick {
		w.run(tick, func(int) {})
	}
	w.within(3*time.Second, "left out", func(i int) {
		if w.set(s); i == 0 {
			w.connectTo(stray, "client")
		}
		w.traffic("shop/web")(i)
	}, func() bool { return len(w.left()) == 1 })
}

// An answer that comes late says nothing about what was asked since.
func TestLateAnswer(t *testing.T) {
	w := newWorld(t)
	s := w.service("shop/web", "own", "a", "b", "c")
	w.gone[netip.MustParseAddr("11.1.0.1")] = true
	w.run(1100*time.Millisecond, w.traffic("shop/web"))
	old := w.pending
	w.pending = nil
	w.edit("shop/web", func(i int, e *service.Endpoint) { e.Ready = i != 1 })
	w.run(tick, func(int) {})
	w.edit("shop/web", func(i int, e *service.Endpoint) { e.Ready = true })
	w.gone[netip.MustParseAddr("11.1.0.1")] = false
	for range 20 {
		w.ids++
		w.flows = append(w.flows, flow{ejection.Flow{ID: w.ids, To: endpoint(s, 1)}, w.now, "forged"})
	}
	w.run(1500*time.Millisecond, func(int) {})
	for _, p := range old {
		w.machine.Answered(w.now, p.Ask, ejection.Unanswered, p.facts)
	}
	w.run(time.Second, func(int) { w.wantLeft() })
}
