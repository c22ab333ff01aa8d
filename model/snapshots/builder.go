// Package snapshots makes snapshots: the Builder joins who has which address (model/claims) and who serves
// (model/share) with the bounds on what a service, a namespace and all services may have on a node.
package snapshots

import (
	"net/netip"
	"slices"

	"nftproxy/model/claims"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/treap"
)

// Builder turns a stream of changes into snapshots and decides which service has which claim. The
// snapshot depends only on the last version of each service, not on the order of changes. Each claim that a service
// makes or gives up costs O(log n) for the n claims at the same address, and a pointer for each 64 of them. If a claim
// to ranges or a cluster IP changes hands, all claims at the address are decided again. Endpoints that a service shares
// with its last version cost nothing. A Builder is not safe for concurrent use; its snapshots are.
type Builder struct {
	snapshot service.Snapshot
	// edited has the services that may be others in the next snapshot, maybe several times. They go into the map all at
	// once: a first snapshot has thousands.
	edited []service.Name
	// limit is the bound on the elements of one service.
	limit int
	// elements decides which services have all elements that the limit allows them.
	elements elements
	// affinity decides which services have session affinity.
	affinity affinity
	// sourceLists decides which lists of source ranges there are, rangeLists which lists of port ranges.
	sourceLists quota[sourceListKey]
	rangeLists  quota[rangeListKey]
	claims      *claims.Book
	// ejected are the adjustments by SetAdjustments, and growing those by SetGrowing.
	ejected, growing service.Adjustments
	// slots are those by SetSlots since the last snapshot, which has all others; nil for a service that was deleted.
	slots map[service.Name]service.Slotted
}

// NewBuilder starts from a snapshot without services, with the default bounds (model/service/bounds.go).
func NewBuilder(node service.Node) *Builder {
	return &Builder{
		snapshot: service.Snapshot{Node: &node},
		limit:    service.DefaultMaxElements, elements: newElements(service.DefaultMaxAllElements),
		affinity:    affinity{newQuota[amount](service.DefaultMaxAffinityPorts)},
		sourceLists: newQuota[sourceListKey](service.DefaultMaxSourceLists),
		rangeLists:  newQuota[rangeListKey](service.DefaultMaxRangeLists), claims: claims.NewBook(),
		slots: map[service.Name]service.Slotted{},
	}
}

// SetMaxElements sets the bound on the elements of one service, 1 or more. It must be
// called before the first service is set.
func (b *Builder) SetMaxElements(limit int) { b.limit = limit }

// SetMaxAllElements sets the bound on the elements of all services, 1 or more. The services of one namespace may have a
// quarter of it, and so may one service. It must be called after SetMaxElements, before the first service is set.
func (b *Builder) SetMaxAllElements(limit int) {
	b.elements = newElements(limit)
	b.limit = min(b.limit, service.NamespaceShare(limit))
}

// SetMaxAffinityPorts sets the bound on the ports of all services that have session
// affinity, 1 or more. The services of one namespace may have a quarter of it. It must
// be called before the first service is set.
func (b *Builder) SetMaxAffinityPorts(limit int) { b.affinity = affinity{newQuota[amount](limit)} }

// SetMaxSourceLists sets the bound on different lists of source ranges, 1 or more. The
// services of one namespace may have a quarter of it. It must be called before the first
// service is set.
func (b *Builder) SetMaxSourceLists(limit int) {
	b.sourceLists = newQuota[sourceListKey](limit)
}

// Expect allocates memory for changes of n services. That saves time if n is large, as at the
// start, when all services come.
func (b *Builder) Expect(n int) {
	b.edited = slices.Grow(b.edited, n)
	b.claims.Expect(n)
}

// Snapshot returns the state after the changes so far. If nothing has changed, it returns the same
// contents, pointer for pointer.
func (b *Builder) Snapshot() service.Snapshot {
	b.followQuotas()
	b.claims.Decide(&b.snapshot, claims.Within{Sources: b.sourceLists.admits, Ranges: b.rangeLists.admits})
	if len(b.edited) > 0 {
		slices.Sort(b.edited) // Lists of an API server are sorted; then this only looks at each name once.
		b.edited = slices.Compact(b.edited)
		edits := make([]treap.Edit[service.Name, *service.Service], len(b.edited))
		for i, name := range b.edited {
			s := b.bounded(name, b.Service(name))
			edits[i] = treap.Edit[service.Name, *service.Service]{Key: name, Value: s, Gone: s == nil}
		}
		b.snapshot.Services = b.snapshot.Services.Apply(edits)
		b.edited = nil
		clear(b.slots)
	}
	return b.snapshot
}

