package ruleset_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// trial is a random cluster, its program in a model of the kernel, and the oracle.
type trial struct {
	*oracle
	rng      *rand.Rand
	builder  *snapshots.Builder
	compiler *ruleset.Compiler
	program  *nft.Program
	state    nft.State
	kernel   *nft.Model
	// clients are packets that were sent earlier and can be sent again.
	clients []nft.Packet
}

func newTrial(t *testing.T, rng *rand.Rand, seen map[string]int) *trial {
	cfg, list := gen.Config(rng)
	node := gen.Node(rng)
	services, ranges := randomServices(rng, &node), gen.ServiceCIDRs(rng)
	c := &trial{
		oracle: &oracle{&node, services, cfg, ranges, list, map[visit]netip.AddrPort{}, netip.AddrPort{}, seen},
		rng:    rng, builder: snapshots.NewBuilder(node), compiler: ruleset.NewCompiler(cfg), kernel: nft.NewModel(),
	}
	c.builder.SetServiceCIDRs(ranges)
	for _, s := range services {
		if s.ExternalPolicy == service.Local && s.Options.ExternalFailover == service.FailoverDrop &&
			slices.ContainsFunc(s.ExternalIPs, c.isClusterIP) {
			s.Options.ExternalFailover = service.FailoverPass // rare otherwise at such an address
		}
		c.builder.Set(s)
	}
	c.sync(t)
	return c
}

// sync applies the cluster's program to the kernel, then sweeps the maps of clients.
func (c *trial) sync(t *testing.T) {
	next := c.compiler.Compile(c.builder.Snapshot())
	batch, state := c.state.Plan(next, time.Time{})
	if err := strict.Apply(c.kernel, batch); err != nil {
		t.Fatalf("%v\n%s", err, batch)
	}
	swept := sweep(c.kernel, next)
	if c.program != nil && swept > 0 && len(ruleset.AffinityShrunk(c.program, next)) == 0 {
		t.Fatalf("%d remembered clients were stale, and AffinityShrunk named no map of theirs", swept)
	}
	// The model removes idle sets and chains, with maps of clients among them.
	batch, c.state = state.Plan(next, time.Time{}.Add(nft.IdleLife))
	if err := strict.Apply(c.kernel, batch); err != nil {
		t.Fatalf("%v\n%s", err, batch)
	}
	c.program = next
	c.forget()
}

// sweep removes the clients that a program's maps must not keep.
func sweep(m *nft.Model, p *nft.Program) (swept int) {
	for _, a := range ruleset.AffinityMaps(p) {
		elements := m.Table(a.Table).Sets[a.Set.Name].Elements
		for key, e := range elements {
			if !a.Keep(key, e.Data) {
				delete(elements, key)
				swept++
			}
		}
	}
	return swept
}

// change makes a few changes to the services, and now and then to the node.
func (c *trial) change(t *testing.T) {
	if c.rng.IntN(4) == 0 {
		*c.node = gen.Node(c.rng)
		c.builder.SetNode(*c.node)
	}
	for range c.rng.IntN(6) {
		if len(c.services) == 0 {
			break
		}
		i := c.rng.IntN(len(c.services))
		c.services[i] = gen.Mutated(c.rng, c.services[i])
		c.builder.Set(c.services[i])
	}
	slots := rand.New(rand.NewPCG(uint64(len(c.clients)), 8))
	c.builder.SetSlots(gen.Slots(slots, c.builder.Snapshot()))
	c.sync(t)
}

// connect sends a packet of an old client or a new one. It compares the possible outcomes
// with those of the oracle.
func (c *trial) connect(t *testing.T) {
	p := gen.Packet(c.rng, c.node, c.services)
	if len(c.clients) > 0 && c.rng.IntN(2) == 0 {
		p = c.clients[c.rng.IntN(len(c.clients))]
	} else if len(c.clients) < 40 {
		c.clients = append(c.clients, p)
	}
	outcomes := strict.Outcomes(c.kernel, p, c.local)
	c.drawn = outcomes[0].To
	results := c.outcomes(p)
	want, got := describe(results), describe(outcomes)
	if want != got {
		t.Fatalf("%s\nwant %s\n got %s\n%+v, node-port addresses %v\n%s\n%v",
			p, want, got, c.cfg, c.nodePortAddresses, c.builder.Snapshot(), c.memory)
	}
	c.saw("fate " + string(results[0].Fate))
	r := c.kernel.Trace(p, nft.Host{Local: c.local, Random: c.rng.Uint32N})
	strict.Learn(c.kernel, r)
	c.remember(p, r)
	if to := c.target(p); to != nil {
		wantTimeout(t, r, to.s.AffinityTimeout)
	}
}

