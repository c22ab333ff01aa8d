package nft_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// apply plans, applies to the model and returns the batch and the new state.
func apply(t *testing.T, m *nft.Model, s nft.State, want *nft.Program, now time.Time) (nft.Batch, nft.State) {
	t.Helper()
	b, next := s.Plan(want, now)
	if err := strict.Apply(m, b); err != nil {
		t.Fatalf("the model refuses the batch: %v\n%s", err, b)
	}
	return b, next
}

func wantModel(t *testing.T, want *nft.Program, m *nft.Model) {
	t.Helper()
	if diff := check.Diff(want, m); diff != "" {
		t.Fatalf("model (-want +got):\n%s", diff)
	}
}

// TestPlan: after each batch of a random history, the model has what the program says.
// The State has exactly what the model has, without what dynamic maps have learned. No
// batch changes what they have learned.
func TestPlan(t *testing.T) {
	withSeeds(t, 80, func(t *testing.T, rng *rand.Rand) {
		h, m, s, now := newHistory(rng), nft.NewModel(), nft.State{}, epoch
		for range 50 {
			want := h.next()
			text := want.String()
			sendPackets(rng, m)
			_, before := splitMemory(m, want)
			_, s = apply(t, m, s, want, now)
			wantModel(t, want, m)
			rest, after := splitMemory(m, want)
			if diff := cmp.Diff(rest.String(), s.Applied().String()); diff != "" {
				t.Fatalf("state after the batch (-model +state):\n%s", diff)
			}
			if before != after {
				t.Fatalf("learned before the batch\n%s and after it\n%s", before, after)
			}
			if want.String() != text {
				t.Fatal("Plan changed the program")
			}
			if b, _ := s.Plan(want, now); !b.Empty() {
				t.Fatalf("not empty for the same program:\n%s", b)
			}
			if b, _ := s.Plan(rebuilt(want), now); !b.Empty() {
				t.Fatalf("not empty for an equal program:\n%s", b)
			}
			now = now.Add(time.Duration(rng.IntN(6)) * time.Second)
		}
	})
}

// TestPlanFromAnywhere: one batch leads from any program to any other.
func TestPlanFromAnywhere(t *testing.T) {
	withSeeds(t, 300, func(t *testing.T, rng *rand.Rand) {
		a, b := newHistory(rng), newHistory(rng)
		for range 20 {
			a.next()
			b.next()
		}
		m, s := nft.NewModel(), nft.State{}
		_, s = apply(t, m, s, a.last, epoch)
		wantModel(t, a.last, m)
		_, s = apply(t, m, s, b.last, epoch)
		wantModel(t, b.last, m)
		_, s = apply(t, m, s, b.last, epoch.Add(nft.IdleLife))
		if idle := check.Idle(b.last, m); idle != nil {
			t.Errorf("still there: %v", idle)
		}
		if due := s.Due(); !due.IsZero() {
			t.Errorf("due at %v", due)
		}
	})
}

// TestFamilies: the two families' operations of a batch do the same as the whole batch.
func TestFamilies(t *testing.T) {
	withSeeds(t, 50, func(t *testing.T, rng *rand.Rand) {
		h, m, s := newHistory(rng), nft.NewModel(), nft.State{}
		for range 20 {
			want := h.next()
			batch, _ := s.Plan(want, epoch)
			first, second := nft.IPv4, nft.IPv6
			if rng.IntN(2) == 0 {
				first, second = second, first
			}
			if n := batch.Only(first).Size() + batch.Only(second).Size(); n != batch.Size() {
				t.Fatalf("the families have %d of %d objects", n, batch.Size())
			}
			if err := strict.Apply(m, batch.Only(first)); err != nil {
				t.Fatal(err)
			}
			_, s = s.PlanTable(want.Table(first), epoch)
			if rng.IntN(2) == 0 { // The other family fails, and the next batch makes up for it.
				continue
			}
			if err := strict.Apply(m, batch.Only(second)); err != nil {
				t.Fatal(err)
			}
			_, s = s.PlanTable(want.Table(second), epoch)
			wantModel(t, h.last, m)
		}
	})
}

