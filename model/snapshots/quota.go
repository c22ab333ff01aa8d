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
	// of is the demand of a service, which may be nil.
	of func(*service.Service) D
	// services has all services that make each demand.
	services   map[D]ageSet
	namespaces map[string]*tier[D]
	// all has the demands that the namespaces admit.
	all *tier[D]
	// moved has the services whose demands may have been admitted or turned away, by their namespaces or by all.
	moved []age
}

func newQuota[D demand](limit int, of func(*service.Service) D) quota[D] {
	return quota[D]{limit: limit, of: of, services: map[D]ageSet{}, namespaces: map[string]*tier[D]{},
		all: newTier[D](limit)}
}

// admits says whether the service has what it asks for, or asks for nothing. It may be nil.
func (q *quota[D]) admits(s *service.Service) bool {
	var none D
	d := q.of(s)
	return d == none || q.all.admitted[d] != ""
}

// replace replaces the version old of a service by s. Either may be nil.
func (q *quota[D]) replace(old, s *service.Service) {
	q.change(old, s, q.of(old), q.of(s))
}

// change does it for what the two versions ask for.
func (q *quota[D]) change(old, s *service.Service, before, after D) {
	var none D
	if before == after && (before == none || ageOf(old) == ageOf(s)) {
		return
	}
	if before != none {
		q.set(before, ageOf(old), false)
	}
	if after != none {
		q.set(after, ageOf(s), true)
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
func (q *quota[D]) set(d D, r age, add bool) {
	setMember(q.services, d, r, add)
	namespace, _ := r.name().Split()
	own, known := q.namespaces[namespace]
	if !known {
		own = newTier[D](service.NamespaceShare(q.limit))
		q.namespaces[namespace] = own
	}
	own.set(d, r, add)
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
	// askers has the services that make each demand, demands the demand of each service.
	askers  map[D]ageSet
	demands map[age]D
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

func newTier[D demand](limit int) *tier[D] {
	return &tier[D]{queue: queue{limit: limit}, askers: map[D]ageSet{}, demands: map[age]D{}, admitted: map[D]age{}}
}

// set adds a service to those that make a demand, or removes it. A service makes one at most.
func (t *tier[D]) set(d D, r age, add bool) {
	before, _, _ := t.askers[d].First()
	setMember(t.askers, d, r, add)
	after, _, _ := t.askers[d].First()
	if add {
		t.demands[r] = d
	} else {
		delete(t.demands, r)
	}
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
		if d, asks := t.demands[r]; asks {
			t.touched = append(t.touched, d)
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
