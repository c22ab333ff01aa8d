package nft

import (
	"cmp"
	"slices"
	"strings"

	"nftproxy/model/sorted"
)

// Targets are the data of a pool's elements.
type Targets = sorted.List[Value]

// NewTargets returns targets in any order. It sorts and keeps what it is given.
func NewTargets(values ...Value) Targets {
	slices.Sort(values)
	return sorted.Of(slices.Compact(values))
}

// Compare orders values as byte strings.
func (v Value) Compare(o Value) int { return strings.Compare(string(v), string(o)) }

// Pool is a list of interchangeable elements of a data map, with the keys Prefix.0 to
// Prefix.n-1, one for each target. The program does not say which target has which
// index. Plan leaves each target where it is, so one replaced target is one replaced
// element.
type Pool struct {
	Map     string
	Prefix  Value
	Targets Targets
	// Row, if not nil, has the targets of all elements: then one target may have several. Targets has each once.
	Row *Row
	// order says which target has which index. It is nil in a program. In a State, nil
	// means the order of Targets. A pool that a kernel has in another order has no
	// Targets after Adopt, only an order.
	order *order
}

// Row has a target for each element of a pool.
type Row struct {
	// Slots are sorted, and Plan chooses which element has which; with Fixed they are in the order of the elements.
	Slots []Value
	Fixed bool
}

func comparePools(a, b Pool) int {
	return cmp.Or(cmp.Compare(a.Map, b.Map), cmp.Compare(a.Prefix, b.Prefix))
}

// Len is the number of elements.
func (p *Pool) Len() int {
	switch {
	case p.order != nil:
		return p.order.slots.count
	case p.Row != nil:
		return len(p.Row.Slots)
	}
	return p.Targets.Len()
}

// element is the pool's element at an index.
func (p *Pool) element(i int, target Value) Element {
	return Element{Set: p.Map, Key: p.Prefix.WithIndex(i), Data: target}
}

// all yields every element. The keys are cut from one string, so that the keys of a
// large pool cost one allocation.
func (p *Pool) all(yield func(Element)) {
	size := len(p.Prefix) + indexLen
	keys := make([]byte, 0, size*p.Len())
	for i := range p.Len() {
		keys = AppendIndex(append(keys, p.Prefix...), uint32(i))
	}
	text := Value(keys)
	for i, target := range p.byIndex() {
		yield(Element{Set: p.Map, Key: text[i*size : (i+1)*size], Data: target})
	}
}

// withOrder is the pool with the targets that it has in a kernel, by index.
func (p Pool) withOrder(targets []Value) Pool {
	if !slices.Equal(p.byIndex(), targets) {
		p.Targets, p.Row, p.order = Targets{}, nil, &order{slots: slotsOf(targets)}
	}
	return p
}

// byIndex is the targets by index, as a slice.
func (p *Pool) byIndex() []Value {
	switch {
	case p.order != nil && len(p.order.slots.pages) == 1:
		return p.order.slots.pages[0]
	case p.order != nil:
		return slices.Concat(p.order.slots.pages...)
	case p.Row != nil:
		return p.Row.Slots
	case !p.Targets.Long():
		return p.Targets.Few()
	}
	return slices.AppendSeq(make([]Value, 0, p.Len()), p.Targets.All())
}

// slotChange is an index that gets another target. An empty Value stands for none.
type slotChange struct {
	index    int
	from, to Value
}

// placeTargets returns the wanted pool with an order, and the changes that lead there,
// sorted by index. Targets that have (nil for no pool) has already stay at their
// index. New targets fill the gaps in sorted order. Of two long pools the cost follows
// the changes.
func placeTargets(have, want *Pool) (Pool, []slotChange) {
	placed := *want
	if have == nil {
		have = &Pool{}
	}
	if want.Row != nil {
		return placeRow(have, want)
	}
	if want.Targets.Long() {
		known := have.order
		if known == nil && have.Row == nil && have.Targets.Long() {
			known = newOrder(have.byIndex())
		}
		if known != nil && known.at.Len() > 0 {
			if changes, few := known.changes(have.Targets, want.Targets); few {
				placed.order = known.after(changes, want.Targets.Len())
				return placed, changes
			}
		}
	}
	old, wanted := have.byIndex(), want.byIndex()
	targets := arrangeTargets(old, wanted)
	if want.Targets.Long() {
		placed.order = newOrder(targets)
	} else if !slices.Equal(targets, wanted) {
		placed.order = &order{slots: slotsOf(targets)}
	}
	return placed, compareSlots(old, targets)
}

