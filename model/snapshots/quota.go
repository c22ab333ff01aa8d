package snapshots

import (
	"encoding/binary"

	"nftproxy/model/service"
	"nftproxy/model/treap"
)

// demand is what a service asks for of what a quota bounds. The zero value asks for nothing. Equal demands of several
// services are one, which counts once.
type demand interface {
	comparable
	size() int
}

// quota is a bound on what the services have together, and of each namespace on its share of
// that. Each demand is as old as the oldest service that makes it. In each namespace the oldest
// demands are admitted, up to the share. Of these the oldest of all are admitted, up to the limit.
// A demand that is admitted is so for all services that make it. The result depends on the services,
// not on the order in which they came. A change costs O(log n) for the demands that it admits or turns
// away, and visits the services that make these.
type quota[D demand] struct {
	limit int
	// asks has what each service asks for, of those that ask for something.
	asks map[service.Name]asking[D]
	// services has all services that make each demand.
	services   map[D]ageSet
	namespaces map[string]*tier[D]
	// all has the demands that the namespaces admit.
	all *tier[D]
	// moved has the services whose demands may have been admitted or turned away, by their namespaces or by all.
	moved []age
}

// asking is what a service asks for, and its age; the zero value is nothing.
type asking[D demand] struct {
	demand D
	age    age
}

func newQuota[D demand](limit int) quota[D] {
	asks := map[service.Name]asking[D]{}
	return quota[D]{limit: limit, asks: asks, services: map[D]ageSet{}, namespaces: map[string]*tier[D]{},
		all: newTier(limit, asks)}
}

// admits says whether the service has what it asks for, or asks for nothing.
func (q *quota[D]) admits(name service.Name) bool {
	one, asks := q.asks[name]
	return !asks || q.all.admitted[one.demand] != ""
}

// replace replaces what a service asks for by d, which its version s asks for. s is nil if the service goes; then d is
// the zero value.
func (q *quota[D]) replace(name service.Name, s *service.Service, d D) {
	var next, none asking[D]
	if d != none.demand {
		next = asking[D]{d, ageOf(s)}
	}
	before := q.asks[name]
	if before == next {
		return
	}
	if before != none {
		delete(q.asks, name)
		q.set(before, false)
	}
	if next != none {
		q.asks[name] = next
		q.set(next, true)
	}
	for _, c := range q.all.changes() {
		if !c.turns() {
			continue
		}
		for r := range q.services[c.demand].All() {
			q.moved = append(q.moved, r)
		}
	}
}

// set adds a service to those that make a demand, or removes it.
func (q *quota[D]) set(one asking[D], add bool) {
	setMember(q.services, one.demand, one.age, add)
	namespace, _ := one.age.name().Split()
	own, known := q.namespaces[namespace]
	if !known {
		own = newTier(service.NamespaceShare(q.limit), q.asks)
		q.namespaces[namespace] = own
	}
	own.set(one.demand, one.age, add)
	for _, c := range own.changes() {
		if c.before != "" {
			q.all.set(c.demand, c.before, false)
		}
		if c.after != "" {
			q.all.set(c.demand, c.after, true)
		}
		if c.turns() {
			q.moved = append(q.moved, c.before+c.after) // one of the two is empty
		}
	}
	if len(own.askers) == 0 {
		delete(q.namespaces, namespace)
	}
}

// takeMoved returns the services of which others have changed what they get, since the last call.
func (q *quota[D]) takeMoved() []age {
	moved := q.moved
	q.moved = nil
	return moved
}

// age is the age of a service with its name, as a key of sorted maps: the oldest service first, and the retained ones
// last.
type age string

func ageOf(s *service.Service) age {
	b := make([]byte, 1, ageName+len(s.Name))
	if s.Retained == service.RetainedService {
		b[0] = 1
	}
	// With the sign bit flipped, negative numbers sort before positive ones.
	b = binary.BigEndian.AppendUint64(b, uint64(s.Created.Unix())^1<<63)
	b = binary.BigEndian.AppendUint32(b, uint32(s.Created.Nanosecond()))
	return age(append(b, s.Name...))
}

// ageName is where the name begins.
const ageName = 1 + 8 + 4

func (a age) name() service.Name { return service.Name(a[ageName:]) }

// ageSet is a set of services by their ages.
type ageSet = treap.Map[age, struct{}]

