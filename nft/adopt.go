package nft

import (
	"maps"
	"slices"

	"nftproxy/internal/treap"
)

// Unowned is the part that Adopt gives the elements which belong to nothing in
// the wanted program. No program has a part of that name, so the next Plan
// deletes them.
const Unowned = ""

// Adopt makes a State of tables that were read from a kernel: each element is
// given to the part of the wanted program that has its key, so that the next
// Plan finds what differs and keeps what does not. A table whose sets are
// declared otherwise than wanted, or whose chains have other hooks, will be
// replaced as a whole: neither can be changed, and what points to a chain
// keeps it from being deleted.
func Adopt(m *Model, want *Program) State {
	var s State
	for i, f := range Families() {
		t := want.Table(f)
		if c := m.Table(t.ID()); c != nil {
			s.tables[i] = adoptTable(c, t)
		}
	}
	return s
}

func adoptTable(c *Contents, want *Table) tableState {
	applied := &Table{Family: want.Family, Name: want.Name}
	for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
		have, wanted := c.Sets[name].Set, want.Set(name)
		if wanted == nil || !wanted.sameAs(have, want.Family) {
			return tableState{applied: applied, replace: true}
		}
		if wanted.Room > 0 {
			wanted = have
		}
		applied.Sets = append(applied.Sets, wanted)
	}
	for name, chain := range c.Chains {
		if wanted, ok := want.Chains.Get(name); ok && !wanted.sameHook(chain) {
			return tableState{applied: applied, replace: true}
		}
		applied.Chains = applied.Chains.Set(name, chain)
	}
	left, counts := map[string]map[Value]Element{}, map[string]int{}
	for name, s := range c.Sets {
		if !s.Set.Dynamic {
			left[name], counts[name] = maps.Clone(s.Elements), len(s.Elements)
		}
	}
	parts := make([]treap.Edit[string, *Part], 0, want.Parts.Len())
	for name, part := range want.Parts.All() {
		if p := claim(left, part); p != nil {
			parts = append(parts, treap.Edit[string, *Part]{Key: name, Value: p})
		}
	}
	applied.Parts = applied.Parts.Apply(parts)
	var rest []Element
	for _, elements := range left {
		rest = slices.AppendSeq(rest, maps.Values(elements))
	}
	if len(rest) > 0 {
		applied.Parts = applied.Parts.Set(Unowned, NewPart(rest, nil))
	}
	return tableState{applied: applied, counts: counts}
}

// claim moves what has the keys of the wanted part from left into a part of
// its own; nil where there is nothing.
func claim(left map[string]map[Value]Element, want *Part) *Part {
	var elements []Element
	for _, e := range want.Elements {
		if have, ok := left[e.Set][e.Key]; ok {
			elements = append(elements, have)
			delete(left[e.Set], e.Key)
		}
	}
	var pools []Pool
	for _, w := range want.Pools {
		pool := Pool{Map: w.Map, Prefix: w.Prefix}
		for i := 0; ; i++ {
			key := w.Prefix.WithIndex(i)
			have, ok := left[w.Map][key]
			if !ok {
				break
			}
			pool.Targets = append(pool.Targets, have.Data)
			delete(left[w.Map], key)
		}
		if len(pool.Targets) > 0 {
			pools = append(pools, pool)
		}
	}
	if elements == nil && pools == nil {
		return nil
	}
	return NewPart(elements, pools)
}
