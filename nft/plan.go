package nft

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"nftproxy/internal/treap"
)

// IdleChainLife is how long a shared chain stays after its last user went. It
// covers counts that go back and forth, and kernels before 6.2, which release
// a chain only some time after the map element that pointed to it.
const IdleChainLife = 10 * time.Second

// State is what the kernel holds, as far as the proxy knows. The zero State is
// a kernel without our tables; Adopt makes one from what was read. A State
// never changes: Plan returns the next one, to be kept if the batch went in.
type State struct {
	tables [2]tableState
}

type tableState struct {
	// applied is the table's contents with each pool in its order; nil where
	// there is no table.
	applied *Table
	// wanted is the program that applied came from: what has the same pointer
	// there and in the next program needs no look. Nil after Adopt.
	wanted *Table
	// replace says that the table there cannot be turned into ours.
	replace bool
	// idle holds the chains that no program wants, with the time since when.
	idle map[string]time.Time
	// counts is how many elements each set has, but for dynamic ones.
	counts map[string]int
}

// Plan returns the batch that turns the state into the wanted program, and the
// state after it. Only what differs is in the batch: nothing at all where
// nothing does. The cost follows the changes, not the program's size.
func (s State) Plan(want *Program, now time.Time) (Batch, State) {
	var b Batch
	for _, f := range Families() {
		one, next := s.PlanTable(want.Table(f), now)
		b.Ops = append(b.Ops, one.Ops...)
		s = next
	}
	return b, s
}

// PlanTable is Plan for one family's table; the other is left as it is.
func (s State) PlanTable(want *Table, now time.Time) (Batch, State) {
	p := tablePlan{want: want, now: now}
	for i, f := range Families() {
		if f == want.Family {
			s.tables[i] = p.run(s.tables[i])
		}
	}
	return Batch{Ops: p.ops}, s
}

// Due is when a Plan is next worth running although nothing changed: an idle
// chain can then go. The zero time means never.
func (s State) Due() time.Time {
	var due time.Time
	for _, t := range s.tables {
		for _, since := range t.idle {
			if at := since.Add(IdleChainLife); due.IsZero() || at.Before(due) {
				due = at
			}
		}
	}
	return due
}

// With is the state after a batch whose part for one family went in: next's
// table of that family, the receiver's of the other.
func (s State) With(f Family, next State) State {
	for i, g := range Families() {
		if f == g {
			s.tables[i] = next.tables[i]
		}
	}
	return s
}

// Applied is the program that the state holds, with each pool in the order
// that it has in the kernel. Tables that are not there are empty.
func (s State) Applied() *Program {
	p := &Program{IPv4: s.tables[0].applied, IPv6: s.tables[1].applied}
	if p.IPv4 == nil {
		p.IPv4 = &Table{Family: IPv4}
	}
	if p.IPv6 == nil {
		p.IPv6 = &Table{Family: IPv6}
	}
	return p
}

// tablePlan collects the operations for one table.
type tablePlan struct {
	want *Table
	now  time.Time
	ops  []Op

	chains, rules, flushes, ends []Op
	elements                     map[string]*elementChanges

	// newSets come first of all. The others are for sets that are made anew:
	// what takes the old ones away, the new ones, and the rules that refer to
	// them, by the chains that have been emptied; unfilled are those that stay so.
	newSets, emptied, remade, refills []Op
	refilled                          map[string]bool
	unfilled                          []string
}

// elementChanges of one set: deletions come before additions, so that a key
// can move from one part to another.
type elementChanges struct {
	gone, added []OwnedElement
}

func (p *tablePlan) run(have tableState) tableState {
	id := p.want.ID()
	if have.replace {
		p.ops = append(p.ops, DeleteTable{id})
	}
	if have.applied == nil || have.replace {
		p.ops = append(p.ops, AddTable{id})
		have = tableState{applied: &Table{Family: id.Family, Name: id.Name}}
	}
	p.elements, p.refilled = map[string]*elementChanges{}, map[string]bool{}
	chains, idle := p.planChains(have)
	parts := p.planParts(have)
	counts := p.counted(have.counts)
	sets := p.planSets(have, chains, parts, counts)
	for _, name := range p.unfilled {
		chains = chains.Set(name, &Chain{Name: name})
	}
	p.assemble(have.applied)
	return tableState{
		applied: &Table{id.Family, id.Name, sets, chains, parts}, wanted: p.want,
		idle: idle, counts: counts,
	}
}

