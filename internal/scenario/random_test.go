package scenario_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"

	"nftproxy/internal/nftcmd"
	"nftproxy/internal/scenario"
	"nftproxy/internal/scenario/stage"
	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/nft/ruleset/rulesettest"
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

// TestRandomClusters loads the programs of random clusters, the same that the
// oracle judges, into a kernel: it has to accept them, nft has to list them, and
// real packets have to fare as the interpreter says. Then each cluster changes.
func TestRandomClusters(t *testing.T) {
	cmd := nftcmd.ForTest(t)
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
	for _, what := range []string{"sticky", "translated", "refused", "dropped", "untouched"} {
		if seen.clusters == n && seen.counts[what] < n { // else some were skipped or cut short
			t.Errorf("only %d flows of %d clusters were %s: the cases are too narrow", seen.counts[what], n, what)
		}
	}
}

// tally counts flows by what they want.
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

func (c *tally) add(flows []scenario.Flow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range flows {
		c.counts[string(f.Want.Fate)]++
		if f.Want.Sticky {
			c.counts["sticky"]++
		}
	}
}

// packets is how many random packets are drawn for each state of a cluster;
// some of them no real network would carry.
const packets = 40

func playRandomly(t *testing.T, cmd nftcmd.Command, rng *rand.Rand, seen *tally) {
	cfg, _ := rulesettest.Config(rng)
	bridge, podInterface := "", "veth0"
	if i := cfg.PodInterface; i.Name != "" && !i.Prefix {
		bridge, podInterface = i.Name, i.Name
	}
	world := stage.NewForTest(t, stage.Config{Bridge: bridge})
	loader := newLoader(t, world)
	compiler := ruleset.NewCompiler(cfg)
	follower := &follower{t: t}
	before := map[string]bool{}
	for n := range 2 {
		node := rulesettest.Node(rng)
		services := settled(rulesettest.Services(rng, &node))
		builder := service.NewBuilder(node)
		builder.SetServiceCIDRs(rulesettest.ServiceCIDRs(rng))
		for _, s := range services {
			builder.Set(s)
		}
		snapshot := builder.Snapshot()
		program := compiler.Compile(snapshot)
		step := &scenario.Step{Addresses: slices.DeleteFunc(slices.Clone(node.HostAddresses), netip.Addr.IsLoopback)}
		step.Flows = randomFlows(rng, snapshot, services, step)
		if err := world.Enter(step, snapshot); err != nil {
			t.Fatal(err)
		}
		loader.load(program, follower.now(n))
		if _, err := cmd.Ruleset(world.Node); err != nil {
			t.Error(err)
		}
		flows := slices.DeleteFunc(step.Flows, func(f scenario.Flow) bool { return before[f.Path()] || !world.Passes(f) })
		for i := range flows {
			if err := decide(&flows[i], program.Model(), step, podInterface); err != nil {
				t.Fatal(err)
			}
			// What a client has learned in this state may bind it in the next.
			before[flows[i].Path()] = flows[i].Want.Sticky
		}
		seen.add(flows)
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

// decide has the interpreter say what the flow is to want.
func decide(f *scenario.Flow, m *nft.Model, step *scenario.Step, podInterface string) error {
	p, err := f.Packet(podInterface)
	if err != nil {
		return err
	}
	if f.Want, err = outcome(m.Outcomes(p, localTo(step)), p); err != nil {
		return fmt.Errorf("%s: %w", p, err)
	}
	first := m.Trace(p, nft.Host{Local: localTo(step), Random: func(uint32) uint32 { return 0 }})
	f.Want.Sticky = len(first.Learned) > 0
	return nil
}

// randomFlows are random packets as a network can carry them: each address has
// one home.
func randomFlows(rng *rand.Rand, snapshot service.Snapshot, services []*service.Service, step *scenario.Step) []scenario.Flow {
	origins := map[netip.Addr]scenario.Origin{}
	for _, s := range services {
		for _, p := range s.Ports {
			for _, e := range p.Endpoints {
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
	var flows []scenario.Flow
	paths := map[string]bool{}
	for range packets {
		p := rulesettest.Packet(rng, snapshot.Node, services)
		f := scenario.Flow{Origin: scenario.Outside, Source: netip.AddrPortFrom(p.Src.Addr(), 0), Destination: p.Dst, Protocol: nft.ProtocolText(p.Protocol)}
		switch {
		case p.FromNode:
			f.Origin = scenario.Node
		case p.Input != "eth0":
			f.Origin = scenario.Pod
		}
		if f.Protocol == scenario.ICMP {
			f.Destination = netip.AddrPortFrom(p.Dst.Addr(), 0)
		}
		known, found := origins[f.Source.Addr()]
		switch {
		case known == elsewhere || (known == scenario.Node) != p.FromNode:
			continue // nobody sends with another's address
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

// isClusterIP says whether an address can be a service's. Nobody but the node
// may have one: what the proxy answers such a client it would take for a
// connection to the service, and refuse or drop it.
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

// elsewhere is the origin of what does not come by this node.
const elsewhere scenario.Origin = "elsewhere"

// settled are the services with each endpoint's address on one node, the first
// that any of them says: the generator lets each choose.
func settled(services []*service.Service) []*service.Service {
	nodes := map[netip.Addr]string{}
	var list []*service.Service
	for _, s := range services {
		next := *s
		next.Ports = slices.Clone(s.Ports)
		for i := range next.Ports {
			p := &next.Ports[i]
			// None but the node itself has a loopback address.
			p.Endpoints = slices.DeleteFunc(slices.Clone(p.Endpoints), func(e service.Endpoint) bool { return e.Addr.Addr().IsLoopback() })
			for j := range p.Endpoints {
				e := &p.Endpoints[j]
				if node, known := nodes[e.Addr.Addr()]; known {
					e.Node = node
				}
				nodes[e.Addr.Addr()] = e.Node
			}
		}
		list = append(list, &next)
	}
	return list
}

// carried says whether hosts and routers let such packets pass: none from or,
// unless it stays on the node, to a loopback address, and none to the IPv6
// addresses beside it.
func carried(f scenario.Flow) bool {
	source, destination := f.Source.Addr(), f.Destination.Addr()
	beside := netip.MustParsePrefix("::/96").Contains(destination) && !destination.IsLoopback()
	return !source.IsLoopback() && source != destination && !beside && (!destination.IsLoopback() || f.Origin == scenario.Node)
}
