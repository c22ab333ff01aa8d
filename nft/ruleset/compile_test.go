package ruleset_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// randomHistory is a cluster that changes at random.
type randomHistory struct {
	rng     *rand.Rand
	node    service.Node
	builder *snapshots.Builder
	changes []gen.Change
	// growth draws for itself, so that it changes nothing else of what is drawn.
	growth *rand.Rand
}

func newHistory(rng *rand.Rand) *randomHistory {
	node := gen.Node(rng)
	return &randomHistory{rng, node, snapshots.NewBuilder(node), gen.Changes(rng, 1000, gen.Everything()),
		rand.New(rand.NewPCG(0, 5))}
}

// next makes a few changes, or many, or none, and mostly has other endpoints grow. Now and then it also changes the
// node or the ranges of cluster IPs, and seldom the node's name.
func (h *randomHistory) next() service.Snapshot {
	if h.rng.IntN(30) == 0 {
		h.node.Name = fmt.Sprint("node-", h.rng.IntN(3))
		h.builder.SetNode(h.node)
		return h.builder.Snapshot()
	}
	n := h.rng.IntN(4)
	if h.rng.IntN(8) == 0 {
		n = 30
	}
	for range min(n, len(h.changes)) {
		h.changes[0].Apply(h.builder)
		h.changes = h.changes[1:]
	}
	if h.rng.IntN(10) == 0 {
		name := h.node.Name
		h.node = gen.Node(h.rng)
		h.node.Name = name
		h.builder.SetNode(h.node)
	}
	if h.rng.IntN(10) == 0 {
		h.builder.SetServiceCIDRs(gen.ServiceCIDRs(h.rng))
	}
	if h.growth.IntN(3) > 0 {
		h.builder.SetGrowing(gen.Growth(h.growth, h.builder.Snapshot()))
	}
	if h.growth.IntN(3) > 0 {
		h.builder.SetSlots(gen.Slots(h.growth, h.builder.Snapshot()))
	}
	return h.builder.Snapshot()
}

// TestMemoised: a compiler with a history makes the same program as a new compiler.
func TestMemoised(t *testing.T) {
	seeds(t, 25, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		h, c := newHistory(rng), ruleset.NewCompiler(cfg)
		var before service.Snapshot
		var last *nft.Program
		for step := range 50 {
			s := h.next()
			got := c.Compile(s)
			if diff := cmp.Diff(ruleset.Compile(cfg, s).String(), got.String()); diff != "" {
				t.Fatalf("step %d (-fresh +memoised):\n%s", step, diff)
			}
			if last != nil {
				wantShared(t, before, s, last, got)
			}
			before, last = s, got
		}
	})
}

// TestUnlistedClusterIPs: postrouting looks for cluster IPs only while there is one that
// is in no ServiceCIDR.
func TestUnlistedClusterIPs(t *testing.T) {
	b := snapshots.NewBuilder(service.Node{Name: "node-1"})
	c := ruleset.NewCompiler(ruleset.Config{Table: "t"})
	svc := func(name, ip string) *service.Service {
		return &service.Service{
			Name: service.Name(name), ClusterIPs: []netip.Addr{netip.MustParseAddr(ip)},
			Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80}},
		}
	}
	want := func(what string, unlisted bool) {
		t.Helper()
		postrouting := nft.AddRules{Chain: c.Compile(b.Snapshot()).IPv4.Chains.At("postrouting")}.Text()
		if got := strings.Contains(postrouting, "@cluster-ips"); got != unlisted {
			t.Errorf("%s: cluster IPs are looked for: %v, want %v:\n%s", what, got, unlisted, postrouting)
		}
	}
	want("no service", false)
	b.Set(svc("default/a", "10.96.0.1"))
	want("no ranges", true)
	b.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")})
	want("a range that has it", false)
	b.Set(svc("default/b", "10.97.0.1"))
	want("another service outside", true)
	b.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("10.97.0.0/16")})
	want("a range for it", false)
	b.SetServiceCIDRs([]netip.Prefix{netip.MustParsePrefix("10.97.0.0/16")})
	want("the other range gone", true)
	b.Delete("default/a")
	want("its service gone too", false)
}