// onePool is a program whose IPv4 table has one pool with these targets.
func onePool(targets ...int) *nft.Program {
	p := newHistory(nil).program()
	p.IPv4.Parts = p.IPv4.Parts.Set("part", nft.NewPart(nil, []nft.Pool{pool(nft.IPv4, 6, targets...)}))
	return p
}

// program is the history's program as it is, without pointers of an earlier one.
func (h *history) program() *nft.Program {
	return &nft.Program{IPv4: h.tables[0].program(nft.IPv4), IPv6: h.tables[1].program(nft.IPv6)}
}

func TestPoolChanges(t *testing.T) {
	for _, c := range []struct {
		name       string
		have, want []int
		batch      string
	}{
		{"one replaced", []int{1, 2, 3, 4}, []int{1, 3, 4, 9}, `
delete element ip random pools {
	tcp . 1,
}
add element ip random pools {
	tcp . 1 : 10.0.0.9 . 8080,
}
`},
		{"one more", []int{2, 3}, []int{1, 2, 3}, `
add element ip random pools {
	tcp . 2 : 10.0.0.1 . 8080,
}
`},
		{"the last one less", []int{1, 2, 3}, []int{1, 2}, `
delete element ip random pools {
	tcp . 2,
}
`},
		{"the first one less", []int{1, 2, 3, 4}, []int{2, 3, 4}, `
delete element ip random pools {
	tcp . 0,
	tcp . 3,
}
add element ip random pools {
	tcp . 0 : 10.0.0.4 . 8080,
}
`},
		{"all gone", []int{1, 2}, nil, `
delete element ip random pools {
	tcp . 0,
	tcp . 1,
}
`},
		{"all others", []int{1, 2}, []int{3, 4}, `
delete element ip random pools {
	tcp . 0,
	tcp . 1,
}
add element ip random pools {
	tcp . 0 : 10.0.0.3 . 8080,
	tcp . 1 : 10.0.0.4 . 8080,
}
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := nft.NewModel()
			_, s := apply(t, m, nft.State{}, onePool(c.have...), epoch)
			b, _ := apply(t, m, s, onePool(c.want...), epoch)
			if diff := cmp.Diff(c.batch, "\n"+b.String()); diff != "" {
				t.Errorf("batch (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPoolStaysPut: a target that stays in the pool stays at its index, if the pool
// still has that index. So no change costs more than it must.
func TestPoolStaysPut(t *testing.T) {
	withSeeds(t, 100, func(t *testing.T, rng *rand.Rand) {
		m, s, targets := nft.NewModel(), nft.State{}, []int{1, 2, 3}
		_, s = apply(t, m, s, onePool(targets...), epoch)
		for range 50 {
			before := poolOf(m)
			targets = changeTargets(rng, targets)
			if len(targets) == 0 {
				targets = []int{5}
			}
			_, s = apply(t, m, s, onePool(targets...), epoch)
			after := poolOf(m)
			for i, target := range before {
				if slices.Contains(after, target) && i < len(after) && after[i] != target {
					t.Fatalf("%q moved: %q, then %q", target, before, after)
				}
			}
		}
	})
}

// poolOf lists onePool's targets by index.
func poolOf(m *nft.Model) []nft.Value {
	set := m.Table(nft.TableID{Family: nft.IPv4, Name: "random"}).Sets[pools]
	targets := make([]nft.Value, len(set.Elements))
	for key, e := range set.Elements {
		_, i := key.SplitIndex()
		targets[i] = e.Data
	}
	return targets
}

// TestReplaceOne: whatever the size, one replaced target is one deletion and
// one addition.
func TestReplaceOne(t *testing.T) {
	withSeeds(t, 50, func(t *testing.T, rng *rand.Rand) {
		all := rng.Perm(250)
		n := 1 + rng.IntN(249)
		have, want := slices.Clone(all[:n]), slices.Clone(all[1:n+1])
		slices.Sort(have)
		slices.Sort(want)
		m := nft.NewModel()
		_, s := apply(t, m, nft.State{}, onePool(have...), epoch)
		b, _ := apply(t, m, s, onePool(want...), epoch)
		var deleted, added int
		for _, op := range b.Ops {
			switch op := op.(type) {
			case nft.DeleteElements:
				deleted += len(op.Elements)
			case nft.AddElements:
				added += len(op.Elements)
			default:
				t.Errorf("operation %s", op.Text())
			}
		}
		if deleted != 1 || added != 1 {
			t.Errorf("%d deleted and %d added of %d, want 1 and 1", deleted, added, n)
		}
	})
}

// oneVerdict is a program with a verdict to the shared chain, or with none.
func oneVerdict(chain string) *nft.Program {
	h := newHistory(nil)
	if chain != "" {
		h.tables[0].verdicts[80] = ownedVerdict{"part", chain, ""}
		h.tables[0].rules[chain] = 2
	}
	return h.program()
}

// TestIdleChains: a chain stays for IdleLife after its last user has gone, and is
// deleted then. In between it can be used again as it is.
func TestIdleChains(t *testing.T) {
	m, s, now := nft.NewModel(), nft.State{}, epoch
	step := func(want *nft.Program, after time.Duration, batch string, idle ...string) {
		t.Helper()
		now = now.Add(after)
		var b nft.Batch
		b, s = apply(t, m, s, want, now)
		if batch != "" || b.Empty() {
			if diff := cmp.Diff(batch, "\n"+b.String()); diff != "" {
				t.Errorf("batch (-want +got):\n%s", diff)
			}
		}
		if diff := cmp.Diff(idle, check.Idle(want, m)); diff != "" {
			t.Errorf("idle chains (-want +got):\n%s", diff)
		}
	}
	_, s = apply(t, m, s, oneVerdict("shared-1"), now)
	if due := s.Due(); !due.IsZero() {
		t.Errorf("due at %v with every chain in use", due)
	}
	step(oneVerdict("shared-2"), time.Second, `
add chain ip random shared-2
add rule ip random shared-2 dnat to meta l4proto . numgen random mod 1 map @pools
add rule ip random shared-2 dnat to meta l4proto . numgen random mod 2 map @pools
delete element ip random verdicts {
	80,
}
add element ip random verdicts {
	80 : goto shared-2,
}
`, "ip shared-1")
	if want := now.Add(nft.IdleLife); !s.Due().Equal(want) {
		t.Errorf("due at %v, want %v", s.Due(), want)
	}
	step(oneVerdict("shared-1"), time.Second, `
delete element ip random verdicts {
	80,
}
add element ip random verdicts {
	80 : goto shared-1,
}
`, "ip shared-2")
	step(oneVerdict(""), 2*time.Second, `
delete element ip random verdicts {
	80,
}
`, "ip shared-1", "ip shared-2")
	// shared-2 has been idle for longer, and is deleted first.
	step(oneVerdict(""), nft.IdleLife-2*time.Second, `
flush chain ip random shared-2
delete chain ip random shared-2
`, "ip shared-1")
	step(oneVerdict(""), 2*time.Second-1, "\n", "ip shared-1")
	step(oneVerdict(""), 1, `
flush chain ip random shared-1
delete chain ip random shared-1
`)
	if due := s.Due(); !due.IsZero() {
		t.Errorf("due at %v with no chain idle", due)
	}
}

// TestChainRules: a chain whose rules change is rewritten in place, so that
// what points to it can stay.
func TestChainRules(t *testing.T) {
	m := nft.NewModel()
	_, s := apply(t, m, nft.State{}, oneVerdict("shared-1"), epoch)
	changed := oneVerdict("shared-1")
	changed.IPv4.Chains = changed.IPv4.Chains.Set("shared-1", sharedChain("shared-1", 1))
	b, _ := apply(t, m, s, changed, epoch)
	want := fmt.Sprintln("flush chain ip random shared-1") +
		fmt.Sprintln("add rule ip random shared-1 dnat to meta l4proto . numgen random mod 1 map @pools")
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("batch (-want +got):\n%s", diff)
	}
}

// TestIdleSets: a set comes with the chain that looks into it, and gets its elements
// before anything leads to the chain. It stays for IdleLife after its last user has gone.
// In that time a program can use it again as it is.
func TestIdleSets(t *testing.T) {
	m, s, now := nft.NewModel(), nft.State{}, epoch
	step := func(want *nft.Program, after time.Duration, transactions string, idle ...string) {
		t.Helper()
		now = now.Add(after)
		b, next := s.Plan(want, now)
		text := "\n"
		for i, transaction := range b.Transactions() {
			text += fmt.Sprintf("# transaction %d\n%s", i+1, transaction)
			if err := strict.Apply(m, transaction); err != nil {
				t.Fatal(err)
			}
		}
		s = next
		wantModel(t, want, m)
		if diff := cmp.Diff(transactions, text); diff != "" {
			t.Errorf("transactions (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(idle, check.Idle(want, m)); diff != "" {
			t.Errorf("idle (-want +got):\n%s", diff)
		}
	}
	one := func(chain string) *nft.Program {
		h := newHistory(nil)
		h.tables[0].rules[chain] = 1
		if chain != "" {
			h.tables[0].verdicts[80] = ownedVerdict{part: "a", chain: chain}
		}
		return h.program()
	}
	_, s = apply(t, m, s, one(""), now)
	step(one("shared-3"), time.Second, `
# transaction 1
add set ip random of-shared-3 { typeof ip daddr; size 6; }
add chain ip random shared-3
add rule ip random shared-3 dnat to meta l4proto . numgen random mod 1 map @pools
add rule ip random shared-3 ip daddr @of-shared-3 drop
add element ip random of-shared-3 {
	10.0.0.0,
	10.0.0.1,
	10.0.0.2,
}
# transaction 2
add element ip random verdicts {
	80 : goto shared-3,
}
`)
	step(one(""), time.Second, `
# transaction 1
delete element ip random of-shared-3 {
	10.0.0.0,
	10.0.0.1,
	10.0.0.2,
}
delete element ip random verdicts {
	80,
}
`, "ip of-shared-3", "ip shared-3")
	step(one("shared-3"), nft.IdleLife-1, `
# transaction 1
add element ip random of-shared-3 {
	10.0.0.0,
	10.0.0.1,
	10.0.0.2,
}
add element ip random verdicts {
	80 : goto shared-3,
}
`)
	step(one(""), 2*nft.IdleLife, `
# transaction 1
delete element ip random of-shared-3 {
	10.0.0.0,
	10.0.0.1,
	10.0.0.2,
}
delete element ip random verdicts {
	80,
}
`, "ip of-shared-3", "ip shared-3")
	if want := now.Add(nft.IdleLife); !s.Due().Equal(want) {
		t.Errorf("due at %v, want %v", s.Due(), want)
	}
	step(one(""), nft.IdleLife, `
# transaction 1
flush chain ip random shared-3
delete set ip random of-shared-3
delete chain ip random shared-3
`)
	if due := s.Due(); !due.IsZero() {
		t.Errorf("due at %v with nothing idle", due)
	}
}

// TestSetFoundAndWantedLater: a reader reports only the name of a set that is not wanted.
// If a later program wants the set, it is made again. If not, it is deleted with its chain.
func TestSetFoundAndWantedLater(t *testing.T) {
	for _, later := range []bool{false, true} {
		h := newHistory(nil)
		h.tables[0].rules["shared-4"] = 2
		h.tables[0].verdicts[80] = ownedVerdict{part: "a", chain: "shared-4"}
		with := h.program()
		delete(h.tables[0].verdicts, 80)
		without := h.program()
		m := with.Model()
		c := m.Table(with.IPv4.ID())
		c.Sets["of-shared-4"] = &nft.SetContents{Set: &nft.Set{Name: "of-shared-4"}, Elements: map[nft.Value]nft.Element{}}
		_, s := apply(t, m, nft.Adopt(m, without), without, epoch)
		wantModel(t, without, m)
		last := without
		if later {
			last = with
		}
		_, s = apply(t, m, s, last, epoch.Add(time.Second))
		wantModel(t, last, m)
		apply(t, m, s, last, epoch.Add(nft.IdleLife))
		wantModel(t, last, m)
		if idle := check.Idle(last, m); idle != nil {
			t.Errorf("wanted later %v: still there: %v", later, idle)
		}
	}
}
