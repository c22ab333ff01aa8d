package nft

// remakeSet replaces a set, with all its elements. No kernel lets a set's size be changed
// to any use: raising it leaves the number of buckets as it was, where it is allowed at
// all. So the set is deleted and declared again, as s. A set cannot be deleted
// while a rule refers to it, so the chains that look into it are emptied before, and
// filled again after it. Then all its elements are added again.
//
// All of it goes in with one transaction. But a packet that is between two rules goes on
// with the old ones. They look into the old set, which is empty from this moment on, so
// the packet is refused or dropped. There is at most one such packet for each processor,
// and a set grows by half of what is in it each time.
func (p *tablePlan) remakeSet(s *Set) {
	id := p.want.ID()
	for _, c := range p.next.applied.Chains.All() {
		if c.RefersTo(s.Name) && !p.emptied[c.Name] {
			p.rewriteChain(c)
		}
	}
	p.phases.addOp(phaseDeleteRemade, DeleteSet{id, s.Name})
	p.phases.addOp(phaseAddRemade, AddSet{id, s})
	p.elements[s.Name] = &elementChanges{added: p.elementsOf(s.Name)}
}

// rewriteChain empties a chain that looks into a set which is replaced, and fills it
// again behind the set.
func (p *tablePlan) rewriteChain(c *Chain) {
	p.emptyChain(c.Name)
	if c.unknown() {
		// It was found, and it is idle: nothing leads to it. Its rules cannot be
		// written, so it stays empty.
		p.next.applied.Chains = p.next.applied.Chains.Set(c.Name, &Chain{Name: c.Name})
		return
	}
	p.fillChain(phaseRules, c)
}

// elementsOf are all elements of the set after the batch.
func (p *tablePlan) elementsOf(set string) []OwnedElement {
	var all []OwnedElement
	for name, part := range p.next.applied.Parts.All() {
		part.all(func(e Element) {
			if e.Set == set {
				all = append(all, OwnedElement{e, name})
			}
		})
	}
	return all
}