// wantShared fails if an unchanged object is not the same object as before.
func wantShared(t *testing.T, a, b service.Snapshot, before, after *nft.Program) {
	t.Helper()
	for name, s := range b.Services.All() {
		restrictions := b.Restrictions.At(name)
		if a.Services.At(name) != s || a.Conflicts.At(name) != b.Conflicts.At(name) ||
			a.Restrictions.At(name) != restrictions || a.Node.Name != b.Node.Name || !slices.Equal(a.Node.PodCIDRs,
			b.Node.PodCIDRs) {
			continue
		}
		if (s.Sources != nil || restrictions != nil) && !slices.Equal(a.Node.Addresses, b.Node.Addresses) {
			continue // This change may admit the node.
		}
		for _, f := range nft.Families() {
			if before.Table(f).Parts.At(string(name)) != after.Table(f).Parts.At(string(name)) {
				t.Fatalf("the %s part of %s was built again", f, name)
			}
		}
	}
	if a == b && (before.IPv4.Parts != after.IPv4.Parts || before.IPv4.Chains != after.IPv4.Chains) {
		t.Fatal("tables were built again for the same snapshot")
	}
}

// TestOrderDoesNotMatter: the program does not depend on the order of services, or of the
// lists in a service.
func TestOrderDoesNotMatter(t *testing.T) {
	seeds(t, 60, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		node := gen.Node(rng)
		services := gen.Services(rng, &node)
		want := ruleset.Compile(cfg, build(node, services)).String()
		rng.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
		for i, s := range services {
			services[i] = turned(rng, s)
		}
		rng.Shuffle(len(node.HostAddresses), func(i, j int) {
			node.HostAddresses[i], node.HostAddresses[j] = node.HostAddresses[j], node.HostAddresses[i]
		})
		if diff := cmp.Diff(want, ruleset.Compile(cfg, build(node, services)).String()); diff != "" {
			t.Errorf("program of the same in another order (-first +second):\n%s", diff)
		}
	})
}

// turned is the same service with its lists in another order.
func turned(rng *rand.Rand, s *service.Service) *service.Service {
	next := *s
	next.Ports, next.ClusterIPs, next.ExternalIPs = slices.Clone(s.Ports), slices.Clone(s.ClusterIPs),
		slices.Clone(s.ExternalIPs)
	rng.Shuffle(len(next.Ports), func(i, j int) { next.Ports[i], next.Ports[j] = next.Ports[j], next.Ports[i] })
	slices.Reverse(next.ClusterIPs)
	slices.Reverse(next.ExternalIPs)
	for i := range next.Ports {
		p := &next.Ports[i]
		list := slices.Collect(p.Endpoints.All())
		slices.Reverse(list)
		p.Endpoints = service.MergeEndpoints(list)
	}
	return &next
}

// TestSequences: after each of many snapshots, compiler and plan leave the same tables as
// a fresh start. A restart writes nothing.
func TestSequences(t *testing.T) {
	seeds(t, 25, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		h, c := newHistory(rng), ruleset.NewCompiler(cfg)
		m, state, now := nft.NewModel(), nft.State{}, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for step := range 50 {
			s := h.next()
			batch, next := state.Plan(c.Compile(s), now)
			if err := strict.Apply(m, batch); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			state, now = next, now.Add(time.Duration(rng.IntN(4))*time.Second)
			fresh := ruleset.Compile(cfg, s)
			if diff := check.Diff(fresh, m); diff != "" {
				t.Fatalf("step %d (-want +got):\n%s", step, diff)
			}
			if again, _ := nft.Adopt(m, fresh).Plan(fresh, now); !again.Empty() {
				t.Fatalf("step %d: a restart writes\n%s", step, again)
			}
		}
	})
}

