package service

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/treap"
)

// Builder turns a stream of changes into snapshots and decides which service has which claim. The
// snapshot depends only on the last version of each service, not on the order of changes. A change
// costs O(log n) for each claim of the changed service, and for each claim that it moves from one
// service to another, however many services make the claim. Endpoints that a service shares with
// its last version cost nothing. A Builder is not safe for concurrent use; its snapshots are.
type Builder struct {
	snapshot Snapshot
	// edits has the services that have changed since the last snapshot, as they were
	// set, nil for a deleted one. places says where each is. They go into the map all at
	// once: a first snapshot has thousands.
	edits  []treap.Edit[Name, *Service]
	places map[Name]int
	// whole has the services that ask for more than the snapshot has of them, as they
	// were set.
	whole map[Name]*Service
	// limit is the bound on the elements of one service.
	limit int
	// elements decides which services have all elements that the limit allows them.
	elements elements
	// affinity decides which services have session affinity.
	affinity affinity
	// sourceLists decides which lists of source ranges there are.
	sourceLists quota[sourceListKey]
	// rangeLists decides which lists of port ranges there are. ranged counts the claims to ranges of each address and
	// protocol, and rangesMoved has those that have changed since the last snapshot, and whether that concerns each of
	// their claimants. inForce has what they were at the last snapshot. external counts the claims of each service to an
	// address that is not its cluster IP; nil as long as there have been no ranges.
	rangeLists  quota[RangesByProtocol]
	ranged      map[Claim]int
	rangesMoved map[Claim]bool
	inForce     map[Claim]rangesInForce
	external    map[netip.Addr]map[Name]int
	contests    contests
	protected   Protected
	reserved    Reserved
	fronts      fronts
	// residents is nil until some service has an external IP. hosts has the same services by the addresses of their
	// endpoints; it is nil until some service has an external IP with ranges.
	residents, hosts *residents
	// onNode counts the external claims on each address that serves node ports.
	onNode map[netip.Addr]int
	// pending has the claims of services that have to be decided again.
	pending []pendingClaim
}

// NewBuilder starts from a snapshot without services. One service may have
// DefaultMaxElements, all together DefaultMaxAllElements, DefaultMaxAffinityPorts ports may have session affinity, and
// there may be DefaultMaxSourceLists lists of source ranges.
func NewBuilder(node Node) *Builder {
	return &Builder{
		snapshot: Snapshot{Node: &node}, places: map[Name]int{}, whole: map[Name]*Service{},
		limit: DefaultMaxElements, elements: newElements(DefaultMaxAllElements),
		affinity: newAffinity(DefaultMaxAffinityPorts), sourceLists: newQuota(DefaultMaxSourceLists, (*Service).sourceList),
		rangeLists: newQuota(DefaultMaxRangeLists, (*Service).rangeList), ranged: map[Claim]int{},
		rangesMoved: map[Claim]bool{}, inForce: map[Claim]rangesInForce{},
		contests: newContests(), onNode: map[netip.Addr]int{},
	}
}

// SetMaxElements sets the bound on the elements of one service, 1 or more. It must be
// called before the first service is set.
func (b *Builder) SetMaxElements(limit int) { b.limit = limit }

// SetMaxAllElements sets the bound on the elements of all services, 1 or more. The services of one namespace may have a
// quarter of it, and so may one service. It must be called after SetMaxElements, before the first service is set.
func (b *Builder) SetMaxAllElements(limit int) {
	b.elements = newElements(limit)
	b.limit = min(b.limit, shareOf(limit))
}

// SetMaxAffinityPorts sets the bound on the ports of all services that have session
// affinity, 1 or more. The services of one namespace may have a quarter of it. It must
// be called before the first service is set.
func (b *Builder) SetMaxAffinityPorts(limit int) { b.affinity = newAffinity(limit) }

// SetMaxSourceLists sets the bound on different lists of source ranges, 1 or more. The
// services of one namespace may have a quarter of it. It must be called before the first
// service is set.
func (b *Builder) SetMaxSourceLists(limit int) {
	b.sourceLists = newQuota(limit, (*Service).sourceList)
}

