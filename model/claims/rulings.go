package claims

import (
	"cmp"
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// ruling is on one claim of a service. The zero value, but for the first two fields, is that the service gets it.
type ruling struct {
	name  service.Name
	claim service.ClaimKey
	// lost says that the service does not get the claim, and refused why, as in a Conflict.
	lost    bool
	refused service.Protection
	// behind is the service whose firewall restricts the claim; nobody's right for none. closed says that the firewall's
	// ranges are not within the bounds.
	behind right
	closed bool
}

// restriction is the claim behind the firewall. It is the one before if that is the same.
func (r *ruling) restriction(before *service.Restriction) *service.Restriction {
	f := *r.behind.by.firewall
	if r.closed {
		f.Sources = f.Sources.Closed()
	}
	if before != nil && before.By == r.behind.name() && sharesAddresses(before.Firewall, f) &&
		(before.Firewall.Sources == f.Sources || r.closed && before.Firewall.Sources.Equal(f.Sources)) {
		return before
	}
	return &service.Restriction{Claim: r.claim.Claim(), By: r.behind.name(), Firewall: f}
}

// sharesAddresses says that firewalls have the same list of addresses in memory. It compares no address.
func sharesAddresses(f, o service.Firewall) bool {
	return len(f.Addresses) == len(o.Addresses) && (len(f.Addresses) == 0 || &f.Addresses[0] == &o.Addresses[0])
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
