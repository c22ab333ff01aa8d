package nft

import (
	"slices"
	"time"

	"nftproxy/model/treap"
)

// planChains adds new chains, fills those whose rules change, and deletes those
// that have been idle for IdleLife.
func (p *tablePlan) planChains() {
	id := p.want.ID()
	p.next.idle, p.next.idleRules = map[string]time.Time{}, map[string]time.Time{}
	chains := p.want.Chains
	for c := range treap.Diff(p.have.applied.Chains, p.want.Chains) {
		switch {
		case !c.HadOld:
			p.addChain(c.New)
		case c.HasNew:
			next := p.withIdleRules(c.Old, c.New)
			if !c.Old.sameRules(next, id.Family) {
				p.changeChain(next)
			}
			if next != c.New {
				chains = chains.Set(c.Key, next)
			}
		default:
			since, known := p.have.idle[c.Key]
			// A base chain that is not wanted is not ours. Plan deletes it at once: nothing
			// can point to it, and packets would go on to meet it.
			if c.Old.Hook != nil || known && p.now.Sub(since) >= IdleLife {
				p.phases.addOp(phaseFlushes, FlushChain{id, c.Key})
				p.phases.addOp(phaseDeleteChains, DeleteChain{id, c.Key})
				continue
			}
			if !known {
				since = p.now
			}
			p.next.idle[c.Key] = since
			chains = chains.Set(c.Key, c.Old)
		}
	}
	p.next.applied.Chains = chains
}

// addChain adds a new chain with its rules.
func (p *tablePlan) addChain(c *Chain) {
	add := AddChain{p.want.ID(), c}
	if c.Hook != nil && p.inUse() {
		p.phases.addOp(phaseBaseChains, add)
		p.emptied[c.Name] = true
		p.fillChain(phaseRules, c)
		return
	}
	p.phases.addOp(phaseNewChains, add)
	p.fillChain(phaseNewRules, c)
}

// changeChain gives the chain other rules. Nothing leads to an idle chain, so it
// gets them ahead of the elements that will.
func (p *tablePlan) changeChain(c *Chain) {
	if _, idle := p.have.idle[c.Name]; idle {
		p.phases.addOp(phaseIdleFlushes, FlushChain{p.want.ID(), c.Name})
		p.fillChain(phaseNewRules, c)
		return
	}
	p.emptyChain(c.Name)
	p.fillChain(phaseRules, c)
}

// emptyChain takes the rules of a chain that packets may come to.
func (p *tablePlan) emptyChain(chain string) {
	p.phases.addOp(phaseFlushes, FlushChain{p.want.ID(), chain})
	p.emptied[chain] = true
}

// fillChain adds the rules of an empty chain.
func (p *tablePlan) fillChain(at phase, c *Chain) {
	if len(c.Rules) > 0 {
		p.phases.addOp(at, AddRules{p.want.ID(), c})
	}
}

// SameHook says whether both are base chains of the same hook, or neither is a base chain.
func (c *Chain) SameHook(o *Chain) bool {
	return (c.Hook == nil) == (o.Hook == nil) && (c.Hook == nil || *c.Hook == *o.Hook)
}

func (c *Chain) sameRules(o *Chain, f Family) bool {
	return slices.EqualFunc(c.Rules, o.Rules, func(a, b Rule) bool { return a.Text(f) == b.Text(f) })
}

// RefersTo says whether a rule of the chain looks into the set or map, as far as
// that is known: an Unknown rule may look into any.
func (c *Chain) RefersTo(set string) bool {
	return c.hasStatement(func(s Statement) bool {
		name, _ := SetOf(s)
		return name == set || s == Unknown{}
	})
}

// unknown says that a reader did not recognise all of the chain's rules.
func (c *Chain) unknown() bool {
	return c.hasStatement(func(s Statement) bool { return s == Unknown{} })
}

// hasStatement says whether something holds for one of the chain's statements.
func (c *Chain) hasStatement(holds func(Statement) bool) bool {
	return slices.ContainsFunc(c.Rules, func(r Rule) bool { return slices.ContainsFunc(r, holds) })
}

// SetOf is the set or map that a statement refers to, and its kind as nft's
// keyword; empty for one that refers to none.
func SetOf(s Statement) (name, kind string) {
	switch s := s.(type) {
	case InSet:
		return s.Set, "set"
	case VMap:
		return s.Map, "map"
	case DNAT:
		return s.Map, "map"
	case Update:
		if len(s.Data) == 0 {
			return s.Map, "set"
		}
		return s.Map, "map"
	}
	return "", ""
}
