package scenario_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/scenario"
)

// clustersVariable is an environment variable with another number of clusters
// than the usual for TestRandomClusters.
const clustersVariable = "NFTPROXY_CLUSTERS"

func clusters(t *testing.T) int {
	if text := os.Getenv(clustersVariable); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("%s: %v", clustersVariable, err)
		}
		return n
	}
	if testing.Short() {
		return 4
	}
	return 30
}

// TestRandomClusters loads the programs of random clusters into a kernel: the clusters
// that the oracle's test has. The kernel has to accept the programs, nft has to list
// them, and real packets must have the outcomes that the interpreter says. Then the
// endpoints of each cluster change, and clients of services with session affinity
// connect again: each keeps its endpoint if that is still there. At last all objects
// are replaced.
func TestRandomClusters(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	n := clusters(t)
	seen := &tally{counts: map[string]int{}}
	t.Run("clusters", func(t *testing.T) {
		for seed := range uint64(n) {
			t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
				t.Parallel()
				playRandomly(t, cmd, rand.New(rand.NewPCG(seed, 4)), seen)
			})
		}
	})
	t.Logf("flows: %v", seen.counts)
	least := map[string]int{"sticky": n, "stayed": n, "translated": n, "refused": n, "dropped": n, "untouched": n,
		"moved": n / 8}
	for what, least := range least {
		if seen.clusters == n && seen.counts[what] < least { // else some were skipped or cut short
			t.Errorf("only %d flows of %d clusters were of the kind %q: the cases are too narrow", seen.counts[what], n, what)
		}
	}
}

// tally counts flows by their kinds.
type tally struct {
	mu       sync.Mutex
	counts   map[string]int
	clusters int // played to the end
}

func (c *tally) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clusters++
}

func (c *tally) add(flows []scenario.Flow, last map[string]netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range flows {
		c.counts[string(f.Want.Fate)]++
		before, again := last[f.Path()]
		switch {
		case !f.Want.Sticky:
			continue
		case again && slices.ContainsFunc(f.Want.Targets, func(t scenario.Target) bool { return t.Endpoint == before }):
			c.counts["stayed"]++
		case again:
			c.counts["moved"]++
		}
		c.counts["sticky"]++
	}
}

// packets is how many random packets the test draws for each state of a cluster. It
// leaves out those that no real network would carry.
const packets = 40

func playRandomly(t *testing.T, cmd netfilter.NFT, rng *rand.Rand, seen *tally) {
	cfg, _ := gen.Config(rng)
	bridge, podInterface := "", "veth0"
	if i := cfg.PodInterface; i.Name != "" && !i.Prefix {
		bridge, podInterface = i.Name, i.Name
	}
	world := scenario.StageForTest(t, scenario.StageConfig{Bridge: bridge})
	loader := newLoader(t, world)
	compiler := ruleset.NewCompiler(cfg)
	follower := &follower{t: t}
	c := newRandomCluster(rng)
	// sticky has the flows of clients that the kernel may remember.
	sticky := map[string]scenario.Flow{}
	for n, change := range []func(){func() {}, c.swapEndpoints, c.replace} {
		change()
		snapshot := c.snapshot()
		program := compiler.Compile(snapshot)
		step := &scenario.Step{Addresses: slices.DeleteFunc(slices.Clone(c.node.HostAddresses), netip.Addr.IsLoopback)}
		var again []scenario.Flow
		if n == 1 { // to other services their memory says nothing
			for _, path := range slices.Sorted(maps.Keys(sticky)) {
				again = append(again, sticky[path])
			}
		}
		step.Flows = randomFlows(rng, snapshot, c.services, step, again)
		if err := world.Enter(step, snapshot); err != nil {
			t.Fatal(err)
		}
		loader.load(program, follower.now(n))
		if _, err := cmd.Ruleset(world.Node); err != nil {
			t.Error(err)
		}
		flows := slices.DeleteFunc(step.Flows, func(f scenario.Flow) bool {
			_, known := sticky[f.Path()]
			return known && n > 1 || !world.Passes(f)
		})
		last := map[string]netip.AddrPort{}
		for i := range flows {
			if err := decide(&flows[i], program.Model(), step, podInterface); err != nil {
				t.Fatal(err)
			}
			path := flows[i].Path()
			if flows[i].Want.Sticky {
				sticky[path] = flows[i]
			}
			if endpoint, known := world.Last(flows[i]); known {
				last[path] = endpoint
			}
		}
		seen.add(flows, last)
		problems := world.Check(t.Context(), flows)
		for _, err := range problems {
			t.Errorf("state %d: %v", n+1, err)
		}
		if len(problems) > 0 {
			t.Logf("%+v\n%s", cfg, snapshot)
		}
	}
	seen.end()
}