// Expect allocates memory for changes of n services. That saves time if n is large, as at the
// start, when all services come.
func (b *Builder) Expect(n int) {
	b.edits, b.places = slices.Grow(b.edits, n), roomFor(n, b.places)
	b.contests.expect(n)
}

// Snapshot returns the state after the changes so far. If nothing has changed, it returns the same
// contents, pointer for pointer.
func (b *Builder) Snapshot() Snapshot {
	b.moveSources()
	b.moveRanges()
	b.decideRanges()
	b.decideClaims()
	b.boundEdits()
	if len(b.edits) > 0 {
		// Lists of an API server are sorted; then this only looks at each name once.
		slices.SortFunc(b.edits, func(a, b treap.Edit[Name, *Service]) int { return cmp.Compare(a.Key, b.Key) })
		b.snapshot.Services = b.snapshot.Services.Apply(b.edits)
		b.edits, b.places = nil, map[Name]int{} // to clear large ones would cost as much each time
	}
	return b.snapshot
}

// Service returns the service of that name as it was last set, or nil. The snapshot's service lacks
// what exceeds the bounds. Claims depend on the service that was set.
func (b *Builder) Service(name Name) *Service {
	if at, edited := b.places[name]; edited {
		return b.edits[at].Value
	}
	if s, cut := b.whole[name]; cut {
		return s
	}
	return b.snapshot.Services.At(name)
}

// Node returns the node that snapshots are for.
func (b *Builder) Node() *Node { return b.snapshot.Node }

// SetNode replaces the node.
func (b *Builder) SetNode(node Node) {
	if !b.snapshot.Node.equal(&node) {
		b.snapshot.Node = &node
	}
}

// SetServiceCIDRs replaces the ranges of cluster IPs. Order and duplicates do not
// matter.
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

// SetProtected replaces the claims that are kept from services. It costs the size of the
// old and the new map. The caller must not change the map afterwards.
func (b *Builder) SetProtected(p Protected) {
	before := map[Claim]right{} // of the claims that are protected otherwise than before
	for c := range b.protected {
		if b.protected[c] != p[c] {
			before[c] = b.winner(c)
		}
	}
	for c := range p {
		if _, known := b.protected[c]; !known {
			before[c] = b.winner(c)
		}
	}
	b.protected = p
	b.setFronts()
	for c, winner := range before {
		if b.ranged[c.Range()] > 0 {
			b.noteRanges(c.Range())
		}
		b.contests.claimants(c, func(name Name) { b.pending = append(b.pending, pendingClaim{name, c}) })
		b.noteNumber(c, winner, b.winner(c))
	}
}

// edit notes the service as it was set, nil if it was deleted.
func (b *Builder) edit(name Name, s *Service) {
	e := treap.Edit[Name, *Service]{Key: name, Value: s, Gone: s == nil}
	if at, edited := b.places[name]; edited {
		b.edits[at] = e
		return
	}
	b.places[name] = len(b.edits)
	b.edits = append(b.edits, e)
}

// Set adds the service, or replaces the one with its name. If both are equal, it changes nothing,
// and the old pointer stays.
func (b *Builder) Set(s *Service) { b.Take(b.Prepare(s.Name, s)) }

// Delete removes the service, if there is one.
func (b *Builder) Delete(name Name) { b.Take(b.Prepare(name, nil)) }

// SetOther adds a service that another proxy serves, or replaces the one with its name.
func (b *Builder) SetOther(s *Service) {
	s = s.claimable(b.limit)
	other := &Service{Name: s.Name, ClusterIPs: s.ClusterIPs, ExternalIPs: s.ExternalIPs,
		LoadBalancerIPs: s.LoadBalancerIPs}
	for _, p := range s.Ports {
		other.Ports = append(other.Ports, Port{Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort, Ranges: p.Ranges})
	}
	b.snapshot.Others = setUnlessEqual(b.snapshot.Others, s.Name, other, (*Service).equal)
}

