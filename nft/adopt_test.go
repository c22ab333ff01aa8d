package nft_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
)

// shuffled is the model of the program with every pool in a random order, as a long
// history may leave it.
func shuffled(rng *rand.Rand, p *nft.Program) *nft.Model {
	m := p.Model()
	for _, f := range nft.Families() {
		set := m.Table(p.Table(f).ID()).Sets[pools]
		for _, part := range p.Table(f).Parts.All() {
			for _, pool := range part.Pools {
				targets := slices.Collect(pool.Targets.All())
				for i, from := range rng.Perm(len(targets)) {
					key := pool.Prefix.WithIndex(i)
					set.Elements[key] = nft.Element{Set: pools, Key: key, Data: targets[from]}
				}
			}
		}
	}
	return m
}

func TestAdopt(t *testing.T) {
	withSeeds(t, 200, func(t *testing.T, rng *rand.Rand) {
		h := newHistory(rng)
		for range 20 {
			h.next()
		}
		a := h.last
		m := shuffled(rng, a)
		for range 5 {
			sendPackets(rng, m)
		}
		rest, memory := splitMemory(m, a)
		text := rest.String()
		s := nft.Adopt(m, rebuilt(a))
		if diff := cmp.Diff(text, s.Applied().String()); diff != "" {
			t.Fatalf("adopted (-model +state):\n%s", diff)
		}
		if b, _ := s.Plan(a, epoch); !b.Empty() {
			t.Fatalf("not empty for what is there:\n%s", b)
		}
		b := h.next()
		s = nft.Adopt(m, b)
		_, s = apply(t, m, s, b, epoch)
		wantModel(t, b, m)
		for range 5 { // Plans from an adopted state are like any other.
			_, s = apply(t, m, s, h.next(), epoch)
			wantModel(t, h.last, m)
		}
		if _, after := splitMemory(m, a); after != memory {
			t.Errorf("learned before the restart\n%s and after it\n%s", memory, after)
		}
	})
}

// TestAdoptNothing: the kernel has none of the two tables, or only one.
func TestAdoptNothing(t *testing.T) {
	withSeeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		h := newHistory(rng)
		h.next()
		for _, f := range nft.Families() {
			m := nft.NewModel()
			if rng.IntN(2) == 0 {
				m.Put(h.last.Model().Table(h.last.Table(f).ID()))
			}
			apply(t, m, nft.Adopt(m, h.last), h.last, epoch)
			wantModel(t, h.last, m)
		}
	})
}

// TestAdoptTampered: whatever others have changed in the tables, one batch makes them
// what the program says. Nothing foreign is left when idle chains have been deleted.
func TestAdoptTampered(t *testing.T) {
	withSeeds(t, 500, func(t *testing.T, rng *rand.Rand) {
		h := newHistory(rng)
		for range 20 {
			h.next()
		}
		m, want := shuffled(rng, h.last), h.next()
		sendPackets(rng, m)
		for _, f := range nft.Families() {
			for range rng.IntN(4) {
				tamperWith(rng, m.Table(want.Table(f).ID()))
			}
		}
		if err := strict.Apply(m, nft.Batch{}); err != nil {
			t.Fatalf("no kernel would hold this: %v", err)
		}
		_, s := apply(t, m, nft.Adopt(m, want), want, epoch)
		wantModel(t, want, m)
		apply(t, m, s, want, epoch.Add(nft.IdleLife))
		wantModel(t, want, m)
		if idle := check.Idle(want, m); idle != nil {
			t.Errorf("still there: %v", idle)
		}
	})
}

