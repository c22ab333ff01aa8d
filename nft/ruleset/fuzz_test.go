package ruleset_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// randomProgram compiles a random cluster.
func randomProgram(rng *rand.Rand, cfg ruleset.Config) (*nft.Program, service.Snapshot) {
	node := gen.Node(rng)
	s := build(node, gen.Services(rng, &node), gen.ServiceCIDRs(rng)...)
	return ruleset.Compile(cfg, s), s
}

// FuzzForeignTables: whatever tables others have left, they are read back without a panic
// and in bounded memory, and one batch makes them what the program says. Then they tell
// the same as a new kernel's.
func FuzzForeignTables(f *testing.F) {
	for _, data := range gen.Seeds(20, 400) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		check.Bounded(t, 64<<20, func() { checkForeignTables(t, gen.Rand(data)) })
	})
}

func checkForeignTables(t *testing.T, rng *rand.Rand) {
	cfg, _ := gen.Config(rng)
	before, s := randomProgram(rng, cfg)
	want := before
	if rng.IntN(2) == 0 {
		want, s = randomProgram(rng, cfg)
	}
	// The commands that read tables ask for those of no Service.
	empty := ruleset.Compile(ruleset.Config{Table: cfg.Table}, service.Snapshot{Node: &service.Node{}})
	readAll(gen.DamagedTables(rng, before, empty), cfg.Table, s.Node)

	m := gen.DamagedTables(rng, before, want)
	readAll(m, cfg.Table, s.Node)
	if strict.Apply(m, nft.Batch{}) != nil {
		nft.Adopt(m, want).Plan(want, time.Time{}) // no kernel would hold this
		return
	}
	now := time.Unix(0, 0)
	state := nft.Adopt(m, want)
	for range 3 {
		var batch nft.Batch
		batch, state = state.Plan(want, now)
		if err := strict.Apply(m, batch); err != nil {
			t.Fatalf("%v\n%s", err, batch)
		}
		if diff := check.Diff(want, m); diff != "" {
			t.Fatalf("(-want +got):\n%s\n%s", diff, batch)
		}
		now = now.Add(nft.IdleLife)
	}
	if idle := check.Idle(want, m); idle != nil {
		t.Errorf("still there: %v", idle)
	}
	if got, want := ruleset.ReadBack(m, cfg.Table, s.Node).String(), ruleset.ReadBack(want.Model(), cfg.Table,
		s.Node).String(); got != want {
		t.Errorf("read back:\n%s\nwant:\n%s", got, want)
	}
}

// readAll reads everything of tables, and wants no panic.
func readAll(m *nft.Model, table string, node *service.Node) {
	config := ruleset.ReadBackConfig(m, table)
	snapshot, _ := ruleset.ReadServed(m, table, node)
	_ = snapshot.String()
	ruleset.Compile(config, snapshot)
	for _, f := range nft.Families() {
		c := m.Table(nft.TableID{Family: f, Name: table})
		if c == nil {
			continue
		}
		ruleset.LocalEndpoints(c)
		for _, chain := range c.Chains {
			ruleset.KindOfChain(chain)
		}
	}
}
