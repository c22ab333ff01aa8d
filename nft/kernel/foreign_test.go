package kernel_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	compile "nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/gen"
)

// TestForeignTables: whatever another program has done to our tables, they are read, and the
// batch that is planned for them makes them what the program says. After another one 10 s
// later nothing foreign is left. The kernel takes both.
func TestForeignTables(t *testing.T) {
	c := openUnwatched(t)
	rounds, taken := uint64(80), 0
	if testing.Short() {
		rounds = 12
	}
	for seed := range rounds {
		rng := rand.New(rand.NewPCG(seed, 17))
		cfg, _ := gen.Config(rng)
		before, want := randomCluster(rng, cfg), randomCluster(rng, cfg)
		must(t, c.Apply(load(before)))
		foreign := gen.DamagedTables(rng, before, before)
		for _, f := range nft.Families() {
			if after := foreign.Table(before.Table(f).ID()); after != nil {
				taken += vandalise(c, before.Model().Table(after.Table), after)
			}
		}
		repair(t, seed, c, want)
		must(t, c.DeleteTables(tableName))
	}
	t.Logf("%d foreign changes in %d rounds", taken, rounds)
	if taken < 8*int(rounds) {
		t.Errorf("%d foreign changes in %d rounds: too few are tried", taken, rounds)
	}
}

// TestForeignNamesThatAreEmpty: the kernel lets a chain, a set and a map have an empty name. What
// another process makes of them goes, and nothing else goes with it.
func TestForeignNamesThatAreEmpty(t *testing.T) {
	for name, hook := range map[string]*nft.Hook{"base chain": {Name: nft.Prerouting}, "chain": nil} {
		t.Run(name, func(t *testing.T) {
			c, want := openUnwatched(t), everything()
			must(t, c.Apply(load(want)))
			for _, f := range nft.Families() {
				id := want.Table(f).ID()
				nameless := &nft.Chain{Hook: hook, Rules: []nft.Rule{{nft.Verdict{Code: nft.Drop}}}}
				set := &nft.Set{Key: nft.Fields{nft.Dport}}
				must(t, c.Apply(nft.Batch{Ops: []nft.Op{
					nft.AddChain{Table: id, Chain: nameless}, nft.AddRules{Table: id, Chain: nameless},
					nft.AddSet{Table: id, Set: set},
					nft.AddElements{Table: id, Set: set,
						Elements: []nft.OwnedElement{{Element: nft.Element{Key: nft.Value(nft.AppendPort(nil, 80))}}}},
				}}))
				if hook == nil {
					lookup := &nft.Chain{Name: "refuse", Rules: []nft.Rule{{nft.InSet{Key: set.Key}, nft.Verdict{Code: nft.Drop}}}}
					must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.AddRules{Table: id, Chain: lookup}}}))
				}
			}
			repair(t, 0, c, want)
		})
	}
}

// repair brings the tables to the program, and waits until nothing is idle.
func repair(t *testing.T, seed uint64, c *kernel.Conn, want *nft.Program) {
	t.Helper()
	found, err := c.Read(want)
	must(t, err)
	state, now := nft.Adopt(found, want), timeZero
	for range 2 {
		var batch nft.Batch
		batch, state = state.Plan(want, now)
		if err := c.Apply(batch); err != nil {
			t.Fatalf("seed %d: %v\n%s\nfound:\n%s", seed, err, batch, found)
		}
		m, err := c.Read(want)
		must(t, err)
		if diff := check.Diff(want, m); diff != "" {
			t.Fatalf("seed %d (-want +got):\n%s\nafter:\n%s\nfound:\n%s", seed, diff, batch, found)
		}
		now = now.Add(nft.IdleLife)
	}
	m, err := c.Read(want)
	must(t, err)
	if idle := check.Idle(want, m); idle != nil {
		t.Errorf("seed %d: still there: %v", seed, idle)
	}
}

func randomCluster(rng *rand.Rand, cfg compile.Config) *nft.Program {
	node := gen.Node(rng)
	b := snapshots.NewBuilder(node)
	b.SetServiceCIDRs(gen.ServiceCIDRs(rng))
	for _, s := range gen.Services(rng, &node) {
		b.Set(s)
	}
	return compile.Compile(cfg, b.Snapshot())
}

// vandalise makes what differs between two contents of a table, piece by piece, as far as
// the kernel takes it. It returns how many pieces it has taken.
func vandalise(c *kernel.Conn, before, after *nft.Contents) (taken int) {
	id := before.Table
	try := func(ops ...nft.Op) {
		if c.Apply(nft.Batch{Ops: ops}) == nil {
			taken++
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.Sets)) {
		s := after.Sets[name]
		if before.Sets[name] == nil && len(s.Set.Key) > 0 {
			try(nft.AddSet{Table: id, Set: s.Set})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.Chains)) {
		chain := after.Chains[name]
		if before.Chains[name] == nil {
			try(nft.AddChain{Table: id, Chain: chain})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.Chains)) {
		chain := after.Chains[name]
		if known := slices.DeleteFunc(slices.Clone(chain.Rules), unwritable); before.Chains[name] == nil ||
			!slices.EqualFunc(known, before.Chains[name].Rules, func(a, b nft.Rule) bool {
				return a.Text(id.Family) == b.Text(id.Family)
			}) {
			try(nft.FlushChain{Table: id, Chain: name})
			for _, r := range known {
				try(nft.AddRules{Table: id, Chain: &nft.Chain{Name: name, Rules: []nft.Rule{r}}})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(after.Sets)) {
		s := after.Sets[name]
		if len(s.Set.Key) == 0 || s.Set.Dynamic {
			continue
		}
		var old map[nft.Value]nft.Element
		if before.Sets[name] != nil {
			old = before.Sets[name].Elements
		}
		for _, key := range slices.Sorted(maps.Keys(s.Elements)) {
			e := s.Elements[key]
			if old[key] != e {
				element := []nft.OwnedElement{{Element: e}}
				if _, there := old[key]; there {
					try(nft.DeleteElements{Table: id, Set: s.Set, Elements: []nft.OwnedElement{{Element: old[key]}}})
				}
				try(nft.AddElements{Table: id, Set: s.Set, Elements: element})
			}
		}
		for _, key := range slices.Sorted(maps.Keys(old)) {
			e := old[key]
			if _, stays := s.Elements[key]; !stays {
				try(nft.DeleteElements{Table: id, Set: s.Set, Elements: []nft.OwnedElement{{Element: e}}})
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.Chains)) {
		if after.Chains[name] == nil {
			try(nft.FlushChain{Table: id, Chain: name})
			try(nft.DeleteChain{Table: id, Chain: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.Sets)) {
		if after.Sets[name] == nil {
			try(nft.DeleteSet{Table: id, Set: name})
		}
	}
	return taken
}

// unwritable says whether a rule has what package nft cannot write.
func unwritable(r nft.Rule) bool {
	return slices.ContainsFunc(r, func(s nft.Statement) bool {
		v, is := s.(nft.Verdict)
		return s == nft.Statement(nft.Unknown{}) || is && v.Code > nft.Accept && v.Code != nft.Drop
	})
}
