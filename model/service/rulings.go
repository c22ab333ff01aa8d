package service

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/treap"
)

// rules returns what decisions depend on now.
func (b *Builder) rules() *rules {
	c := &b.claims
	admitted := map[*Service]bool{} // a service asks for each of its claims, and each time it costs all its addresses
	return &rules{
		protected: c.protected, reserved: c.reserved, node: b.snapshot.Node.Addresses,
		ranges: b.rangeLists.admits,
		sources: func(s *Service) bool {
			is, known := admitted[s]
			if !known {
				is = b.sourceLists.admits(s)
				admitted[s] = is
			}
			return is
		},
		asked: c.at,
		hosts: func(a netip.Addr) (list []*Service) {
			for name := range c.hosts[a] {
				if s := c.service(name); s != nil {
					list = append(list, s)
				}
			}
			return list
		},
	}
}

// decideClaims decides what is touched, and puts what has changed into the snapshot.
func (b *Builder) decideClaims() {
	c := &b.claims
	if len(c.touched) == 0 {
		return
	}
	c.settle()
	rules, decided := b.rules(), &decisions{owners: map[claimKey]Name{}}
	for _, family := range ip.Families() { // numbers of the node matter to the node's addresses
		key := Claim{Addr: family.Unspecified()}.packed()
		if numbers := c.touched[key]; numbers != nil {
			delete(c.touched, key)
			rules.decide(numbers, c.lost, decided)
			for _, a := range c.reserved.NodePortAddresses {
				for at := range numbers.sockets {
					if family.Has(a) {
						c.touchSocket(a, at, false)
					}
				}
			}
		}
	}
	for _, t := range c.touched {
		rules.decide(t, c.lost, decided)
	}
	c.touched = map[packedClaim]*touched{}
	b.snapshot.Owners.names = b.snapshot.Owners.names.Apply(treap.Edits(decided.owners))
	b.publish(append(decided.gone, decided.rulings...))
}

// publish puts rulings into the snapshot. Of several on a claim of a service the last one counts.
func (b *Builder) publish(rulings []ruling) {
	slices.SortStableFunc(rulings, func(a, b ruling) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.claim, b.claim))
	})
	conflicts, restrictions := map[Name]*Conflicts{}, map[Name]*Restrictions{}
	for len(rulings) > 0 {
		name, n := rulings[0].name, 1
		for n < len(rulings) && rulings[n].name == name {
			n++
		}
		before, walled := b.snapshot.Conflicts.At(name).all(), b.snapshot.Restrictions.At(name).all()
		refusals, walls := editsOf(rulings[:n], walled)
		rulings = rulings[n:]
		if after := before.Apply(refusals); after != before {
			conflicts[name] = nil
			if after.Len() > 0 {
				conflicts[name] = &Conflicts{after}
			}
		}
		if after := walled.Apply(walls); after != walled {
			restrictions[name] = nil
			if after.Len() > 0 {
				restrictions[name] = &Restrictions{after}
			}
		}
	}
	b.snapshot.Conflicts = b.snapshot.Conflicts.Apply(treap.Edits(conflicts))
	b.snapshot.Restrictions = b.snapshot.Restrictions.Apply(treap.Edits(restrictions))
}

// editsOf turns rulings on one service into edits of its Conflicts and its Restrictions, of which it has those before.
func editsOf(rulings []ruling, before treap.Map[claimKey, *Restriction]) (refusals []treap.Edit[claimKey, Protection],
	walls []treap.Edit[claimKey, *Restriction]) {
	for i := range rulings {
		r := &rulings[i]
		if i+1 < len(rulings) && rulings[i+1].claim == r.claim {
			continue
		}
		refusals = append(refusals, treap.Edit[claimKey, Protection]{Key: r.claim, Value: r.refused, Gone: !r.lost})
		wall := treap.Edit[claimKey, *Restriction]{Key: r.claim, Gone: r.behind.by == nil}
		if !wall.Gone {
			wall.Value = r.restriction(before.At(r.claim))
		}
		walls = append(walls, wall)
	}
	return refusals, walls
}