// planChains returns the chains after the batch, idle ones included.
func (p *tablePlan) planChains(have tableState) (treap.Map[string, *Chain], map[string]time.Time) {
	id := p.want.ID()
	chains := p.want.Chains
	idle := map[string]time.Time{}
	for c := range treap.Diff(have.applied.Chains, p.want.Chains) {
		switch {
		case !c.HadOld:
			p.chains = append(p.chains, AddChain{id, c.New})
			p.addRules(c.New)
		case c.HasNew:
			p.changeChain(c.Old, c.New)
		default:
			since, known := have.idle[c.Key]
			// A base chain is somebody else's. Nothing can point to it, and it
			// would go on judging packets.
			if c.Old.Hook != nil || known && p.now.Sub(since) >= IdleChainLife {
				// Flushed first: idle chains may still jump to each other.
				p.flushes = append(p.flushes, FlushChain{id, c.Key})
				p.ends = append(p.ends, DeleteChain{id, c.Key})
				continue
			}
			if !known {
				since = p.now
			}
			idle[c.Key] = since
			chains = chains.Set(c.Key, c.Old)
		}
	}
	return chains, idle
}

func (p *tablePlan) addRules(c *Chain) {
	if len(c.Rules) > 0 {
		p.rules = append(p.rules, AddRules{p.want.ID(), c})
	}
}

func (p *tablePlan) changeChain(old, want *Chain) {
	id := p.want.ID()
	if !old.sameRules(want, id.Family) {
		p.flushes = append(p.flushes, FlushChain{id, want.Name})
		p.addRules(want)
	}
}

func (c *Chain) sameHook(o *Chain) bool {
	return (c.Hook == nil) == (o.Hook == nil) && (c.Hook == nil || *c.Hook == *o.Hook)
}

func (c *Chain) sameRules(o *Chain, f Family) bool {
	return slices.EqualFunc(c.Rules, o.Rules, func(a, b Rule) bool { return a.Text(f) == b.Text(f) })
}

// planParts returns the parts after the batch, each pool in its order.
func (p *tablePlan) planParts(have tableState) treap.Map[string, *Part] {
	base := have.applied.Parts
	if have.wanted != nil {
		base = have.wanted.Parts
	}
	parts := have.applied.Parts
	if parts.Len() == 0 {
		p.reserve()
	}
	var edits []treap.Edit[string, *Part]
	for c := range treap.Diff(base, p.want.Parts) {
		old := parts.At(c.Key)
		if !c.HasNew {
			edits = append(edits, treap.Edit[string, *Part]{Key: c.Key, Gone: true})
			old.all(func(e Element) { p.gone(c.Key, e) })
			continue
		}
		placed := place(old, c.New)
		if parts.Len() > 0 {
			edits = append(edits, treap.Edit[string, *Part]{Key: c.Key, Value: placed})
		}
		p.changePart(c.Key, old, placed)
	}
	if parts.Len() == 0 {
		return p.want.Parts // nothing had a place yet
	}
	return parts.Apply(edits)
}

// reserve makes room for all that is wanted: a first program may have hundreds
// of thousands of elements, and growing to that copies each several times.
func (p *tablePlan) reserve() {
	sizes := map[string]int{}
	for _, part := range p.want.Parts.All() {
		for i := range part.Elements {
			sizes[part.Elements[i].Set]++
		}
		for i := range part.Pools {
			sizes[part.Pools[i].Map] += len(part.Pools[i].Targets)
		}
	}
	for set, n := range sizes {
		p.of(set).added = make([]OwnedElement, 0, n)
	}
}

