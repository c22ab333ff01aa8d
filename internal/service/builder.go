package service

import (
	"net/netip"
	"slices"

	"nftproxy/internal/treap"
)

// Builder turns a stream of changes into snapshots and keeps track of which
// service has which claim. The snapshot depends only on what was set last for
// each name, not on the order. A change costs O(log n) plus the service's own
// size. A Builder is not safe for concurrent use; its snapshots are.
type Builder struct {
	snapshot Snapshot
	// edits are the services that have changed since the last snapshot, nil for
	// one that has gone. They go into the map all at once: a first snapshot is
	// thousands of them.
	edits     map[Name]*Service
	claimants claimants
}

// NewBuilder starts from a snapshot without services.
func NewBuilder(node Node) *Builder {
	return &Builder{snapshot: Snapshot{Node: &node}, edits: map[Name]*Service{}, claimants: newClaimants()}
}

// Expect makes room for changes of n services, which saves time where n is
// large: at the start it is all of them.
func (b *Builder) Expect(n int) {
	b.edits = roomFor(n, b.edits)
	b.claimants.expect(n)
}

// Snapshot returns the state after the changes so far. As long as nothing
// differs it has the same contents, pointer for pointer.
func (b *Builder) Snapshot() Snapshot {
	if len(b.edits) > 0 {
		b.snapshot.Services = b.snapshot.Services.Apply(treap.Edits(b.edits))
		b.edits = map[Name]*Service{} // to clear a large one would cost as much each time
	}
	return b.snapshot
}

// Service returns the service of the name after the changes so far, or nil.
func (b *Builder) Service(name Name) *Service {
	if s, edited := b.edits[name]; edited {
		return s
	}
	return b.snapshot.Services.At(name)
}

// SetNode replaces the node.
func (b *Builder) SetNode(node Node) {
	if !b.snapshot.Node.equal(&node) {
		b.snapshot.Node = &node
	}
}

// SetServiceCIDRs replaces the ranges that cluster IPs come from. Order and
// duplicates do not matter.
func (b *Builder) SetServiceCIDRs(ranges []netip.Prefix) {
	var next treap.Map[string, netip.Prefix]
	for _, r := range ranges {
		next = next.Set(r.String(), r)
	}
	for range treap.Diff(b.snapshot.ServiceCIDRs, next) {
		b.snapshot.ServiceCIDRs = next
		return
	}
}

// Set adds the service or replaces the one of its name. One that equals what
// is there changes nothing: the old pointer stays.
func (b *Builder) Set(s *Service) {
	old := b.Service(s.Name)
	if old != nil && old.equal(s) {
		return
	}
	b.replace(s.Name, old, s)
}

// Delete removes the service, if there is one.
func (b *Builder) Delete(name Name) {
	if old := b.Service(name); old != nil {
		b.replace(name, old, nil)
	}
}

// replace puts s (nil for none) in the place of old (nil for none).
func (b *Builder) replace(name Name, old, s *Service) {
	var before, after []Claim
	if old != nil {
		before = old.claims()
	}
	if s != nil {
		after = s.claims()
	}
	b.edits[name] = s
	if old != nil && s != nil && slices.Equal(before, after) && old.Created.Equal(s.Created) && old.Firewall().equal(s.Firewall()) {
		// The usual case: only endpoints have changed.
		for _, c := range before {
			b.claimants.swap(c, old, s)
		}
		return
	}
	concerned := map[Name]*Service{}
	for _, c := range before {
		concern(concerned, b.claimants.remove(c, old))
	}
	for _, c := range after {
		concern(concerned, b.claimants.add(c, s))
	}
	delete(concerned, name)
	for _, other := range concerned {
		b.judge(other, other.claims())
	}
	if s != nil {
		b.judge(s, after)
	} else {
		b.snapshot.Conflicts = b.snapshot.Conflicts.Delete(name)
		b.snapshot.Restrictions = b.snapshot.Restrictions.Delete(name)
	}
}

func concern(concerned map[Name]*Service, services []*Service) {
	for _, s := range services {
		concerned[s.Name] = s
	}
}

// judge works out which of its claims another service has, and which of those
// that s has another one restricts.
func (b *Builder) judge(s *Service, claims []Claim) {
	var lost []Conflict
	var restricted []Restriction
	for _, c := range claims {
		claimants, contested := b.claimants.contested[c]
		if !contested {
			continue
		}
		if owner := claimants[0]; owner != s {
			lost = append(lost, Conflict{c, owner.Name})
			continue
		}
		restricts := func(o *Service) bool { return o.Firewall().Restricts(c) }
		if i := slices.IndexFunc(claimants, restricts); i > 0 {
			restricted = append(restricted, Restriction{c, claimants[i].Name, claimants[i].Firewall()})
		}
	}
	b.snapshot.Conflicts = settle(b.snapshot.Conflicts, s.Name, lost != nil, &Conflicts{lost}, (*Conflicts).equal)
	b.snapshot.Restrictions = settle(b.snapshot.Restrictions, s.Name, restricted != nil, &Restrictions{restricted}, (*Restrictions).equal)
}

// settle puts a judgement in the place of the last one, if there is any; one
// that says the same stays.
func settle[V any](m treap.Map[Name, *V], name Name, found bool, next *V, equal func(a, b *V) bool) treap.Map[Name, *V] {
	switch have, ok := m.Get(name); {
	case !found:
		return m.Delete(name)
	case ok && equal(have, next):
		return m
	}
	return m.Set(name, next)
}