// DeleteOther removes such a service, if there is one.
func (b *Builder) DeleteOther(name Name) { b.snapshot.Others = b.snapshot.Others.Delete(name) }

// Prepared is a service that the Builder has prepared for Take.
type Prepared struct {
	name Name
	// old is the version before, nil for none. next is nil if the service goes. They are the same if nothing changes.
	old, next *Service
	// before and after are the claims of the versions, empty where both make the same.
	before, after []rankedClaim
	// asks is what next asks for.
	asks elementDemand
}

// Prepare does the part of Set that changes nothing, or the same part of Delete if s is nil. So
// services of different names can be prepared in parallel.
func (b *Builder) Prepare(name Name, s *Service) Prepared {
	p := Prepared{name: name, old: b.Service(name), next: s}
	switch {
	case p.old != nil && s != nil && p.old.equal(s):
		p.next = p.old
	case p.old != nil && s != nil && p.old.sameClaims(s):
	default:
		p.before, p.after = p.old.claims(b.limit), s.claims(b.limit)
	}
	if p.old != p.next {
		p.asks = p.next.demand(b.limit)
	}
	return p
}

// Service returns the service as it will be set: the old version if that is equal, nil if the service goes.
func (p *Prepared) Service() *Service { return p.next }

// Elements is how many elements a change to the service may write or delete, at most. A service that others own in part
// has fewer.
func (p *Prepared) Elements() int {
	n := 0
	for _, s := range []*Service{p.old, p.next} {
		if s != nil {
			n += s.elements(s.Slots)
		}
	}
	return n
}

// Take does the rest of Set or Delete. No other version of the service may have come since it was prepared.
func (b *Builder) Take(p Prepared) {
	if p.old == p.next {
		return
	}
	b.edit(p.name, p.next)
	b.noteEndpoints(p.old, p.next)
	b.elements.replace(p.old, p.next, p.asks)
	b.affinity.replace(p.old, p.next)
	b.sourceLists.replace(p.old, p.next)
	b.rangeLists.replace(p.old, p.next)
	b.replaceClaims(p)
	b.noteFronts(p.name)
}

// moveSources adds the services whose source ranges have come into force, or lost it, by the
// edits of others. It has their restrictions of other services' claims decided again.
func (b *Builder) moveSources() {
	for _, r := range b.sourceLists.moved {
		s := b.Service(r.name())
		if s == nil {
			continue
		}
		b.edit(s.Name, s)
		for _, c := range s.claims(b.limit) {
			if owner := b.contests.winners(c.claim).owner; c.restricted && owner != "" && owner.name() != s.Name {
				b.pending = append(b.pending, pendingClaim{owner.name(), c.claim})
			}
		}
	}
	b.sourceLists.moved = nil
}

// moveRanges adds the services whose lists of port ranges have been admitted, or turned away, by the edits of others.
func (b *Builder) moveRanges() {
	for _, r := range b.rangeLists.moved {
		if s := b.Service(r.name()); s != nil {
			b.edit(s.Name, s)
			for _, c := range s.claims(b.limit) {
				if c.claim.IsRange() {
					b.noteClaimant(c.claim)
				}
			}
		}
	}
	b.rangeLists.moved = nil
}

// boundEdits replaces each edit by the service that is to be served. It adds the
// services that have got or lost session affinity, or room for their elements, by the edits of others.
func (b *Builder) boundEdits() {
	for _, r := range append(b.affinity.moved, b.elements.takeMoved()...) {
		if s := b.Service(r.name()); s != nil {
			b.edit(r.name(), s)
		}
	}
	b.affinity.moved = nil
	for i := range b.edits {
		e := &b.edits[i]
		e.Value = b.bounded(e.Key, e.Value)
	}
}

