package conntrack_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// trial is a random cluster that changes, its program in a model of the kernel, and flows
// that the program and others made. The index and the oracle judge them.
type trial struct {
	*oracle
	rng      *rand.Rand
	node     service.Node
	services []*service.Service
	builder  *snapshots.Builder
	options  conntrack.Options
	index    *conntrack.Index
	kernel   *nft.Model
	// flows has the flows that were made, up to a maximum.
	flows []known
	seen  map[string]int
	// failover has every Service with external policy Local pass on what it has no endpoint for, which few ask for by
	// themselves.
	failover bool
	// leaving has every Service ask for something about endpoints that leave or terminate.
	leaving bool
}

// known is a flow. It says whether the flow was stale at the last look.
type known struct {
	conntrack.Flow
	stale bool
}

func newTrial(t *testing.T, seed uint64, seen map[string]int) *trial {
	rng := rand.New(rand.NewPCG(seed, 7))
	cfg, _ := gen.Config(rng)
	c := &trial{oracle: &oracle{cfg: &cfg}, rng: rng, node: gen.Node(rng), seen: seen, failover: seed%4 == 0,
		leaving: seed%4 == 1}
	if rng.IntN(3) == 0 {
		c.established = []service.Protocol{service.TCP, service.SCTP}[:1+rng.IntN(2)]
	}
	c.services = gen.Services(rng, &c.node)
	c.builder = snapshots.NewBuilder(c.node)
	c.builder.SetServiceCIDRs(gen.ServiceCIDRs(rng))
	for _, s := range c.services {
		c.set(s)
	}
	c.options = conntrack.Options{NodePortAddresses: cfg.NodePortAddresses, Established: c.established, Pod: cfg.Pod}
	c.index = conntrack.NewIndex(c.options)
	c.wait(t, time.Since(time.Time{}).Truncate(time.Hour))
	c.setRoutes(t)
	c.sync(t)
	return c
}

func (c *trial) set(s *service.Service) {
	if c.failover && s.ExternalPolicy == service.Local {
		s.Options.ExternalFailover = service.FailoverPass
	}
	if c.leaving {
		fate := service.DepartedFate(c.rng.IntN(3))
		s.Options.Departed = service.Departed{Fate: fate}
		if fate == service.DepartedCut {
			s.Options.Departed.After = time.Duration(c.rng.IntN(3)) * 10 * time.Second
		}
		s.Options.UDPHandling = service.UDPHandling(min(1, c.rng.IntN(4)))
	}
	c.builder.Set(s)
}

// setRoutes sets some local routes, to addresses that packets go to.
func (c *trial) setRoutes(t *testing.T) {
	c.routes = nil
	for range c.rng.IntN(4) {
		a := gen.Packet(c.rng, &c.node, c.services).Dst.Addr()
		bits := []int{a.BitLen(), a.BitLen() - 1, a.BitLen() - 3}[c.rng.IntN(3)]
		if !a.IsLoopback() {
			c.routes = append(c.routes, netip.PrefixFrom(a, bits).Masked())
		}
	}
	c.checkScope(t, c.index.SetLocalRoutes(c.routes))
}

// sync updates the index, the oracle and the program to the cluster's state.
func (c *trial) sync(t *testing.T) {
	s := c.builder.Snapshot()
	scope := c.index.Update(s)
	c.history = append(c.history, moment{s, c.clock})
	c.checkScope(t, scope)
	c.kernel = nft.NewModel()
	batch, _ := nft.State{}.Plan(ruleset.Compile(*c.cfg, s), time.Time{})
	if err := strict.Apply(c.kernel, batch); err != nil {
		t.Fatal(err)
	}
}

// wait lets time pass.
func (c *trial) wait(t *testing.T, d time.Duration) {
	c.clock = c.clock.Add(d)
	next, planned := c.index.NextCut()
	scope := c.index.Advance(c.clock)
	if due := planned && !c.clock.Before(next); due == scope.Empty() {
		t.Fatalf("at %v the scope is %+v, and %v was planned", c.clock, scope, next)
	} else if due {
		c.seen["cut later"]++
	}
	c.checkScope(t, scope)
}

// checkScope checks that the scope of a change has the flows that it made stale.
func (c *trial) checkScope(t *testing.T, scope conntrack.Scope) {
	for i := range c.flows {
		f := &c.flows[i]
		reason, now := c.index.Stale(f.Flow)
		// Another program's flow may lead to an address that becomes an endpoint without serving.
		ours := !f.Translated() || c.was(&f.Flow)
		if now && !f.stale && ours && !scope.Selects(&f.Flow) {
			t.Fatalf("%v: %q, which is not in the scope %+v\n%s", f.Flow, reason, scope, c.describe())
		}
		f.stale = now
	}
	switch {
	case scope.Everything:
		c.seen["scope: everything"]++
	case !scope.Empty():
		c.seen["scope: filters"]++
	default:
		c.seen["scope: nothing"]++
	}
}

