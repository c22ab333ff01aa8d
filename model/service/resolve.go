package service

import (
	"cmp"
	"slices"

	"nftproxy/model/treap"
)

// pendingClaim is a claim of a service that has to be decided again: its owner, or the
// service that restricts it, may have changed.
type pendingClaim struct {
	name  Name
	claim Claim
}

// decideAgain has a claim decided again for the services with some rights, of which an empty one is nobody's.
func (b *Builder) decideAgain(c Claim, services ...right) {
	for _, r := range services {
		if r != "" {
			b.pending = append(b.pending, pendingClaim{r.name(), c})
		}
	}
}

// changeClaim adds a service to the claimants of a claim, or removes it. It notes the
// services for which the claim has to be decided again. These are the service itself
// and, if the owner or the restriction changes, the owners before and after. All other
// claimants lack the claim before and after. A retained service may lose a claim that no
// other makes (losesAddress), so that each of its claims has to be decided.
func (b *Builder) changeClaim(name Name, claim Claim, r right, add bool) {
	by := 1
	if !add {
		by = -1
	}
	b.countExternal(claim, r, by)
	if claim.Protocol == 0 && len(b.ranged) > 0 {
		b.noteAddress(claim.Addr)
	}
	if claim.IsRange() {
		b.noteClaimant(claim)
		if b.ranged[claim] += by; b.ranged[claim] == 0 {
			delete(b.ranged, claim)
		}
	}
	if b.concernsOnlyClaimants(claim, r) && b.contests.changeSole(claim, r, add) {
		return
	}
	before := b.contests.winners(claim)
	if add {
		b.contests.add(claim, r)
	} else {
		b.contests.remove(claim, r)
	}
	if r.rank() != asClusterIP {
		b.countOnNode(claim, add)
	}
	after := b.contests.winners(claim)
	b.pending = append(b.pending, pendingClaim{name, claim})
	b.noteNumber(claim, before.owner, after.owner)
	if before != after {
		for _, r := range []right{before.owner, after.owner} {
			if r != "" {
				b.pending = append(b.pending, pendingClaim{r.name(), claim})
				b.decidePorts(claim, r)
			}
		}
	}
}

// concernsOnlyClaimants says whether nothing but the services that make the claim decides
// who has it. That is so for nearly every claim.
func (b *Builder) concernsOnlyClaimants(claim Claim, r right) bool {
	if _, guarded := b.protected[claim]; guarded || r.retained() {
		return false
	}
	if len(b.ranged)+len(b.rangesMoved) > 0 && (claim.IsRange() || b.ranged[claim.Range()] > 0) {
		return false
	}
	if _, moved := b.rangesMoved[claim.Range()]; moved {
		return false
	}
	switch {
	case r.rank() == asClusterIP:
		return true
	case claim.Addr.IsUnspecified():
		return len(b.onNode) == 0
	case r.rank() == asExternalIP:
		return false // it may be the address of an endpoint
	}
	return !b.reserved.servesNodePorts(claim.Addr) && b.reserved.protection(claim, r.rank()) == ""
}

// decidePorts decides the ports of a retained service again on a cluster IP that it has
// got or lost.
func (b *Builder) decidePorts(claim Claim, r right) {
	s := b.Service(r.name())
	if !r.retained() || claim.Protocol != 0 || s == nil {
		return
	}
	for _, c := range s.claims(b.limit) {
		if c.claim.Addr == claim.Addr {
			b.pending = append(b.pending, pendingClaim{s.Name, c.claim})
		}
	}
}

// asksForExternalIP says whether a service still makes the claim as an external IP.
func (b *Builder) asksForExternalIP(p pendingClaim) bool {
	r, found := b.contests.find(p.claim, p.name)
	return found && isExternalIP(p.claim, r)
}

// losesAddress says whether the claim is of a retained service on a cluster IP that another
// service has by now. The address is not the retained one's any more, nor is any port on it
// that the other does not have.
func (b *Builder) losesAddress(claim Claim, r right) bool {
	if !r.retained() || r.rank() != asClusterIP {
		return false
	}
	owner := b.contests.winners(Claim{Addr: claim.Addr}).owner
	return owner != "" && owner.name() != r.name()
}