// tamperWith makes one edit that a kernel would let others make.
func tamperWith(rng *rand.Rand, c *nft.Contents) {
	set := c.Sets[[]string{plainSet, verdicts, pools, ranges, learned}[rng.IntN(5)]]
	family := c.Table.Family
	switch rng.IntN(9) {
	case 0: // an element gone
		if keys := slices.Sorted(maps.Keys(set.Elements)); len(keys) > 0 {
			delete(set.Elements, keys[rng.IntN(len(keys))])
		}
	case 1: // a foreign element; in a pool perhaps far beyond its end
		if e := foreignElement(rng, family, set.Set); set.Set.Name != ranges || !overlapping(c, e) {
			set.Elements[e.Key] = e
		}
	case 2: // other data under a key of ours
		for key, e := range set.Elements {
			f := foreignElement(rng, family, set.Set)
			f.Key, f.Comment = key, e.Comment
			if set.Set.Interval {
				f.KeyEnd = key
			}
			set.Elements[key] = f
			break
		}
	case 3: // a foreign chain that jumps to ours, and ours to it
		c.Chains["foreign"] = &nft.Chain{Name: "foreign", Rules: []nft.Rule{{nft.Verdict{Code: nft.Jump, Chain: "dispatch"}}}}
		c.Chains["prerouting"] = &nft.Chain{Name: "prerouting", Hook: c.Chains["prerouting"].Hook, Rules: []nft.Rule{
			{nft.Verdict{Code: nft.Jump, Chain: "foreign"}}, {nft.Verdict{Code: nft.Jump, Chain: "dispatch"}},
		}}
	case 4: // a foreign base chain
		c.Chains["filter"] = &nft.Chain{Name: "filter", Hook: &nft.Hook{Name: nft.Output, Priority: 7},
			Rules: []nft.Rule{{nft.Verdict{Code: nft.Drop}}}}
	case 5: // a rule that the reader does not recognise
		d := c.Chains["dispatch"]
		c.Chains["dispatch"] = &nft.Chain{Name: d.Name, Hook: d.Hook, Rules: append([]nft.Rule{{nft.Unknown{}}}, d.Rules...)}
	case 6: // another hook
		c.Chains["prerouting"] = &nft.Chain{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: 3},
			Rules: c.Chains["prerouting"].Rules}
	case 7: // a set declared otherwise, as a reader reports it
		c.Sets[set.Set.Name] = &nft.SetContents{Set: &nft.Set{Name: set.Set.Name, Verdicts: set.Set.Verdicts,
			Data: set.Set.Data, Dynamic: set.Set.Dynamic}, Elements: map[nft.Value]nft.Element{}}
	case 8: // a foreign set
		c.Sets["foreign"] = &nft.SetContents{Set: &nft.Set{Name: "foreign", Key: nft.Fields{nft.Daddr}},
			Elements: map[nft.Value]nft.Element{}}
	}
}

func foreignElement(rng *rand.Rand, f nft.Family, s *nft.Set) nft.Element {
	n := rng.IntN(20)
	e := nft.Element{Set: s.Name, Comment: "foreign"}
	switch s.Name {
	case plainSet:
		e.Key = address(f, n)
	case verdicts:
		e.Key, e.Verdict = nft.Value(nft.AppendPort(nil, uint16(n))), nft.Verdict{Code: nft.Accept}
	case pools:
		e.Key = nft.Value(nft.AppendProto(nil, uint8(n))).WithIndex(rng.IntN(12))
		e.Data = poolTarget(f, n) // perhaps one that the pool has already
	case ranges:
		from := rng.IntN(250)
		e = interval(f, 1, 20, from, from+rng.IntN(6), "foreign")
	case learned:
		e.Key = address(f, n) + nft.Value(nft.AppendPort(nil, 80))
		e.Data = poolTarget(f, n)
	}
	return e
}

// overlapping says whether a model refuses the interval because of those that it has.
func overlapping(c *nft.Contents, e nft.Element) bool {
	m := nft.NewModel()
	m.Put(c)
	elements := []nft.OwnedElement{{Element: e}}
	return strict.Apply(m, nft.Batch{Ops: []nft.Op{nft.AddElements{Table: c.Table, Set: c.Sets[ranges].Set,
		Elements: elements}}}) != nil
}