// setMember adds a service to the set of a demand, or removes it.
func setMember[D demand](sets map[D]ageSet, d D, r age, add bool) {
	set := sets[d].Delete(r)
	if add {
		set = set.Set(r, struct{}{})
	}
	if sets[d] = set; set.Len() == 0 {
		delete(sets, d)
	}
}

// tier is the bound of one namespace, or that of all. It admits demands, each by the oldest service that makes it.
type tier[D demand] struct {
	queue queue
	// asks are those of the quota.
	asks map[service.Name]asking[D]
	// askers has the services that make each demand.
	askers map[D]ageSet
	// admitted has the demands that are admitted, each by its oldest service, as of the last
	// call of changes.
	admitted map[D]age
	// touched has the demands whose services have changed since then.
	touched []D
}

// demandChange says by which service a demand was admitted and is now; empty for none.
type demandChange[D demand] struct {
	demand        D
	before, after age
}

// turns says whether the demand is admitted now and was not before, or the other way round.
func (c demandChange[D]) turns() bool { return (c.before == "") != (c.after == "") }

func newTier[D demand](limit int, asks map[service.Name]asking[D]) *tier[D] {
	return &tier[D]{queue: queue{limit: limit}, asks: asks, askers: map[D]ageSet{}, admitted: map[D]age{}}
}

// set adds a service to those that make a demand, or removes it. A service makes one at most.
func (t *tier[D]) set(d D, r age, add bool) {
	before, _, _ := t.askers[d].First()
	setMember(t.askers, d, r, add)
	after, _, _ := t.askers[d].First()
	if before != after {
		if before != "" {
			t.queue.set(before, 0)
		}
		if after != "" {
			t.queue.set(after, d.size())
		}
	}
	t.touched = append(t.touched, d)
}

// changes returns what has changed since its last call.
func (t *tier[D]) changes() []demandChange[D] {
	for _, r := range t.queue.admit() {
		if one, asks := t.asks[r.name()]; asks {
			t.touched = append(t.touched, one.demand)
		}
	}
	var changes []demandChange[D]
	for _, d := range t.touched {
		oldest, _, _ := t.askers[d].First()
		if oldest != "" && t.queue.admitted.At(oldest) == 0 {
			oldest = ""
		}
		before := t.admitted[d]
		if before == oldest {
			continue
		}
		if changes = append(changes, demandChange[D]{d, before, oldest}); oldest == "" {
			delete(t.admitted, d)
		} else {
			t.admitted[d] = oldest
		}
	}
	t.touched = nil
	return changes
}

// queue has services by age, each with the size of what it asks for. It admits the oldest ones, as long as their sizes
// are not more than the limit. Behind the first one that does not fit it admits none, even one that would fit: so the
// older services alone decide whether one is admitted.
type queue struct {
	limit int
	// used is the sum of the admitted sizes.
	used int
	// All admitted services are older than all waiting ones. The values are sizes.
	admitted, waiting treap.Map[age, int]
	// moved has the services that were set, admitted or turned away since the last
	// call of admit.
	moved []age
}

// set replaces the size of a service. One of size 0 leaves the queue.
func (q *queue) set(r age, size int) {
	had, wasAdmitted := q.admitted.Get(r)
	if !wasAdmitted {
		had = q.waiting.At(r)
	}
	if had == size {
		return
	}
	if wasAdmitted {
		q.used -= had
	}
	q.admitted, q.waiting = q.admitted.Delete(r), q.waiting.Delete(r)
	q.moved = append(q.moved, r)
	if size == 0 {
		return
	}
	if first, _, ok := q.waiting.First(); ok && first < r {
		q.waiting = q.waiting.Set(r, size)
		return
	}
	q.admitted = q.admitted.Set(r, size)
	q.used += size
}

// admit turns away the youngest services until the limit holds, and then admits the
// oldest waiting ones that fit. It returns the services that this may concern.
func (q *queue) admit() []age {
	for q.used > q.limit {
		last, size, _ := q.admitted.Last()
		q.admitted, q.waiting = q.admitted.Delete(last), q.waiting.Set(last, size)
		q.used -= size
		q.moved = append(q.moved, last)
	}
	for {
		first, size, ok := q.waiting.First()
		if !ok || q.used+size > q.limit {
			break
		}
		q.waiting, q.admitted = q.waiting.Delete(first), q.admitted.Set(first, size)
		q.used += size
		q.moved = append(q.moved, first)
	}
	moved := q.moved
	q.moved = nil
	return moved
}