// wantTimeout fails unless the element that the packet added has the service's time-out.
func wantTimeout(t *testing.T, r nft.Result, timeout time.Duration) {
	t.Helper()
	text := map[time.Duration]string{5 * time.Second: " timeout 5s ", time.Minute: " timeout 1m ",
		3 * time.Hour: " timeout 3h "}[timeout]
	for _, step := range r.Path {
		if strings.Contains(step, "learn-") && strings.Contains(step, "update @") &&
			(text == "" || !strings.Contains(step, text)) {
			t.Fatalf("%s, for a service with time-out %s", step, timeout)
		}
	}
}

// check sends n packets. A few times in between it changes the cluster.
func (c *trial) check(t *testing.T, n int) {
	for i := range n {
		if i > 0 && i%(n/4) == 0 {
			c.change(t)
		}
		c.connect(t)
	}
}

func describe(results []nft.Result) string {
	var words []string
	for _, r := range results {
		words = append(words, r.String())
	}
	return strings.Join(words, " | ")
}

// TestOracle: every packet has the outcome that the oracle says. Each fate and each
// feature must come up often enough.
func TestOracle(t *testing.T) {
	seen := map[string]int{}
	const trials, packets = 320, 400
	seeds(t, trials, func(t *testing.T, rng *rand.Rand) { newTrial(t, rng, seen).check(t, packets) })
	for what, n := range enough() {
		if seen[what] < n && !testing.Short() {
			t.Errorf("%s: %d times, want %d: the cases are too narrow", what, seen[what], n)
		}
	}
}

// enough is how often each case must come up in TestOracle at least.
func enough() map[string]int {
	return map[string]int{
		"fate untouched": 10_000, "fate dnat": 20_000, "fate reset": 3000, "fate unreachable": 3000, "fate dropped": 5000,
		"cluster IP: other port": 500, "cluster IP: other port, bound here": 500, "unallocated cluster IP": 500,
		"endpoint is an address of services": 500, "endpoint is an unlisted cluster IP": 300,
		"service address in a network of the node": 500, "service address is an API server's": 30,
		"conflict: cluster IP before an older external address":    500,
		"conflict: load balancer's address before an external one": 100,
		"conflict: external address on another's cluster IP":       500,
		"masquerading: spared":                                     1000, "masquerading: to the Node's address": 1000,
		"ping: cluster IP": 200, "ping: external address": 200, "ping: the node has no address": 50,
		"node port: served": 2000, "node port: other address": 2000, "endpoint on the node itself": 1000,
		"internal Local: none here":                                        1000,
		"external Local: pod at an address, of this node for certain true": 100, "external Local: pod at an address, of " +
			"this node for certain false": 100,
		"external Local: pod at a node port": 20, "external Local: the node": 500, "external Local: outsider": 500,
		"external Local: none here": 500, "external Local: pod of another node, none here": 5, "external Local: a pod of " +
			"any node at an address that pods share": 1, "external Local: pod of a node that is not known, none here": 5,
		"failover: passed": 50, "failover: passed, no endpoint at all": 20, "failover: any endpoint": 50,
		"failover: passed to an address of services": 20, "node port: loopback": 20,
		"held: node port false": 100, "held: node port true": 10,
		"pods: by the node's ranges": 3000, "hairpin": 300, "hairpin: endpoint without nodeName": 100,
		"hairpin: endpoint with another nodeName": 30,
		"topology: by node":                       5000, "topology: by zone": 5000, "terminating endpoints": 5000,
		"sources: let in": 500, "sources: kept out": 2000, "sources: the address itself": 30,
		"sources: address has another use":                         100,
		"sources: those of another service":                        500,
		"sources of the annotation: node port true, let in true":   20,
		"sources of the annotation: node port true, let in false":  20,
		"sources of the annotation: node port false, let in true":  20,
		"sources of the annotation: node port false, let in false": 20,
		"affinity: remembered":                                     3000, "affinity: kept over a change": 3000,
		"affinity: forgotten":            500,
		"affinity: remembered a hairpin": 200, "affinity: remembered on the node itself": 150,
		"affinity: came back, list all": 2000, "affinity: came back, list own": 50,
		"affinity: came back to a node port": 150, "affinity: came back through sources": 30,
		"time-outs: protocol 6, node port false, affinity false":  100,
		"time-outs: protocol 17, node port false, affinity false": 100,
		"time-outs: protocol 6, node port true, affinity false":   3,
		"time-outs: protocol 17, node port true, affinity false":  3,
		"time-outs: protocol 6, node port false, affinity true":   10,
		"time-outs: protocol 17, node port false, affinity true":  10,
		"ranges: found": 500, "ranges: own port first": 50, "ranges: another's port first": 30,
		"ranges: before another's port": 30,
		"ranges: external address":      30, "ranges: external address on another's cluster IP": 10,
	}
}

// FuzzOracle lets the fuzzer choose cluster and packets.
func FuzzOracle(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(strings.Repeat("nftproxy", 100)))
	f.Fuzz(func(t *testing.T, b []byte) { newTrial(t, newScript(b), nil).check(t, 40) })
}
