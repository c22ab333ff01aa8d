package nft

import (
	"maps"
	"slices"

	"nftproxy/internal/treap"
)

// declared is the set as Plan declares it: with a size that leaves room for half
// as many elements again as it is to hold at first, and for Room at least.
//
// A kernel that knows the size of a set without time-outs keeps it in a hash with
// a fixed number of buckets. Without one it takes a hash that grows: looking up,
// adding and walking through it each cost more (BenchmarkApply in nft/kernel loads
// 110,000 elements in 124 ms with sizes and in 233 without), and a dump that meets
// it growing is incomplete.
func (s *Set) declared(elements int) *Set {
	if s.Room == 0 {
		return s
	}
	d := *s
	// The kernel takes 4/3 of the size in buckets, rounded up to a power of two
	// (nft_hash_buckets): at 3 * 2^k nothing is rounded up.
	d.Size, d.Room = 3, 0
	for int(d.Size) < elements+elements/2 || d.Size < s.Room {
		d.Size *= 2
	}
	return &d
}

// outgrown says that a set which was wanted with room has none for so many
// elements as it was declared.
func (s *Set) outgrown(wanted *Set, elements int) bool {
	return wanted.Room > 0 && elements > int(s.Size)
}

// sameAs says that the set is declared as wanted: where room is wanted any size
// will do, since Plan sees to that.
func (s *Set) sameAs(have *Set, f Family) bool {
	if s == have {
		return true
	}
	h := *have
	if s.Room > 0 {
		h.Size = s.Size
	}
	return s.keyword() == h.keyword() && s.declaration(f) == h.declaration(f)
}

// planSets returns the declarations after the batch. A set that has outgrown its
// size is made anew, since no kernel lets a size be changed to any use: raising
// it leaves the number of buckets as it was, where it is allowed at all. All of
// its elements are added again then, and the chains that look into it are filled
// again: a set cannot be deleted while a rule refers to it.
//
// It all goes in with the one transaction. But a packet that is between two rules
// then goes on with the old ones, which look into the old set, and that is empty
// from this moment on: it is refused or dropped. There is at most one for each
// processor, and a set grows by half of what is in it each time.
func (p *tablePlan) planSets(have tableState, chains treap.Map[string, *Chain], parts treap.Map[string, *Part], counts map[string]int) []*Set {
	same := have.wanted != nil && slices.Equal(have.wanted.Sets, p.want.Sets)
	if same && !p.anyOutgrown(have.applied, counts) {
		return have.applied.Sets
	}
	id := p.want.ID()
	var sets []*Set
	for _, wanted := range p.want.Sets {
		s := have.applied.Set(wanted.Name)
		switch {
		case s == nil:
			s = wanted.declared(counts[wanted.Name])
			p.newSets = append(p.newSets, AddSet{id, s})
		case s.outgrown(wanted, counts[wanted.Name]):
			s = wanted.declared(counts[wanted.Name])
			p.remake(s, chains, parts)
		}
		sets = append(sets, s)
	}
	return sets
}

// anyOutgrown looks only at sets that get elements.
func (p *tablePlan) anyOutgrown(have *Table, counts map[string]int) bool {
	for name, c := range p.elements {
		if len(c.added) > 0 && have.Set(name).outgrown(p.want.Set(name), counts[name]) {
			return true
		}
	}
	return false
}

// remake makes the set anew, with all its elements.
func (p *tablePlan) remake(s *Set, chains treap.Map[string, *Chain], parts treap.Map[string, *Part]) {
	id := p.want.ID()
	for _, c := range chains.All() {
		if !c.refersTo(s.Name) || p.refilled[c.Name] {
			continue
		}
		p.refilled[c.Name] = true
		p.emptied = append(p.emptied, FlushChain{id, c.Name})
		if c.unknown() {
			// One that was found and that nobody wants: nothing leads to it any
			// more after this batch.
			p.unfilled = append(p.unfilled, c.Name)
			continue
		}
		p.refills = append(p.refills, AddRules{id, c})
	}
	p.emptied = append(p.emptied, DeleteSet{id, s.Name})
	p.remade = append(p.remade, AddSet{id, s})
	all := &elementChanges{}
	for name, part := range parts.All() {
		part.all(func(e Element) {
			if e.Set == s.Name {
				all.added = append(all.added, OwnedElement{e, name})
			}
		})
	}
	p.elements[s.Name] = all
}

// counted is how many elements each set has after the changes.
func (p *tablePlan) counted(have map[string]int) map[string]int {
	if len(p.elements) == 0 {
		return have
	}
	counts := maps.Clone(have)
	if counts == nil {
		counts = map[string]int{}
	}
	for name, c := range p.elements {
		counts[name] += len(c.added) - len(c.gone)
	}
	return counts
}

// refersTo says whether a rule of the chain looks into the set or map, as far as
// that is known: an Unknown rule may look into any.
func (c *Chain) refersTo(set string) bool {
	return c.any(func(s Statement) bool {
		name, _ := setOf(s)
		return name == set || s == Unknown{}
	})
}

// unknown says that a reader did not recognise all of the chain's rules.
func (c *Chain) unknown() bool {
	return c.any(func(s Statement) bool { return s == Unknown{} })
}

// any says whether something holds for one of the chain's statements.
func (c *Chain) any(holds func(Statement) bool) bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool { return slices.ContainsFunc(r, holds) })
}

// setOf is the set or map that a statement refers to, and its kind as nft's
// keyword; empty for one that refers to none.
func setOf(s Statement) (name, kind string) {
	switch s := s.(type) {
	case InSet:
		return s.Set, "set"
	case VMap:
		return s.Map, "map"
	case DNAT:
		return s.Map, "map"
	case Update:
		return s.Map, "map"
	}
	return "", ""
}