// decideClaims updates the snapshot's owners, conflicts and restrictions by the pending
// claims.
func (b *Builder) decideClaims() {
	if len(b.pending) == 0 {
		return
	}
	list := b.pending
	b.pending = nil
	if b.residents == nil && slices.ContainsFunc(list, b.asksForExternalIP) {
		b.residents = b.knowResidents(endpointClaim)
	}
	if b.hosts == nil && slices.ContainsFunc(list, func(p pendingClaim) bool {
		return p.claim.IsRange() && b.asksForExternalIP(p)
	}) {
		b.knowHosts()
	}
	owners := map[claimKey]Name{}
	for _, p := range list {
		owners[p.claim.key()] = b.ownerOfSeveral(p.claim)
	}
	b.snapshot.Owners.names = b.snapshot.Owners.names.Apply(treap.Edits(owners))

	slices.SortFunc(list, func(a, b pendingClaim) int {
		return cmp.Or(cmp.Compare(a.name, b.name), compareClaims(a.claim, b.claim))
	})
	list = slices.Compact(list)
	conflicts, restrictions := map[Name]*Conflicts{}, map[Name]*Restrictions{}
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].name == list[0].name {
			n++
		}
		b.decideService(list[:n], conflicts, restrictions)
		list = list[n:]
	}
	b.snapshot.Conflicts = b.snapshot.Conflicts.Apply(treap.Edits(conflicts))
	b.snapshot.Restrictions = b.snapshot.Restrictions.Apply(treap.Edits(restrictions))
}

// ownerOfSeveral returns the service that has a claim which several services make, or
// that has what its only claimant asks for; empty if there is no doubt.
func (b *Builder) ownerOfSeveral(c Claim) Name {
	owner := b.winner(c)
	if owner == "" {
		return ""
	}
	if name := b.over(c, owner); name != "" {
		return name
	}
	if n, ok := b.number(c); ok && owner.rank() != asClusterIP {
		if other := b.winner(n); other != "" && other.name() != owner.name() {
			return owner.name()
		}
	}
	if b.contests.contested[c] != nil {
		return owner.name()
	}
	return ""
}

// decideService decides claims of one service, which are sorted. It puts the service's
// conflicts and restrictions into the maps if they change.
func (b *Builder) decideService(list []pendingClaim, conflicts map[Name]*Conflicts,
	restrictions map[Name]*Restrictions) {
	name := list[0].name
	conflicting, restricted := b.snapshot.Conflicts.At(name).all(), b.snapshot.Restrictions.At(name).all()
	conflictEdits := make([]treap.Edit[claimKey, Protection], 0, len(list))
	restrictionEdits := make([]treap.Edit[claimKey, *Restriction], 0, len(list))
	for _, p := range list {
		key := p.claim.key()
		conflict, restriction := b.decideClaim(p)
		edit := treap.Edit[claimKey, Protection]{Key: key, Gone: conflict == nil}
		if conflict != nil {
			edit.Value = conflict.Protected
		}
		if have := restricted.At(key); have != nil && restriction != nil && have.equal(restriction) {
			restriction = have
		}
		conflictEdits = append(conflictEdits, edit)
		restrictionEdits = append(restrictionEdits, treap.Edit[claimKey, *Restriction]{Key: key, Value: restriction,
			Gone: restriction == nil})
	}
	if after := conflicting.Apply(conflictEdits); after != conflicting {
		conflicts[name] = nil
		if after.Len() > 0 {
			conflicts[name] = &Conflicts{after}
		}
	}
	if after := restricted.Apply(restrictionEdits); after != restricted {
		restrictions[name] = nil
		if after.Len() > 0 {
			restrictions[name] = &Restrictions{after}
		}
	}
}

// decideClaim says of one claim of a service whether it is a conflict, and if not,
// which other service restricts it.
func (b *Builder) decideClaim(p pendingClaim) (*Conflict, *Restriction) {
	r, found := b.contests.find(p.claim, p.name)
	if !found {
		if b.losesNumber(p.name, p.claim) {
			return &Conflict{Claim: p.claim}, nil
		}
		return nil, nil
	}
	if why := b.protection(p.name, p.claim, r.rank()); why != "" {
		return &Conflict{Claim: p.claim, Protected: why}, nil
	}
	restricting := b.contests.winners(p.claim).restricting
	switch {
	case b.winner(p.claim) != r || b.losesAddress(p.claim, r) || b.over(p.claim, r) != "":
		return &Conflict{Claim: p.claim}, nil
	case restricting == "" || restricting == r:
		return nil, nil
	case restricting.retained() && !r.retained():
		return nil, nil
	case b.protected[p.claim].Servers != nil && r.rank() != asClusterIP:
		return nil, nil // no other service shuts the node out
	}
	by := b.Service(restricting.name())
	wall := by.Firewall()
	if !b.sourceLists.admits(by) {
		wall.Sources = wall.Sources.closed()
	}
	return nil, &Restriction{Claim: p.claim, By: by.Name, Firewall: wall}
}
