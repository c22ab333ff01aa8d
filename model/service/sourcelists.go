package service

import (
	"fmt"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/treap"
)

// DefaultMaxSourceLists is the default bound on different lists of source ranges. Each list has a
// set of its own in the kernel, of 18 KB at least since Linux 6.18. The kernel searches sets by
// name in a list, so n of them cost n squared.
const DefaultMaxSourceLists = 2000

// ClosedSources says that the source ranges of a service exceed the bound on different lists. The
// ranges then admit no client.
type ClosedSources struct {
	// Limit is how many lists all services may have together. The services of one
	// namespace bring in a quarter of them at most.
	Limit int
}

// String reads like "no client is let in where source ranges apply: ...".
func (c *ClosedSources) String() string {
	return fmt.Sprintf("no client is let in where source ranges apply: there is room for %d different lists of source ranges, and for %d by the Services of one namespace, the oldest Services first",
		c.Limit, shareOf(c.Limit))
}

// sourceListKey tells lists of source ranges apart, as the program has them: it is zero in
// a family that takes no set. A service with other ranges for its external IPs and node ports than for
// its load balancer's addresses has two lists, which count as two wherever else they are. The zero value
// stands for no list.
type sourceListKey [2]ip.PerFamily[Digest]

// sourceList returns the service's lists. The service may be nil.
func (s *Service) sourceList() sourceListKey {
	var key sourceListKey
	if s == nil {
		return key
	}
	hasNodePort := slices.ContainsFunc(s.Ports, func(p Port) bool { return p.NodePort != 0 })
	for _, family := range ip.Families() {
		balanced := s.digestFor(s.Sources, family, slices.ContainsFunc(s.LoadBalancerIPs, family.Has))
		direct := s.digestFor(s.Options.SourceRanges, family, hasNodePort || slices.ContainsFunc(s.ExternalIPs, family.Has))
		*key[0].Of(family) = balanced
		if balanced == (Digest{}) {
			*key[0].Of(family) = direct
		} else if direct != balanced {
			*key[1].Of(family) = direct
		}
	}
	return key
}

// digestFor returns the digest of sources if the service has addresses in the family that need a set of them.
func (s *Service) digestFor(sources *Sources, family ip.Family, needed bool) Digest {
	if ranges, _ := sources.Of(family); len(ranges) > 0 && needed && s.InFamily(family) {
		return sources.Digest(family)
	}
	return Digest{}
}

// lists is how many lists the key stands for.
func (k sourceListKey) lists() int {
	if k[1] == (ip.PerFamily[Digest]{}) {
		return 1
	}
	return 2
}

// closed returns sources that let in nobody in the families that had ranges, and nil for nil.
func (s *Sources) closed() *Sources {
	if s == nil {
		return nil
	}
	var open []netip.Prefix
	for _, all := range []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)} {
		if _, everybody := s.Of(ip.Of(all.Addr())); everybody {
			open = append(open, all)
		}
	}
	return NewSources(open)
}

// sourceLists decides which lists of source ranges, or of port ranges, the node has, by the oldest service that
// has each. A list that is admitted holds for all services that have it. A change costs
// O(log n) for the lists that it admits or turns away, and visits the services that have
// these lists.
type sourceLists struct {
	quota[*listQueue]
	// of is the list of a service.
	of func(*Service) sourceListKey
	// services has all services of each list.
	services map[sourceListKey]rightSet
	// moved has the services whose lists have been admitted or turned away.
	moved []right
}

func newSourceLists(limit int, of func(*Service) sourceListKey) sourceLists {
	return sourceLists{quota: newQuota(limit, newListQueue), of: of, services: map[sourceListKey]rightSet{}}
}