// randomCluster is a random cluster as a proxy sees it.
type randomCluster struct {
	rng      *rand.Rand
	node     service.Node
	cidrs    []netip.Prefix
	services []*service.Service
	// homes has the nodes of endpoints' addresses.
	homes map[netip.Addr]string
	// growth draws for itself, so that it changes nothing else of what is drawn.
	growth *rand.Rand
}

func newRandomCluster(rng *rand.Rand) *randomCluster {
	c := &randomCluster{rng: rng, growth: rand.New(rand.NewPCG(0, 6))}
	c.replace()
	return c
}

// replace draws all objects again.
func (c *randomCluster) replace() {
	c.homes = map[netip.Addr]string{}
	c.node = gen.Node(c.rng)
	c.services = c.settled(gen.Services(c.rng, &c.node))
	c.cidrs = gen.ServiceCIDRs(c.rng)
}

// swapEndpoints removes and adds some endpoints, and changes conditions of others.
func (c *randomCluster) swapEndpoints() {
	for i, s := range c.services {
		for range c.rng.IntN(5) {
			s = gen.Mutate(c.rng, s, gen.Options{})
		}
		c.services[i] = s
	}
	c.services = c.settled(c.services)
}

func (c *randomCluster) snapshot() service.Snapshot {
	b := snapshots.NewBuilder(c.node)
	b.SetServiceCIDRs(c.cidrs)
	for _, s := range c.services {
		b.Set(s)
	}
	b.SetGrowing(gen.Growth(c.growth, b.Snapshot()))
	return b.Snapshot()
}

// settled returns the services with two changes. All endpoints with one address are on
// one node, the first that any of them names: the generator draws a node for each. And
// the time-outs of session affinity are longer than the test.
func (c *randomCluster) settled(services []*service.Service) []*service.Service {
	var list []*service.Service
	for _, s := range services {
		next := *s
		if s.AffinityTimeout > 0 {
			next.AffinityTimeout = max(time.Hour, s.AffinityTimeout)
		}
		next.Ports = slices.Clone(s.Ports)
		for i := range next.Ports {
			p := &next.Ports[i]
			// None but the node itself has a loopback address.
			list := slices.DeleteFunc(slices.Collect(p.Endpoints.All()), func(e service.Endpoint) bool {
				return e.Addr.Addr().IsLoopback()
			})
			for j := range list {
				e := &list[j]
				if node, known := c.homes[e.Addr.Addr()]; known {
					e.Node = node
				}
				c.homes[e.Addr.Addr()] = e.Node
			}
			p.Endpoints = service.MergeEndpoints(list)
		}
		list = append(list, &next)
	}
	return list
}

// decide sets the outcome that the flow must have: the interpreter's.
func decide(f *scenario.Flow, m *nft.Model, step *scenario.Step, podInterface string) error {
	p, err := f.Packet(podInterface)
	if err != nil {
		return err
	}
	if f.Want, err = outcome(strict.Outcomes(m, p, localTo(step)), p, step.Addresses); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	first := m.Trace(p, nft.Host{Local: localTo(step), Random: func(uint32) uint32 { return 0 }})
	f.Want.Sticky = slices.ContainsFunc(first.Learned, func(l nft.Learned) bool { return l.Element.Data != "" })
	return nil
}

