package nft

import (
	"maps"
	"slices"

	"nftproxy/model/parallel"
	"nftproxy/model/treap"
)

// Unowned names the part of elements that Adopt finds in no part of the wanted program. No program
// has a part of that name, so the next Plan deletes them.
const Unowned = ""

// Adopt makes a State of tables that were read from a kernel. Each element goes to the part of the
// wanted program that has its key, so the next Plan changes only what differs. The next Plan
// replaces a whole table if the declaration of one of its sets differs from the wanted one (except
// for a counter), or if one of its chains has another hook. The kernel can change neither, and
// deletes no chain that something points to. Sets and chains that are not wanted stay for IdleLife.
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
		switch {
		case wanted == nil:
			have = &Set{Name: name} // its elements are deleted with it
		case wanted.differsInCounter(have, want.Family): // Plan makes the set again
		case !wanted.sameAs(have, want.Family):
			return tableState{applied: applied, replace: true}
		case wanted.MinSize == 0:
			have = wanted
		}
		applied.Sets = applied.Sets.Set(name, have)
	}
	for name, chain := range c.Chains {
		if wanted, ok := want.Chains.Get(name); ok && !wanted.SameHook(chain) {
			return tableState{applied: applied, replace: true}
		}
		applied.Chains = applied.Chains.Set(name, chain)
	}
	for name, t := range c.Timeouts {
		applied.Timeouts = applied.Timeouts.Set(name, t)
	}
	have, counts := map[string]map[Value]Element{}, map[string]int{}
	for name, s := range c.Sets {
		if s.Set.Dynamic || want.Set(name) == nil {
			continue
		}
		have[name] = s.Elements
		if wanted := want.Set(name); wanted != nil && wanted.MinSize > 0 {
			counts[name] = len(s.Elements)
		}
	}
	parts, matched := matchParts(have, want.Parts)
	applied.Parts = applied.Parts.Apply(parts)
	var rest []Element
	for name, elements := range have {
		if matched[name] < len(elements) {
			left := maps.Clone(elements)
			for key := range applied.Keys(name) {
				delete(left, key)
			}
			rest = slices.AppendSeq(rest, maps.Values(left))
		}
	}
	if len(rest) > 0 {
		applied.Parts = applied.Parts.Set(Unowned, NewPart(rest, nil))
	}
	return tableState{applied: applied, counts: treap.Map[string, int]{}.Apply(treap.Edits(counts))}
}

// matchParts gives each wanted part the elements with its keys, and counts those by set. Each
// key of a set is in one part only.
func matchParts(all map[string]map[Value]Element, want treap.Map[string, *Part]) ([]treap.Edit[string, *Part],
	map[string]int) {
	parts := make([]treap.Edit[string, *Part], 0, want.Len())
	for name, part := range want.All() {
		parts = append(parts, treap.Edit[string, *Part]{Key: name, Value: part})
	}
	parallel.Do(len(parts), func(i int) { parts[i].Value = matchPart(all, parts[i].Value) })
	parts = slices.DeleteFunc(parts, func(e treap.Edit[string, *Part]) bool { return e.Value == nil })
	matched := map[string]int{}
	for _, p := range parts {
		p.Value.countBySet(matched)
	}
	return parts, matched
}

// matchPart returns the elements with the keys of the wanted part as a part; nil where there
// are none.
func matchPart(all map[string]map[Value]Element, want *Part) *Part {
	var elements []Element
	for _, e := range want.Elements {
		if have, ok := all[e.Set][e.Key]; ok {
			elements = append(elements, have)
		}
	}
	var pools []Pool
	var key []byte // reused, since a string for each of many thousand keys would be garbage
	for _, w := range want.Pools {
		have := all[w.Map]
		targets := make([]Value, 0, w.Len())
		for i := 0; ; i++ {
			key = AppendIndex(append(key[:0], w.Prefix...), uint32(i))
			e, ok := have[Value(key)]
			if !ok {
				break
			}
			targets = append(targets, e.Data)
		}
		if len(targets) > 0 {
			pools = append(pools, w.withOrder(targets))
		}
	}
	if elements == nil && pools == nil {
		return nil
	}
	return NewPart(elements, pools)
}