func (p *tablePlan) changePart(name string, old, want *Part) {
	if old == nil {
		want.all(func(e Element) { p.added(name, e) })
		return
	}
	merge(old.Elements, want.Elements, compareKeys, func(o, w *Element) {
		if o != nil && w != nil && *o == *w {
			return
		}
		if o != nil {
			p.gone(name, *o)
		}
		if w != nil {
			p.added(name, *w)
		}
	})
	merge(old.Pools, want.Pools, comparePools, func(o, w *Pool) { p.changePool(name, o, w) })
}

// changePool compares index by index; either pool may be missing.
func (p *tablePlan) changePool(name string, old, want *Pool) {
	var o, w []Value
	if old != nil {
		o = old.Targets
	}
	if want != nil {
		w = want.Targets
	}
	for i := range max(len(o), len(w)) {
		if i < len(o) && i < len(w) && o[i] == w[i] {
			continue
		}
		if i < len(o) {
			p.gone(name, old.element(i))
		}
		if i < len(w) {
			p.added(name, want.element(i))
		}
	}
}

// merge walks two sorted lists and visits each key once, with what either has.
func merge[T any](a, b []T, compare func(a, b T) int, visit func(a, b *T)) {
	for len(a) > 0 || len(b) > 0 {
		c := 0
		switch {
		case len(a) == 0:
			c = 1
		case len(b) == 0:
			c = -1
		default:
			c = compare(a[0], b[0])
		}
		switch {
		case c < 0:
			visit(&a[0], nil)
			a = a[1:]
		case c > 0:
			visit(nil, &b[0])
			b = b[1:]
		default:
			visit(&a[0], &b[0])
			a, b = a[1:], b[1:]
		}
	}
}

func (p *tablePlan) of(set string) *elementChanges {
	c := p.elements[set]
	if c == nil {
		c = &elementChanges{}
		p.elements[set] = c
	}
	return c
}

func (p *tablePlan) gone(part string, e Element) {
	c := p.of(e.Set)
	c.gone = append(c.gone, OwnedElement{e, part})
}

func (p *tablePlan) added(part string, e Element) {
	c := p.of(e.Set)
	c.added = append(c.added, OwnedElement{e, part})
}

// assemble puts the operations in an order in which each finds what it needs:
// chains before rules and elements that point to them, deletions of elements
// before additions, and chains go last.
func (p *tablePlan) assemble(have *Table) {
	id := p.want.ID()
	p.ops = slices.Concat(p.ops, p.newSets, p.chains, p.flushes, p.rules, p.emptied, p.remade, p.refills)
	for _, name := range slices.Sorted(maps.Keys(p.elements)) {
		c := p.elements[name]
		set := p.want.Set(name)
		if set == nil {
			set = have.Set(name)
		}
		if len(c.gone) > 0 {
			p.ops = append(p.ops, DeleteElements{id, set, c.gone})
		}
		if len(c.added) > 0 {
			p.ops = append(p.ops, AddElements{id, set, c.added})
		}
	}
	p.ops = append(p.ops, p.ends...)
}

// place returns want with each pool in an order that leaves the targets that
// have's pool has already where they are.
func place(have, want *Part) *Part {
	if have == nil {
		return want
	}
	placed := want
	for i := range want.Pools {
		at, found := slices.BinarySearchFunc(have.Pools, want.Pools[i], comparePools)
		if !found {
			continue
		}
		targets := arrange(have.Pools[at].Targets, want.Pools[i].Targets)
		if slices.Equal(targets, want.Pools[i].Targets) {
			continue
		}
		if placed == want {
			placed = &Part{want.Elements, slices.Clone(want.Pools)}
		}
		placed.Pools[i].Targets = targets
	}
	return placed
}

// arrange orders want (sorted, no duplicates): what have holds at an index that
// still exists stays there, the rest fills the gaps in want's order.
func arrange(have, want []Value) []Value {
	result := make([]Value, len(want))
	stays := make([]bool, len(want))
	for i := range min(len(have), len(want)) {
		if at, found := slices.BinarySearchFunc(want, have[i], cmp.Compare[Value]); found && !stays[at] {
			result[i], stays[at] = have[i], true
		}
	}
	next := 0
	for i := range result {
		if result[i] != "" {
			continue
		}
		for stays[next] {
			next++
		}
		result[i] = want[next]
		next++
	}
	return result
}
