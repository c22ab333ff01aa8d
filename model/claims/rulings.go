package claims

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// Within says whether the lists that a service asks for are within the bounds on all services.
type Within struct{ Sources, Ranges func(*service.Service) bool }

// decided has the claims at an address that were decided last.
func (c *Book) decided(a netip.Addr) claimList {
	if t := c.touched[a]; t != nil {
		return t.before
	}
	return c.asked[a]
}

// Decide decides what is touched, and puts what has changed into the Conflicts, Owners and Restrictions of a snapshot.
func (c *Book) Decide(s *service.Snapshot, lists Within) {
	if len(c.touched) == 0 {
		return
	}
	c.settle()
	admitted, sources := map[*service.Service]bool{}, lists.Sources
	lists.Sources = func(s *service.Service) bool { // once, since it costs all addresses of the service
		is, known := admitted[s]
		if !known {
			is = sources(s)
			admitted[s] = is
		}
		return is
	}
	r := &round{Book: c, last: s, Within: lists, owners: map[service.ClaimKey]service.Name{}}
	for _, family := range ip.Families() { // numbers of the node matter to the node's addresses
		if numbers := c.touched[family.Unspecified()]; numbers != nil {
			r.decide(family.Unspecified(), numbers)
			for _, a := range c.reserved.NodePortAddresses {
				for at := range numbers.sockets {
					if family.Has(a) {
						c.touchSocket(a, at, false)
					}
				}
			}
		}
	}
	for a, t := range c.touched {
		if !a.IsUnspecified() {
			r.decide(a, t)
		}
	}
	c.touched = map[netip.Addr]*touched{}
	s.Owners = s.Owners.Edit(r.owners)
	publish(s, r.rulings)
}

// publish puts rulings into a snapshot. Of several on a claim of a service the last one counts.
func publish(s *service.Snapshot, rulings []ruling) {
	slices.SortStableFunc(rulings, func(a, b ruling) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.claim, b.claim))
	})
	conflicts, restrictions := map[service.Name]*service.Conflicts{}, map[service.Name]*service.Restrictions{}
	for len(rulings) > 0 {
		name, n := rulings[0].name, 1
		for n < len(rulings) && rulings[n].name == name {
			n++
		}
		before, walled := s.Conflicts.At(name), s.Restrictions.At(name)
		refusals, walls := editsOf(rulings[:n], walled)
		rulings = rulings[n:]
		if after := before.Edit(refusals); after != before {
			conflicts[name] = after
		}
		if after := walled.Edit(walls); after != walled {
			restrictions[name] = after
		}
	}
	s.Conflicts = s.Conflicts.Apply(treap.Edits(conflicts))
	s.Restrictions = s.Restrictions.Apply(treap.Edits(restrictions))
}

// editsOf turns rulings on one service into edits of its Conflicts and its Restrictions, of which it has those before.
func editsOf(rulings []ruling, before *service.Restrictions) (
	refusals []treap.Edit[service.ClaimKey, service.Protection],
	walls []treap.Edit[service.ClaimKey, *service.Restriction]) {
	for i := range rulings {
		r := &rulings[i]
		if i+1 < len(rulings) && rulings[i+1].claim == r.claim {
			continue
		}
		refusals = append(refusals, treap.Edit[service.ClaimKey, service.Protection]{
			Key: r.claim, Value: r.refused, Gone: !r.lost,
		})
		wall := treap.Edit[service.ClaimKey, *service.Restriction]{Key: r.claim, Gone: r.behind.by == nil}
		if !wall.Gone {
			wall.Value = r.restriction(before.At(r.claim))
		}
		walls = append(walls, wall)
	}
	return refusals, walls
}
