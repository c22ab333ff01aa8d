package service

import (
	"encoding/binary"

	"nftproxy/model/treap"
)

// shares is the number of namespaces that can use up the whole of a bound on all services.
const shares = 4

// shareOf is how much of a bound one namespace may use up.
func shareOf(limit int) int { return (limit-1)/shares + 1 }

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
	of func(*Service) D
	// services has all services that make each demand.
	services   map[D]ageSet
	namespaces map[string]*tier[D]
	// all has the demands that the namespaces admit.
	all *tier[D]
	// moved has the services whose demands may have been admitted or turned away, by their namespaces or by all.
	moved []age
}

func newQuota[D demand](limit int, of func(*Service) D) quota[D] {
	return quota[D]{limit: limit, of: of, services: map[D]ageSet{}, namespaces: map[string]*tier[D]{},
		all: newTier[D](limit)}
}

// admits says whether the service has what it asks for, or asks for nothing. It may be nil.
func (q *quota[D]) admits(s *Service) bool {
	var none D
	d := q.of(s)
	return d == none || q.all.admitted[d] != ""
}

// replace replaces the version old of a service by s. Either may be nil.
func (q *quota[D]) replace(old, s *Service) {
	q.change(old, s, q.of(old), q.of(s))
}

// change does it for what the two versions ask for.
func (q *quota[D]) change(old, s *Service, before, after D) {
	var none D
	if before == after && (before == none || old.age() == s.age()) {
		return
	}
	if before != none {
		q.set(before, old.age(), false)
	}
	if after != none {
		q.set(after, s.age(), true)
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
		own = newTier[D](shareOf(q.limit))
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

func (s *Service) age() age {
	b := make([]byte, 0, ageName+len(s.Name))
	b = append(b, byte(compareBools(s.whollyRetained(), false)))
	// With the sign bit flipped, negative numbers sort before positive ones.
	b = binary.BigEndian.AppendUint64(b, uint64(s.Created.Unix())^1<<63)
	b = binary.BigEndian.AppendUint32(b, uint32(s.Created.Nanosecond()))
	return age(append(b, s.Name...))
}

// ageName is where the name begins.
const ageName = 1 + 8 + 4

func (a age) name() Name { return Name(a[ageName:]) }

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