// Service returns the service of that name as it was last set, or nil. The snapshot's service lacks
// what exceeds the bounds. Claims depend on the service that was set.
func (b *Builder) Service(name service.Name) *service.Service { return b.claims.Service(name) }

// Node returns the node that snapshots are for.
func (b *Builder) Node() *service.Node { return b.snapshot.Node }

// SetNode replaces the node.
func (b *Builder) SetNode(node service.Node) {
	have := b.snapshot.Node
	if have.Equal(&node) {
		return
	}
	b.snapshot.Node = &node
	if !slices.Equal(have.Addresses, node.Addresses) {
		b.claims.TouchWithServers()
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

// edit notes that a service may be another one in the next snapshot.
func (b *Builder) edit(name service.Name) { b.edited = append(b.edited, name) }

// Set adds the service, or replaces the one with its name. If both are equal, it changes nothing,
// and the old pointer stays.
func (b *Builder) Set(s *service.Service) { b.Take(b.Prepare(s.Name, s)) }

// Delete removes the service, if there is one.
func (b *Builder) Delete(name service.Name) { b.Take(b.Prepare(name, nil)) }

// SetOther adds a service that another proxy serves, or replaces the one with its name.
func (b *Builder) SetOther(s *service.Service) {
	s = claimable(s, b.limit)
	other := &service.Service{Name: s.Name, ClusterIPs: s.ClusterIPs, ExternalIPs: s.ExternalIPs,
		LoadBalancerIPs: s.LoadBalancerIPs}
	for _, p := range s.Ports {
		other.Ports = append(other.Ports,
			service.Port{Protocol: p.Protocol, Port: p.Port, NodePort: p.NodePort, Ranges: p.Ranges})
	}
	b.snapshot.Others = setUnlessEqual(b.snapshot.Others, s.Name, other, (*service.Service).Equal)
}

// DeleteOther removes such a service, if there is one.
func (b *Builder) DeleteOther(name service.Name) { b.snapshot.Others = b.snapshot.Others.Delete(name) }

// Prepared is a service that the Builder has prepared for Take.
type Prepared struct {
	name service.Name
	// old is the version before, nil for none. next is nil if the service goes. They are the same if nothing changes.
	old, next *service.Service
	// sameClaims says that both make the same claims by the same rights.
	sameClaims bool
	// asks is what next asks for.
	asks elementDemand
}

// Prepare does the part of Set that changes nothing, or the same part of Delete if s is nil. So
// services of different names can be prepared in parallel.
func (b *Builder) Prepare(name service.Name, s *service.Service) Prepared {
	p := Prepared{name: name, old: b.Service(name), next: s}
	if p.old != nil && s != nil {
		p.sameClaims = claims.Same(p.old, s)
		if p.old.Equal(s) {
			p.next = p.old
		}
	}
	if p.old != p.next {
		p.asks = demandOf(p.next, b.limit)
	}
	return p
}

// Service returns the service as it will be set: the old version if that is equal, nil if the service goes.
func (p *Prepared) Service() *service.Service { return p.next }

// Elements is how many elements a change to the service may write or delete, at most. A service that others own in part
// has fewer.
func (p *Prepared) Elements() int {
	n := 0
	for _, s := range []*service.Service{p.old, p.next} {
		if s != nil {
			n += elementsOf(s, slotsOf(s))
		}
	}
	return n
}

// Take does the rest of Set or Delete. No other version of the service may have come since it was prepared.
func (b *Builder) Take(p Prepared) {
	if p.old == p.next {
		return
	}
	b.edit(p.name)
	if p.next == nil {
		b.slots[p.name] = nil
	}
	b.elements.replace(p.name, p.next, p.asks)
	b.affinity.replace(p.name, p.next)
	b.sourceLists.replace(p.name, p.next, sourceList(p.next))
	b.rangeLists.replace(p.name, p.next, rangeList(p.next))
	var part *service.Service
	if p.next != nil {
		part = claimable(p.next, b.limit)
	}
	b.claims.Replace(p.name, p.next, part, p.sameClaims)
}

// followQuotas adds the services that have got or lost session affinity, room for their elements, or their lists of
// source or port ranges, by the edits of others.
func (b *Builder) followQuotas() {
	for _, moved := range [][]age{b.sourceLists.takeMoved(), b.rangeLists.takeMoved(), b.affinity.takeMoved(),
		b.elements.plain.takeMoved(), b.elements.slots.takeMoved()} {
		for _, r := range moved {
			if b.Service(r.name()) != nil {
				b.edit(r.name())
				b.claims.Touch(r.name())
			}
		}
	}
}

// bounded returns the part of the service that is within the bounds, and notes what is
// left out. The service is nil if it was deleted.
func (b *Builder) bounded(name service.Name, s *service.Service) *service.Service {
	var served *service.Service
	var left *service.LeftOut
	var without *service.WithoutAffinity
	var closed *service.ClosedSources
	var unserved *service.UnservedRanges
	var list *service.Adjusted
	if s != nil {
		served = s
		if without = b.affinity.reasonWithout(s); without != nil {
			hashed := *s
			hashed.AffinityTimeout = 0
			if !s.Options.Balance.Hashes() {
				hashed.Options.Balance = service.ByClient
			}
			served = &hashed
		}
		served, left = b.elements.bounded(served, b.limit)
		if !b.sourceLists.admits(name) {
			closed = &service.ClosedSources{Limit: b.sourceLists.limit}
			shut := *served
			shut.Sources, shut.Options.SourceRanges = s.Sources.Closed(), s.Options.SourceRanges.Closed()
			served = &shut
		}
		if !b.rangeLists.admits(name) {
			served, unserved = withoutRanges(served), &service.UnservedRanges{Limit: b.rangeLists.limit}
		}
		list = b.ejected.At(name).Over(b.growing.At(name))
		if adjusted := share.Apply(served, list); adjusted != served {
			served = fitted(adjusted, b.limit)
		}
		if served.Options.Balance == service.ByLeastConnections {
			served = share.WithSlots(served, b.lastSlots(name))
		}
	}
	b.snapshot.LeftOut = setUnlessEqual(b.snapshot.LeftOut, name, left, equal)
	b.snapshot.WithoutAffinity = setUnlessEqual(b.snapshot.WithoutAffinity, name, without, equal)
	b.snapshot.ClosedSources = setUnlessEqual(b.snapshot.ClosedSources, name, closed, equal)
	b.snapshot.UnservedRanges = setUnlessEqual(b.snapshot.UnservedRanges, name, unserved, equal)
	b.snapshot.Adjustments = setUnlessEqual(b.snapshot.Adjustments, name, list, (*service.Adjusted).Equal)
	if served == s {
		return s
	}
	if have := b.snapshot.Services.At(name); have != nil && have.Equal(served) {
		return have
	}
	return served
}

// lastSlots returns the slots that a service has from now on: those by SetSlots, or else those that it had.
func (b *Builder) lastSlots(name service.Name) service.Slotted {
	if slots, ok := b.slots[name]; ok {
		return slots
	}
	if have := b.snapshot.Services.At(name); have != nil {
		return have.Slotted()
	}
	return nil
}

// setUnlessEqual sets the value of a name, nil for none. An equal value stays.
func setUnlessEqual[V any](m treap.Map[service.Name, *V], name service.Name, next *V,
	equal func(a, b *V) bool) treap.Map[service.Name, *V] {
	if next == nil {
		return m.Delete(name)
	}
	if have, ok := m.Get(name); ok && equal(have, next) {
		return m
	}
	return m.Set(name, next)
}

func equal[V comparable](a, b *V) bool { return *a == *b }

// SetProtected replaces the claims that are kept from services. It costs the size of the
// old and the new map. The caller must not change the map afterwards.
func (b *Builder) SetProtected(p claims.Protected) { b.claims.SetProtected(p) }

// SetReserved replaces the addresses that are kept from services. If it differs from what was set
// before, the claims on all external addresses are decided again. The caller must not change it afterwards.
func (b *Builder) SetReserved(r claims.Reserved) { b.claims.SetReserved(r) }

// SetAdjustments replaces what was found out about endpoints. A service that is in both with the same pointer costs
// nothing, and one with the same adjustments little.
func (b *Builder) SetAdjustments(a service.Adjustments) { b.readjust(&b.ejected, a) }

// SetGrowing replaces the growing endpoints, likewise. SetAdjustments takes precedence.
func (b *Builder) SetGrowing(a service.Adjustments) { b.readjust(&b.growing, a) }

// SetSlots replaces the slots that the endpoints of some services have by feedback. They may come before the first
// snapshot with services; later those of services that are not there are passed over. Endpoints that no longer follow
// connections lose theirs.
func (b *Builder) SetSlots(of map[service.Name]service.Slotted) {
	for name, slots := range of {
		there := b.Service(name) != nil
		if there || b.snapshot.Services.Len() == 0 {
			b.slots[name] = slots
		}
		if there {
			b.edit(name)
		}
	}
}

func (b *Builder) readjust(have *service.Adjustments, next service.Adjustments) {
	for change := range treap.Diff(*have, next) {
		if b.Service(change.Key) != nil && !change.Old.Equal(change.New) {
			b.edit(change.Key)
		}
	}
	*have = next
}