// randomFlows returns flows of random packets. Each address has one place, as in a real
// network. The first flows are those of again whose clients are still at their place.
func randomFlows(rng *rand.Rand, snapshot service.Snapshot, services []*service.Service, step *scenario.Step,
	again []scenario.Flow) []scenario.Flow {
	origins := randomOrigins(snapshot, services, step)
	var flows []scenario.Flow
	paths := map[string]bool{}
	for _, f := range again {
		if known, found := origins[f.Source.Addr()]; found && known != f.Origin {
			continue
		}
		origins[f.Source.Addr()], paths[f.Path()] = f.Origin, true
		flows = append(flows, f)
	}
	for range packets {
		p := gen.Packet(rng, snapshot.Node, services)
		f := scenario.Flow{Origin: scenario.Outside, Source: netip.AddrPortFrom(p.Src.Addr(), 0), Destination: p.Dst,
			Protocol: nft.ProtocolText(p.Protocol)}
		switch {
		case p.FromNode:
			f.Origin = scenario.Node
		case p.Input != "eth0":
			f.Origin = scenario.Pod
		}
		if p.Protocol == nft.EchoProtocol(ip.Of(p.Dst.Addr())) {
			f.Protocol = scenario.ICMP
			f.Destination = netip.AddrPortFrom(p.Dst.Addr(), 0)
		}
		known, found := origins[f.Source.Addr()]
		switch {
		case known == elsewhere || (known == scenario.Node) != p.FromNode:
			continue // a client sends with its own address only
		case found:
			f.Origin = known
		}
		if !carried(f) || paths[f.Path()] || f.Origin != scenario.Node && isClusterIP(snapshot, f.Source.Addr()) {
			continue
		}
		origins[f.Source.Addr()], paths[f.Path()] = f.Origin, true
		flows = append(flows, f)
	}
	return flows
}

// randomOrigins returns the places of the endpoints' and the node's addresses.
func randomOrigins(snapshot service.Snapshot, services []*service.Service,
	step *scenario.Step) map[netip.Addr]scenario.Origin {
	origins := map[netip.Addr]scenario.Origin{}
	for _, s := range services {
		for _, p := range s.Ports {
			for e := range p.Endpoints.All() {
				// Pods elsewhere have a proxy of their own.
				origins[e.Addr.Addr()] = elsewhere
				if e.Node == snapshot.Node.Name {
					origins[e.Addr.Addr()] = scenario.Pod
				}
			}
		}
	}
	for _, a := range step.Addresses {
		origins[a] = scenario.Node
	}
	return origins
}

// isClusterIP returns whether an address can be a cluster IP. Only flows from the node
// may have such a source: the proxy would take the answers to another client for
// connections to the service, and refuse or drop them.
func isClusterIP(snapshot service.Snapshot, a netip.Addr) bool {
	for _, cidr := range snapshot.ServiceCIDRs.All() {
		if cidr.Contains(a) {
			return true
		}
	}
	for _, s := range snapshot.Services.All() {
		if slices.Contains(s.ClusterIPs, a) {
			return true
		}
	}
	return false
}

// elsewhere is the origin of packets that do not pass this node.
const elsewhere scenario.Origin = "elsewhere"

// carried returns whether hosts and routers forward the packets of a flow. They do not
// forward packets from a loopback address, or to the IPv6 addresses beside it. A packet
// to a loopback address must stay on the node.
func carried(f scenario.Flow) bool {
	source, destination := f.Source.Addr(), f.Destination.Addr()
	beside := netip.MustParsePrefix("::/96").Contains(destination) && !destination.IsLoopback()
	return !source.IsLoopback() && source != destination && !beside && (!destination.IsLoopback() ||
		f.Origin == scenario.Node)
}