// TestOneEndpoint: to replace one endpoint, plan deletes one element and adds one for each
// address, whatever the size of the cluster and the service.
func TestOneEndpoint(t *testing.T) {
	cfg := ruleset.Config{Table: ruleset.DefaultTable}
	b := snapshots.NewBuilder(gen.PlainNode())
	for i := range 50 {
		b.Set(gen.UniformService(i, 10))
	}
	c := ruleset.NewCompiler(cfg)
	_, state := nft.State{}.Plan(c.Compile(b.Snapshot()), time.Time{})
	for i, want := range map[int]string{
		7: `
delete element ip nftproxy endpoints {
	172.30.0.7 . tcp . 80 . 4,
}
add element ip nftproxy endpoints {
	172.30.0.7 . tcp . 80 . 4 : 10.200.0.1 . 8080,
}
`,
		20: `
delete element ip nftproxy endpoints {
	172.30.0.20 . tcp . 80 . 4,
}
add element ip nftproxy endpoints {
	172.30.0.20 . tcp . 80 . 4 : 10.200.0.1 . 8080,
}
delete element ip nftproxy node-port-endpoints {
	tcp . 30002 . 4,
}
add element ip nftproxy node-port-endpoints {
	tcp . 30002 . 4 : 10.200.0.1 . 8080,
}
`,
	} {
		b.Set(withEndpoint(gen.UniformService(i, 10), 4, "10.200.0.1:8080"))
		var batch nft.Batch
		batch, state = state.Plan(c.Compile(b.Snapshot()), time.Time{})
		if diff := cmp.Diff(want, "\n"+batch.String()); diff != "" {
			t.Errorf("service %d (-want +got):\n%s", i, diff)
		}
	}
}

// withEndpoint replaces the i-th endpoint of the only port.
func withEndpoint(s *service.Service, i int, addr string) *service.Service {
	list := slices.Collect(s.Ports[0].Endpoints.All())
	list[i].Addr, list[i].Node = netip.MustParseAddrPort(addr), "node-9"
	s.Ports[0].Endpoints = service.MergeEndpoints(list)
	return s
}

// TestSizeOfRules: chains and rules do not grow with the number of services,
// only elements do.
func TestSizeOfRules(t *testing.T) {
	cluster := func(n int) nft.Counts {
		b := snapshots.NewBuilder(gen.PlainNode())
		for i := range n {
			b.Set(gen.UniformService(i, i%7))
		}
		return ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, b.Snapshot()).Counts()
	}
	small, large := cluster(100), cluster(10_000)
	if small.Chains != large.Chains || small.Rules != large.Rules {
		t.Errorf("100 services: %+v, 10,000 services: %+v: want as many chains and rules", small, large)
	}
	if large.Elements < 90*small.Elements {
		t.Errorf("%d elements for 100 services, %d for 10,000", small.Elements, large.Elements)
	}
}

// TestManyAtOnce: more services than are compiled at once, with chains that the first of them leave and the last ones
// come to, and the other way round, compile to the same as from scratch.
func TestManyAtOnce(t *testing.T) {
	const services = 20_000
	numbers := make([]int, services) // in the order of the names
	for i := range numbers {
		numbers[i] = i
	}
	slices.SortFunc(numbers, func(a, b int) int {
		return strings.Compare(string(gen.UniformService(a, 0).Name), string(gen.UniformService(b, 0).Name))
	})
	b, c := snapshots.NewBuilder(gen.PlainNode()), ruleset.NewCompiler(benchConfig())
	// Each step says how many endpoints the i-th service has.
	for step, endpoints := range []func(i int) int{
		func(i int) int { return 1 + 2*i/services },
		func(i int) int { return 2 - 2*i/services },
		func(i int) int { return i % 3 },
		func(int) int { return 5 },
	} {
		for i, number := range numbers {
			b.Set(gen.UniformService(number, endpoints(i)))
		}
		s := b.Snapshot()
		if got, want := c.Compile(s).String(), ruleset.Compile(benchConfig(), s).String(); got != want {
			t.Fatalf("step %d (-fresh +memoised):\n%s", step, cmp.Diff(want, got))
		}
	}
}
