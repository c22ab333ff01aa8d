package ruleset_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// TestNodeSettings: with other settings the compiler's program is the one of a compiler
// that had these settings from the start, whatever it compiled before.
func TestNodeSettings(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	first, _ := gen.Config(rng)
	c := ruleset.NewCompiler(first)
	b := snapshots.NewBuilder(gen.PlainNode())
	for i := range 50 {
		random, _ := gen.Config(rng)
		node := gen.PlainNode()
		node.Settings = &random.Settings
		b.SetNode(node)
		for _, change := range gen.Changes(rng, 3, gen.Options{}) {
			change.Apply(b)
		}
		s := b.Snapshot()
		got := c.Compile(s)
		plain := *s.Node
		plain.Settings = nil
		s.Node = &plain
		random.Table, random.Uncounted, random.Unlabelled = first.Table, first.Uncounted, first.Unlabelled
		want := ruleset.Compile(random, s)
		if got, want := got.String(), want.String(); got != want {
			t.Fatalf("round %d: the program is not that of the settings:\n%s\nwant\n%s", i, got, want)
		}
	}
}

// TestFlowsOff: without --nftproxy-flows the program is the same, whatever Services ask for.
func TestFlowsOff(t *testing.T) {
	seeds(t, 100, func(t *testing.T, rng *rand.Rand) {
		cfg, _ := gen.Config(rng)
		node := gen.Node(rng)
		services := gen.Services(rng, &node)
		plain := slices.Clone(services)
		for i := range plain {
			plain[i] = plain[i].Clone()
			plain[i].Options.Flows = service.FlowsAsNode
		}
		cidrs := gen.ServiceCIDRs(rng)
		cfg.Flows = service.FlowsOff
		off := ruleset.Compile(cfg, build(node, services, cidrs...)).String()
		cfg.Flows = service.FlowsAsNode
		if unset := ruleset.Compile(cfg, build(node, plain, cidrs...)).String(); off != unset {
			t.Errorf("the program has flows:\n%s\nwant\n%s", off, unset)
		}
		// The sets of connections that wait have "flows" in their names, too.
		if rest := strings.ReplaceAll(off, "held-flows", ""); strings.Contains(rest, "log prefix") ||
			strings.Contains(rest, "flows") {
			t.Errorf("the program tells of connections:\n%s", off)
		}
	})
}
