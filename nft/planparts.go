package nft

import (
	"maps"
	"slices"

	"nftproxy/model/treap"
)

// elementChanges are the changes of one set's elements. Deletions come before additions,
// so that a key can move from one part to another.
type elementChanges struct {
	gone, added []OwnedElement
}

// planParts finds the changes of all elements, and the parts after the batch, each pool
// in its order.
func (p *tablePlan) planParts() {
	base := p.have.applied.Parts
	if p.have.wanted != nil {
		base = p.have.wanted.Parts
	}
	parts := p.have.applied.Parts
	if parts.Len() == 0 {
		p.reserveElements()
	}
	var edits []treap.Edit[string, *Part]
	for c := range treap.Diff(base, p.want.Parts) {
		old := parts.At(c.Key)
		if !c.HasNew {
			edits = append(edits, treap.Edit[string, *Part]{Key: c.Key, Gone: true})
			old.all(func(e Element) { p.deleteElement(c.Key, e) })
			continue
		}
		placed := p.changePart(c.Key, old, c.New)
		if parts.Len() > 0 {
			edits = append(edits, treap.Edit[string, *Part]{Key: c.Key, Value: placed})
		}
	}
	p.next.applied.Parts = parts.Apply(edits)
	if parts.Len() == 0 {
		p.next.applied.Parts = p.want.Parts // nothing had a place yet
	}
}

// reserveElements makes room for all elements of a first program. It may have hundreds
// of thousands, and slices that grow to that would copy each several times.
func (p *tablePlan) reserveElements() {
	sizes := map[string]int{}
	for _, part := range p.want.Parts.All() {
		part.countBySet(sizes)
	}
	for set, n := range sizes {
		p.changesOf(set).added = make([]OwnedElement, 0, n)
	}
}

// changePart returns the part as it is after the batch.
func (p *tablePlan) changePart(name string, old, want *Part) *Part {
	if old == nil {
		want.all(func(e Element) { p.addElement(name, e) })
		return want
	}
	mergeSorted(old.Elements, want.Elements, compareKeys, func(o, w *Element) {
		if o != nil && w != nil && *o == *w {
			return
		}
		if o != nil {
			p.deleteElement(name, *o)
		}
		if w != nil {
			p.addElement(name, *w)
		}
	})
	placed := want
	at := 0
	mergeSorted(old.Pools, want.Pools, comparePools, func(o, w *Pool) {
		if w == nil {
			o.all(func(e Element) { p.deleteElement(name, e) })
			return
		}
		pool, changes := placeTargets(o, w)
		for _, c := range changes {
			if c.from != "" {
				p.deleteElement(name, w.element(c.index, c.from))
			}
			if c.to != "" {
				p.addElement(name, w.element(c.index, c.to))
			}
		}
		if pool.order != nil {
			if placed == want {
				placed = &Part{want.Elements, slices.Clone(want.Pools)}
			}
			placed.Pools[at] = pool
		}
		at++
	})
	return placed
}

// mergeSorted walks two sorted lists and visits each key once, with the items that have it.
func mergeSorted[T any](a, b []T, compare func(a, b T) int, visit func(a, b *T)) {
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

func (p *tablePlan) changesOf(set string) *elementChanges {
	c := p.elements[set]
	if c == nil {
		c = &elementChanges{}
		p.elements[set] = c
	}
	return c
}

func (p *tablePlan) deleteElement(part string, e Element) {
	c := p.changesOf(e.Set)
	c.gone = append(withRoom(c.gone), OwnedElement{e, part})
}

func (p *tablePlan) addElement(part string, e Element) {
	c := p.changesOf(e.Set)
	c.added = append(withRoom(c.added), OwnedElement{e, part})
}

// withRoom doubles a full list: append alone would grow a long one by a quarter, and copy it each time.
func withRoom(list []OwnedElement) []OwnedElement {
	if len(list) == cap(list) {
		return slices.Grow(list, len(list)+1)
	}
	return list
}

// planElements puts the changes of elements into their phases.
func (p *tablePlan) planElements() {
	id := p.want.ID()
	for _, name := range slices.Sorted(maps.Keys(p.elements)) {
		c, gone, added := p.elements[name], phaseElements, phaseElements
		have, set := p.have.applied.Set(name), p.want.Set(name)
		if have == nil {
			gone, added = phaseNewElements, phaseNewElements
		}
		if set == nil {
			set = have
		}
		if have != nil && set.Verdicts && len(p.emptied) > 0 {
			gone = phaseOldVerdicts
		}
		if len(c.gone) > 0 {
			p.phases.addOp(gone, DeleteElements{id, set, c.gone})
		}
		if len(c.added) > 0 {
			p.phases.addOp(added, AddElements{id, set, c.added})
		}
	}
}
