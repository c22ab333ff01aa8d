package ruleset_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// TestUncounted: without counters no set, rule or element of the program counts, and its tables tell
// so. The oracle's tests compare the fates of packets: a quarter of their configurations are uncounted.
func TestUncounted(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	node := gen.Node(rng)
	b := snapshots.NewBuilder(node)
	for _, s := range gen.Services(rng, &node) {
		b.Set(s)
	}
	for _, uncounted := range []bool{false, true} {
		config, _ := gen.Config(rng)
		config.Counters, config.Uncounted = true, uncounted
		p := ruleset.Compile(config, b.Snapshot())
		counting := 0
		for _, f := range nft.Families() {
			for _, s := range p.Table(f).Sets.All() {
				if s.Counter {
					counting++
				}
			}
			for _, c := range p.Table(f).Chains.All() {
				for _, r := range c.Rules {
					if slices.Contains(r, nft.Statement(nft.Counter{})) {
						counting++
					}
				}
			}
			for _, part := range p.Table(f).Parts.All() {
				for _, e := range part.Elements {
					// prerouting refuses by one of these sets, which then counts nothing.
					if _, counts := ruleset.RefusalSets()[e.Set]; counts && e.Set != "node-port-no-local-endpoints" {
						counting++
					}
				}
			}
		}
		if (counting == 0) != uncounted {
			t.Errorf("uncounted %v: %d sets, rules and elements count", uncounted, counting)
		}
		m := nft.NewModel()
		batch, _ := nft.State{}.Plan(p, time.Time{})
		if err := strict.Apply(m, batch); err != nil {
			t.Fatal(err)
		}
		if got := ruleset.ReadBackConfig(m, config.Table).Uncounted; got != uncounted {
			t.Errorf("the tables of a program with Uncounted %v say %v", uncounted, got)
		}
	}
}