// change makes a few changes that are usual in clusters.
func (c *trial) change(t *testing.T) {
	c.wait(t, []time.Duration{0, time.Second, 20 * time.Second, time.Hour}[c.rng.IntN(4)])
	for range 1 + c.rng.IntN(3) {
		i := c.rng.IntN(len(c.services) + 1)
		switch {
		case i == len(c.services) || c.rng.IntN(12) == 0:
			s := gen.NamedService(c.rng, gen.Name(c.rng.IntN(14)), gen.Everything())
			c.services = append(slices.DeleteFunc(c.services, func(o *service.Service) bool { return o.Name == s.Name }), s)
			c.set(s)
		case c.rng.IntN(8) == 0:
			c.builder.Delete(c.services[i].Name)
			c.services = slices.Delete(c.services, i, i+1)
		case c.rng.IntN(8) == 0: // It is handed to another proxy, for good.
			c.builder.Delete(c.services[i].Name)
			c.builder.SetOther(c.services[i])
			c.services = slices.Delete(c.services, i, i+1)
		case c.rng.IntN(8) == 0:
			for name := range c.builder.Snapshot().Others.All() {
				c.builder.DeleteOther(name)
				break
			}
		case c.rng.IntN(8) == 0:
			c.node = gen.Node(c.rng)
			c.builder.SetNode(c.node)
		case c.rng.IntN(8) == 0:
			c.builder.SetServiceCIDRs(gen.ServiceCIDRs(c.rng))
		default:
			c.services[i] = gen.Mutated(c.rng, c.services[i])
			c.set(c.services[i])
		}
	}
	c.sync(t)
	if c.rng.IntN(6) == 0 {
		c.setRoutes(t)
	}
	if c.rng.IntN(4) == 0 {
		c.index.Forget(c.index.Epoch())
		c.forgotten, c.forgotAt = len(c.history)-1, c.clock
		for i := range c.flows {
			_, c.flows[i].stale = c.index.Stale(c.flows[i].Flow)
		}
	}
}

// connect sends a first packet and keeps each flow that it may make. None of them is
// stale.
func (c *trial) connect(t *testing.T) {
	p := gen.Packet(c.rng, &c.node, c.services)
	if p.Dst.Addr().IsLoopback() && !p.FromNode {
		return // no host sends it
	}
	local := func(a netip.Addr) bool { return a.IsLoopback() || c.local(a) }
	for _, r := range strict.Outcomes(c.kernel, p, local) {
		f := conntrack.Flow{Protocol: service.Protocol(p.Protocol), Original: conntrack.Tuple{Src: p.Src, Dst: p.Dst}}
		f.Status = []conntrack.Status{0, conntrack.SeenReply, conntrack.SeenReply | conntrack.Assured}[c.rng.IntN(3)]
		switch r.Fate {
		case nft.Untouched:
			f.Reply = conntrack.Tuple{Src: p.Dst, Dst: p.Src}
		case nft.DNATed:
			f.Reply = conntrack.Tuple{Src: r.To, Dst: p.Src}
			if r.To != p.Dst {
				f.Status |= conntrack.DstNAT
			}
		default:
			continue
		}
		c.seen["valid, "+string(r.Fate)]++
		if reason, stale := c.index.Stale(f); stale {
			t.Fatalf("%s becomes %v, which is stale: %q\n%s", p, f, reason, c.describe())
		}
		c.keep(f)
	}
}

// The protocols of packets that are for no Service.
const (
	icmp   service.Protocol = 1
	icmpv6 service.Protocol = 58
)

// stray makes a flow as any program may have made it: with DNAT to some endpoint, translated to one by IPVS, or
// without.
func (c *trial) stray() {
	p := gen.Packet(c.rng, &c.node, c.services)
	f := conntrack.Flow{
		Protocol: service.Protocol(p.Protocol), Original: conntrack.Tuple{Src: p.Src, Dst: p.Dst},
		Reply: conntrack.Tuple{Src: p.Dst, Dst: p.Src}, Zone: uint16(c.rng.IntN(20) / 19),
		Status: conntrack.Status(c.rng.Uint32()) & (conntrack.SeenReply | conntrack.Assured |
			conntrack.SrcNAT | conntrack.DstNAT),
	}
	if n := len(c.services); n > 0 && f.Status&conntrack.DstNAT != 0 {
		s := c.services[c.rng.IntN(n)]
		if list := slices.Collect(s.Ports[c.rng.IntN(len(s.Ports))].Endpoints.All()); len(list) > 0 {
			f.Reply.Src = list[c.rng.IntN(len(list))].Addr
		}
		if f.Protocol != icmp && f.Protocol != icmpv6 && c.rng.IntN(4) == 0 { // by IPVS
			f.Status &^= conntrack.DstNAT
			c.seen["translated without DNAT"]++
		}
	}
	c.keep(f)
}

// keep adds a flow. Where there are many, it replaces another one.
func (c *trial) keep(f conntrack.Flow) {
	const most = 200
	_, stale := c.index.Stale(f)
	if len(c.flows) < most {
		c.flows = append(c.flows, known{f, stale})
		return
	}
	c.flows[c.rng.IntN(most)] = known{f, stale}
}

