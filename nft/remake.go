package nft

// remakeSet replaces a set, with all its elements: where a kernel lets its size be raised at all, the number of buckets
// stays. A set cannot be deleted while a rule refers to it, so the chains that look into it are emptied before, and
// filled again after it.
//
// All of it is one transaction. But a packet that is between two rules goes on with the old ones, whose set is empty
// from this moment on, so it is refused or dropped: one for each processor at most, and a set grows by half each time.
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