// replace replaces the version old of a service by s. Either may be nil.
func (l *sourceLists) replace(old, s *Service) {
	none, before, after := sourceListKey{}, l.of(old), l.of(s)
	if before == after && (before == none || old.age() == s.age()) {
		return
	}
	if before != none {
		l.set(before, old.age(), false)
	}
	if after != none {
		l.set(after, s.age(), true)
	}
	for _, c := range l.all.changes() {
		if (c.before == "") == (c.after == "") {
			continue
		}
		for r := range l.services[c.list].All() {
			l.moved = append(l.moved, r)
		}
	}
}

// set adds a service to those that have a list, or removes it.
func (l *sourceLists) set(list sourceListKey, r right, add bool) {
	setMember(l.services, list, r, add)
	l.change(r, func(own *listQueue) { own.set(list, r, add) })
}

// closed says why the service's ranges, as it was set, let in nobody: the node does not have its lists. It is nil if the node
// has them.
func (l *sourceLists) closed(s *Service) *ClosedSources {
	if l.admits(l.of(s)) {
		return nil
	}
	return &ClosedSources{l.limit}
}

// admits says whether the node has the list, or there is none.
func (l *sourceLists) admits(list sourceListKey) bool {
	return list == sourceListKey{} || l.all.admitted[list] != ""
}

// rightSet is a set of rights.
type rightSet = treap.Map[right, struct{}]

// setMember adds a right to the set of a list, or removes it.
func setMember(sets map[sourceListKey]rightSet, list sourceListKey, r right, add bool) {
	set := sets[list].Delete(r)
	if add {
		set = set.Set(r, struct{}{})
	}
	if sets[list] = set; set.Len() == 0 {
		delete(sets, list)
	}
}

// listQueue admits lists. Each has the age of the oldest service that asks for it.
type listQueue struct {
	queue queue
	// askers has the services that ask for each list, lists the list of each service.
	askers map[sourceListKey]rightSet
	lists  map[right]sourceListKey
	// admitted has the lists that are admitted, each by its oldest service, as of the last
	// call of changes.
	admitted map[sourceListKey]right
	// touched has the lists whose services have changed since then.
	touched []sourceListKey
}

// listChange says by which service a list was admitted and is now; empty for none.
type listChange struct {
	list          sourceListKey
	before, after right
}

func newListQueue(limit int) *listQueue {
	return &listQueue{
		queue: queue{limit: limit}, askers: map[sourceListKey]rightSet{}, lists: map[right]sourceListKey{}, admitted: map[sourceListKey]right{},
	}
}

// set adds a service to those that ask for a list, or removes it. A service asks for one
// list at most.
func (q *listQueue) set(list sourceListKey, r right, add bool) {
	before, _, _ := q.askers[list].First()
	setMember(q.askers, list, r, add)
	after, _, _ := q.askers[list].First()
	if add {
		q.lists[r] = list
	} else {
		delete(q.lists, r)
	}
	if before != after {
		if before != "" {
			q.queue.set(request{right: before})
		}
		if after != "" {
			q.queue.set(request{after, list.lists()})
		}
	}
	q.touched = append(q.touched, list)
}

// changes returns what has changed since its last call.
func (q *listQueue) changes() []listChange {
	for _, r := range q.queue.admit() {
		if list, asks := q.lists[r]; asks {
			q.touched = append(q.touched, list)
		}
	}
	var changes []listChange
	for _, list := range q.touched {
		oldest, _, _ := q.askers[list].First()
		if oldest != "" && q.queue.admitted.At(oldest) == 0 {
			oldest = ""
		}
		before := q.admitted[list]
		if before == oldest {
			continue
		}
		if changes = append(changes, listChange{list, before, oldest}); oldest == "" {
			delete(q.admitted, list)
		} else {
			q.admitted[list] = oldest
		}
	}
	q.touched = nil
	return changes
}

func (q *listQueue) handOn(above *listQueue) {
	for _, c := range q.changes() {
		if c.before != "" {
			above.set(c.list, c.before, false)
		}
		if c.after != "" {
			above.set(c.list, c.after, true)
		}
	}
}

func (q *listQueue) empty() bool { return len(q.askers) == 0 }
