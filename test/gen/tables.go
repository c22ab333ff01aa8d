package gen

import (
	"maps"
	"math/rand/v2"
	"slices"

	"nftproxy/nft"
)

// DamagedTables returns the program's tables after other programs have changed them, as a reader
// returns them that was asked for the tables of want (kernel.Conn.Read): a set that want
// declares is declared as there, but for its counter, or has only its name. Any other set
// has a declaration that some program could have.
//
// Now and then rules and elements lead to chains or sets that are missing, or in a circle.
// No kernel holds such tables. A reader may see them while others write.
func DamagedTables(rng *rand.Rand, p, want *nft.Program) *nft.Model {
	m := nft.NewModel()
	for _, f := range nft.Families() {
		c := p.Model().Table(p.Table(f).ID())
		if c == nil || rng.IntN(16) == 0 {
			continue
		}
		v := vandal{rng: rng, c: c, want: want.Table(f), family: f}
		for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
			if !v.readable(c.Sets[name].Set) {
				v.forget(name)
			}
		}
		for range rng.IntN(12) {
			v.change()
		}
		m.Put(c)
	}
	return m
}

// vandal changes one table.
type vandal struct {
	rng    *rand.Rand
	c      *nft.Contents
	want   *nft.Table
	family nft.Family
}

// change makes one change.
func (v *vandal) change() {
	switch v.rng.IntN(14) {
	case 0: // an element gone
		if s := v.someSet(); len(s.Elements) > 0 {
			delete(s.Elements, v.someKey(s))
		}
	case 1, 2: // more elements
		s := v.someSet()
		for range 1 + v.rng.IntN(3) {
			v.put(s, v.key(s))
		}
	case 3: // something else under a key of ours
		if s := v.someSet(); len(s.Elements) > 0 {
			v.put(s, v.someKey(s))
		}
	case 4, 5: // other rules
		name := v.someName(v.chainNames(), tempting())
		c := nft.Chain{Name: name}
		if old := v.c.Chains[name]; old != nil {
			c.Hook, c.Rules = old.Hook, slices.Clone(old.Rules)
		}
		if len(c.Rules) > 0 && v.rng.IntN(2) == 0 {
			i := v.rng.IntN(len(c.Rules))
			c.Rules = slices.Delete(c.Rules, i, i+1)
		}
		for range v.rng.IntN(4) {
			c.Rules = slices.Insert(c.Rules, v.rng.IntN(len(c.Rules)+1), v.rule())
		}
		v.c.Chains[name] = &c
	case 6: // a base chain, or another hook
		name := v.someName(v.chainNames(), []string{"filter", "nat", "mine"})
		c := nft.Chain{Name: name, Hook: v.hook(), Rules: []nft.Rule{v.rule()}}
		if old := v.c.Chains[name]; old != nil {
			c.Rules = old.Rules
		}
		v.c.Chains[name] = &c
	case 7:
		v.forget(v.someSet().Set.Name)
	case 8: // a set with counters, or without them
		s := v.someSet()
		declared := *s.Set
		if declared.Counter = !declared.Counter; len(declared.Key) > 0 && declared.Check() == nil {
			v.c.Sets[declared.Name] = &nft.SetContents{Set: &declared, Elements: s.Elements}
		}
	case 9, 10: // a set of others
		if s := v.set(); v.want.Set(s.Name) == nil {
			contents := &nft.SetContents{Set: s, Elements: map[nft.Value]nft.Element{}}
			v.c.Sets[s.Name] = contents
			for range v.rng.IntN(4) {
				v.put(contents, v.key(contents))
			}
		}
	case 11:
		delete(v.c.Chains, v.someName(v.chainNames(), tempting()))
	case 12:
		delete(v.c.Sets, v.someName(slices.Sorted(maps.Keys(v.c.Sets)), tempting()))
	case 13: // a circle, or a long way
		last := ""
		for _, name := range []string{"round", "about", "again"} {
			c := &nft.Chain{Name: name}
			for range 1 + v.rng.IntN(8) {
				c.Rules = append(c.Rules, nft.Rule{nft.Verdict{Code: nft.Jump, Chain: last}})
			}
			if last == "" {
				c.Rules = []nft.Rule{{nft.Counter{}}}
			}
			v.c.Chains[name] = c
			last = name
		}
		if v.rng.IntN(2) == 0 {
			v.c.Chains["round"] = &nft.Chain{Name: "round", Rules: []nft.Rule{{nft.Verdict{Code: nft.Jump, Chain: last}},
				{nft.Verdict{Code: nft.Jump, Chain: last}}}}
		}
	}
}

// readable says whether a reader recognises the set.
func (v *vandal) readable(s *nft.Set) bool {
	w := v.want.Set(s.Name)
	if w == nil {
		return true
	}
	have, wanted := *s, *w
	have.Counter, have.Size, have.MinSize = wanted.Counter, wanted.Size, wanted.MinSize
	return (nft.AddSet{Table: v.c.Table, Set: &have}).Text() == (nft.AddSet{Table: v.c.Table, Set: &wanted}).Text() &&
		s.Size >= wanted.Size
}

// forget makes the set one of which a reader returns only the name.
func (v *vandal) forget(name string) {
	v.c.Sets[name] = &nft.SetContents{Set: &nft.Set{Name: name}, Elements: map[nft.Value]nft.Element{}}
}

// someSet returns a set of the table.
func (v *vandal) someSet() *nft.SetContents {
	names := slices.Sorted(maps.Keys(v.c.Sets))
	if len(names) == 0 {
		v.forget("only")
		return v.c.Sets["only"]
	}
	return v.c.Sets[names[v.rng.IntN(len(names))]]
}

func (v *vandal) someKey(s *nft.SetContents) nft.Value {
	keys := slices.Sorted(maps.Keys(s.Elements))
	return keys[v.rng.IntN(len(keys))]
}

func (v *vandal) chainNames() []string { return slices.Sorted(maps.Keys(v.c.Chains)) }

// someName is mostly one of the names, and now and then another one.
func (v *vandal) someName(names, others []string) string {
	if len(names) == 0 || v.rng.IntN(8) == 0 {
		names = others
	}
	return names[v.rng.IntN(len(names))]
}
