package nft

import (
	"maps"
	"slices"
	"sync"
	"time"

	"nftproxy/model/treap"
)

// planSets declares new sets, and replaces a set that has outgrown its size or is
// wanted with another declaration. No declaration of ours changes, but a set may have been
// found that was not wanted then, and is declared otherwise than it is wanted now.
func (p *tablePlan) planSets() {
	found, sets := p.have.applied.Sets, &p.next.applied.Sets
	var edits []treap.Edit[string, *Set]
	declare := func(wanted *Set) *Set {
		s := wanted.declared(p.next.counts.At(wanted.Name))
		edits = append(edits, treap.Edit[string, *Set]{Key: s.Name, Value: s})
		return s
	}
	for c := range treap.Diff(p.have.knownSets(), p.want.Sets) {
		switch have := found.At(c.Key); {
		case !c.HasNew: // idle
		case have == nil:
			p.phases.addOp(phaseNewSets, AddSet{p.want.ID(), declare(c.New)})
		case !c.New.sameAs(have, p.want.Family) || have.outgrown(c.New, p.next.counts.At(c.Key)):
			p.remakeSet(declare(c.New))
		}
	}
	*sets = sets.Apply(edits)
	edits = nil
	for _, name := range slices.Sorted(maps.Keys(p.elements)) {
		wanted := p.want.Set(name)
		if wanted != nil && len(p.elements[name].added) > 0 && sets.At(name).outgrown(wanted, p.next.counts.At(name)) {
			p.remakeSet(declare(wanted))
		}
	}
	*sets = sets.Apply(edits)
}

// knownSets are the sets that the last program wanted or, after Adopt, those that
// were found.
func (t tableState) knownSets() treap.Map[string, *Set] {
	if t.wanted == nil {
		return t.applied.Sets
	}
	return t.wanted.Sets
}

// planIdleSets deletes the sets that have been idle for IdleLife. A set stays as long as a
// chain refers to it: no kernel deletes it before.
func (p *tablePlan) planIdleSets() {
	idle := p.idleSets()
	p.next.idleSets = idle
	var edits []treap.Edit[string, *Set]
	referred := sync.OnceValues(func() (map[string]bool, bool) { return referredBy(p.next.applied.Chains, p.next.idle) })
	for _, name := range slices.Sorted(maps.Keys(idle)) {
		if p.now.Sub(idle[name]) < IdleLife {
			continue
		}
		// Only idle chains can refer to it.
		if names, unknown := referred(); unknown || names[name] {
			idle[name] = p.now
			continue
		}
		p.phases.addOp(phaseDeleteSets, DeleteSet{p.want.ID(), name})
		edits = append(edits, treap.Edit[string, *Set]{Key: name, Gone: true})
		delete(idle, name)
	}
	p.next.applied.Sets = p.next.applied.Sets.Apply(edits)
}

// idleSets are the sets that the program does not want, with the time since when.
func (p *tablePlan) idleSets() map[string]time.Time {
	idle := map[string]time.Time{}
	for name, since := range p.have.idleSets {
		if p.want.Set(name) == nil {
			idle[name] = since
		}
	}
	for c := range treap.Diff(p.have.knownSets(), p.want.Sets) {
		if _, already := idle[c.Key]; !c.HasNew && !already {
			idle[c.Key] = p.now
		}
	}
	return idle
}

// referredBy are the sets that the named chains refer to. Chains with an unknown rule may
// refer to others as well.
func referredBy(chains treap.Map[string, *Chain], names map[string]time.Time) (sets map[string]bool, unknown bool) {
	sets = map[string]bool{}
	for name := range names {
		c := chains.At(name)
		unknown = unknown || c.unknown()
		for _, r := range c.Rules {
			for _, s := range r {
				set, _ := SetOf(s)
				sets[set] = true
			}
		}
	}
	return sets, unknown
}