// judge compares the judgments about all flows: of the index that followed the changes, of
// a fresh index, and of the oracle with and without its memory.
func (c *trial) judge(t *testing.T) (cases int) {
	fresh := conntrack.NewIndex(c.options)
	fresh.SetLocalRoutes(c.routes)
	fresh.Update(c.now())
	forgetful := *c.oracle
	forgetful.history, forgetful.forgotten = c.history[len(c.history)-1:], 0
	for _, known := range c.flows {
		f := known.Flow
		for _, by := range []struct {
			name   string
			index  *conntrack.Index
			oracle *oracle
		}{{"followed", c.index, c.oracle}, {"fresh", fresh, &forgetful}} {
			got, stale := by.index.Stale(f)
			want := by.oracle.stale(&f)
			if want == "" && (got == conntrack.EndpointGone || got == conntrack.ServiceGone) && by.oracle.mayBe(&f) {
				c.seen["mistaken"]++
				want = got
			}
			if got != want || stale != (got != "") {
				t.Fatalf("%s index: %v: Stale() = %q, %t, want %q\n%s", by.name, f, got, stale, want, c.describe())
			}
			c.seen["reason: "+string(got)]++
			c.seen[by.oracle.describeDeparted(&f, got)]++
			if a := by.oracle.asks(&f); a != nil && f.Status&conntrack.DstNAT == 0 && by.oracle.passes(&f, a) {
				c.seen["left to routing"]++
			}
			cases++
		}
		if got, _ := c.index.Stale(f); got == "" && c.asks(&f) == nil && c.gone(&f) && c.others(&f) {
			c.seen["of another proxy now"]++
		}
		s, p, ok := c.index.Owner(f)
		if ok && p.IsRange() {
			c.seen["ranges"]++
		}
		if want := c.asks(&f); ok != (want != nil) || ok && (s != want.s || p != want.p) {
			t.Fatalf("%v: Owner() = %v, %v, %t, want %+v\n%s", f, s, p, ok, want, c.describe())
		}
	}
	return cases
}

func (c *trial) describe() string {
	return fmt.Sprintf("established %v, %+v\n%s", c.established, *c.cfg, c.now())
}

// TestStaleAgainstOracle: of every flow the index says what the oracle says,
// also after any series of changes; what a change made stale is in its scope;
// and no flow is stale that the program would make today.
func TestStaleAgainstOracle(t *testing.T) {
	seeds := 80
	if testing.Short() {
		seeds = 20
	}
	seen, cases := map[string]int{}, 0
	for seed := range uint64(seeds) {
		c := newTrial(t, seed, seen)
		for range 8 {
			for range 20 {
				c.connect(t)
				c.stray()
			}
			c.change(t)
			cases += c.judge(t)
		}
	}
	t.Logf("%d cases", cases)
	for what, n := range map[string]int{
		"reason: ": 20_000, "reason: service address": 3000, "reason: node port": 500,
		"reason: unknown port of a cluster IP": 500,
		"reason: unallocated address":          300, "reason: endpoint gone": 1000, "reason: service gone": 500,
		"reason: source not in the ranges": 30, "reason: traffic policy": 100,
		"left to routing": 300, "valid, dnat": 5000, "valid, untouched": 2000,
		"scope: everything": 100, "scope: filters": 100, "scope: nothing": 30,
		"translated without DNAT": 500, "cut later": 8, "answered, to a former endpoint: ": 300,
		"answered, to a former endpoint: endpoint gone": 40, "preserved": 3, "ranges": 100, "of another proxy now": 100,
	} {
		if seen[what] < n && !testing.Short() {
			t.Errorf("%q: %d times, want %d: the cases are too narrow", what, seen[what], n)
		}
	}
	if n := seen["mistaken"]; n > seen["reason: endpoint gone"]/50 {
		t.Errorf("an address and a node port were mistaken for each other %d times", n)
	}
	if t.Failed() || testing.Verbose() {
		for _, what := range slices.Sorted(maps.Keys(seen)) {
			t.Logf("%q: %d", what, seen[what])
		}
	}
}

// describeDeparted says in words what about departed endpoints the judgment of a flow showed; mostly nothing.
func (o *oracle) describeDeparted(f *conntrack.Flow, got conntrack.Reason) string {
	switch a := o.asks(f); {
	case got == "" && f.Protocol == service.UDP && a != nil && find(a.p, f, f.Reply.Src) != nil &&
		!serves(find(a.p, f, f.Reply.Src)):
		return "preserved"
	case f.Protocol != service.UDP && f.Status&conntrack.SeenReply != 0 && o.was(f) &&
		(a == nil || find(a.p, f, f.Reply.Src) == nil):
		return "answered, to a former endpoint: " + string(got)
	}
	return "nothing about departed endpoints"
}

func serves(e *service.Endpoint) bool { return e.Ready || e.Serving }