// placeRow does the same for a pool with a row. Its cost is that of the row.
func placeRow(have, want *Pool) (Pool, []slotChange) {
	placed := *want
	if have.order == nil && have.Row == want.Row {
		return placed, nil
	}
	old, targets := have.byIndex(), want.Row.Slots
	if !want.Row.Fixed {
		targets = arrangeTargets(old, targets)
	}
	if !slices.Equal(targets, want.Row.Slots) {
		placed.order = &order{slots: slotsOf(targets)}
	}
	return placed, compareSlots(old, targets)
}

// arrangeTargets orders want (sorted). A target that have holds at an index which still exists stays there, as long as
// want has it often enough. The others fill the gaps in want's order. So the fewest elements change.
func arrangeTargets(have, want []Value) []Value {
	result := make([]Value, len(want))
	used := make([]bool, len(want))
	// taken says how many of a target's run in want are used, by the index where the run begins.
	taken := make([]int, len(want))
	for i := range min(len(have), len(want)) {
		first, found := slices.BinarySearch(want, have[i])
		if !found {
			continue
		}
		if at := first + taken[first]; at < len(want) && want[at] == have[i] {
			result[i], used[at] = have[i], true
			taken[first]++
		}
	}
	next := 0
	for i := range result {
		if result[i] != "" {
			continue
		}
		for used[next] {
			next++
		}
		result[i] = want[next]
		next++
	}
	return result
}

// compareSlots compares index by index. Either may be the longer one.
func compareSlots(have, want []Value) []slotChange {
	var changes []slotChange
	for i := range max(len(have), len(want)) {
		c := slotChange{index: i}
		if i < len(have) {
			c.from = have[i]
		}
		if i < len(want) {
			c.to = want[i]
		}
		if c.from != c.to {
			changes = append(changes, c)
		}
	}
	return changes
}

// order says which target of a pool has which index. It never changes.
type order struct {
	slots slots
	// at says where each target is. Only the order of a long pool has it, and only if
	// Plan made the order.
	at sorted.List[spot]
}

// spot is where a target is.
type spot struct {
	target Value
	index  int
}

// Compare orders spots by their targets.
func (s spot) Compare(o spot) int { return s.target.Compare(o.target) }

// newOrder has each of the targets once.
func newOrder(targets []Value) *order {
	spots := make([]spot, len(targets))
	for i, t := range targets {
		spots[i] = spot{t, i}
	}
	slices.SortFunc(spots, spot.Compare)
	return &order{slotsOf(targets), sorted.Of(spots)}
}

// changes is the same changes that arrangeTargets and compareSlots would give. It gives up if they are not few: a
// single one costs more here.
func (o *order) changes(have, want Targets) (changes []slotChange, few bool) {
	var indices []int
	var coming []Value
	for c := range sorted.Diff(have, want) {
		if !sorted.Few(len(indices)+len(coming), want.Len()) {
			return nil, false
		}
		if c.Old != nil {
			indices = append(indices, o.at.Find(spot{target: *c.Old}).index)
		} else {
			coming = append(coming, *c.New)
		}
	}
	// The pool loses indices, or gains some.
	for i := want.Len(); i < have.Len(); i++ {
		indices = append(indices, i)
		if target := o.slots.at(i); want.Find(target) != nil {
			coming = append(coming, target)
		}
	}
	for i := have.Len(); i < want.Len(); i++ {
		indices = append(indices, i)
	}
	slices.Sort(indices)
	slices.Sort(coming)
	for _, i := range slices.Compact(indices) {
		c := slotChange{index: i}
		if i < have.Len() {
			c.from = o.slots.at(i)
		}
		if i < want.Len() {
			c.to, coming = coming[0], coming[1:]
		}
		changes = append(changes, c)
	}
	return changes, true
}

// after is the order after the changes, when the pool has n elements.
func (o *order) after(changes []slotChange, n int) *order {
	where := map[Value]int{}
	for _, c := range changes {
		if _, moved := where[c.from]; c.from != "" && !moved {
			where[c.from] = -1
		}
		if c.to != "" {
			where[c.to] = c.index
		}
	}
	edits := make([]sorted.Edit[spot], 0, len(where))
	for target, index := range where {
		edits = append(edits, sorted.Edit[spot]{Item: spot{target, index}, Gone: index < 0})
	}
	slices.SortFunc(edits, func(a, b sorted.Edit[spot]) int { return a.Item.Compare(b.Item) })
	return &order{o.slots.after(changes, n), o.at.Edit(edits)}
}