// bounded returns the part of the service that is within the bounds, and notes what is
// left out. The service is nil if it was deleted.
func (b *Builder) bounded(name Name, s *Service) *Service {
	var served *Service
	var left *LeftOut
	var without *WithoutAffinity
	var closed *ClosedSources
	var unserved *UnservedRanges
	if s != nil {
		served = s
		if without = b.affinity.reasonWithout(s); without != nil {
			hashed := *s
			hashed.AffinityTimeout = 0
			if s.Options.Balance == ByRandom {
				hashed.Options.Balance = ByClient
			}
			served = &hashed
		}
		served, left = b.elements.bounded(served, b.limit)
		if !b.sourceLists.admits(s) {
			closed = &ClosedSources{b.sourceLists.limit}
			shut := *served
			shut.Sources, shut.Options.SourceRanges = s.Sources.closed(), s.Options.SourceRanges.closed()
			served = &shut
		}
		if !b.rangeLists.admits(s) {
			served, unserved = served.withoutRanges(), &UnservedRanges{b.rangeLists.limit}
		}
		served = served.without(b.snapshot.Ejections.At(name)).grown(b.snapshot.Growth.At(name), b.limit)
	}
	b.snapshot.LeftOut = setUnlessEqual(b.snapshot.LeftOut, name, left, func(a, b *LeftOut) bool { return *a == *b })
	b.snapshot.WithoutAffinity = setUnlessEqual(b.snapshot.WithoutAffinity, name, without,
		func(a, b *WithoutAffinity) bool { return *a == *b })
	b.snapshot.ClosedSources = setUnlessEqual(b.snapshot.ClosedSources, name, closed, func(a, b *ClosedSources) bool {
		return *a == *b
	})
	b.snapshot.UnservedRanges = setUnlessEqual(b.snapshot.UnservedRanges, name, unserved, func(a, b *UnservedRanges) bool {
		return *a == *b
	})
	if served == s {
		delete(b.whole, name)
		return s
	}
	b.whole[name] = s
	if have := b.snapshot.Services.At(name); have != nil && have.equal(served) {
		return have
	}
	return served
}

// replaceClaims replaces the claims of a service's old version by those of the next.
func (b *Builder) replaceClaims(p Prepared) {
	name, old, s, before, after := p.name, p.old, p.next, p.before, p.after
	// A claim stays if nothing has changed that matters to other services.
	sameAge := old != nil && s != nil && old.Created.Equal(s.Created) && old.whollyRetained() == s.whollyRetained()
	sameFirewall := sameAge && old.Firewall().equal(s.Firewall())
	oldRights, newRights := rights{service: old}, rights{service: s}
	// The ranges may differ where the claims are the same.
	for _, list := range [][]rankedClaim{before, after} {
		for _, c := range list {
			if c.claim.IsRange() {
				b.noteClaimant(c.claim)
				b.pending = append(b.pending, pendingClaim{name, c.claim})
			}
		}
	}
	for len(before) > 0 || len(after) > 0 {
		order := 0
		switch {
		case len(before) == 0:
			order = 1
		case len(after) == 0:
			order = -1
		default:
			order = compareClaims(before[0].claim, after[0].claim)
		}
		if order == 0 && before[0] == after[0] && sameAge && (sameFirewall || !after[0].restricted) {
			before, after = before[1:], after[1:]
			continue
		}
		if order <= 0 {
			c := before[0]
			b.changeClaim(name, c.claim, oldRights.to(c.rank, c.restricted), false)
			before = before[1:]
		}
		if order >= 0 {
			c := after[0]
			b.changeClaim(name, c.claim, newRights.to(c.rank, c.restricted), true)
			after = after[1:]
		}
	}
}

// setUnlessEqual sets the value of a name, nil for none. An equal value stays.
func setUnlessEqual[V any](m treap.Map[Name, *V], name Name, next *V, equal func(a, b *V) bool) treap.Map[Name, *V] {
	if next == nil {
		return m.Delete(name)
	}
	if have, ok := m.Get(name); ok && equal(have, next) {
		return m
	}
	return m.Set(name, next)
}
