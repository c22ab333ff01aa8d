package affinity

import (
	"cmp"
	"slices"
	"time"

	"nftproxy/model/pace"
	"nftproxy/nft/ruleset"
)

// queue says which map is swept next. A call costs a search by halves in the waiting maps, or one look at each map
// that is ready.
type queue struct {
	maps map[ruleset.AffinityName]*waitingMap
	// later has the maps whose time has not come, the earliest first. ready has the
	// others, first the one whose last sweep was the shortest.
	later, ready sortedMaps
	// cheapestLast says that the last sweep was of the first map in ready. The next
	// one may then be of the map that has waited for longest.
	cheapestLast bool
}

type waitingMap struct {
	name     ruleset.AffinityName
	schedule pace.Schedule
	// at is when it becomes ready.
	at         time.Time
	readySince time.Time
	// took is the duration of its last sweep, 0 before the first, and cost its CPU time.
	// forgetCost is the CPU time that it took to empty the map.
	took, cost, forgetCost time.Duration
	// asked says that it waits for a sweep for a new reason, since askedAt.
	asked   bool
	askedAt time.Time
}

// request has a map swept for a new reason.
func (q *queue) request(name ruleset.AffinityName) {
	m := q.maps[name]
	if m == nil {
		m = &waitingMap{name: name, schedule: pace.Schedule{Pause: pause, Late: lateWaits()}}
		q.maps[name] = m
	}
	m.schedule.Request(true)
	if !m.asked {
		m.asked, m.askedAt = true, time.Now()
	}
	q.place(m)
}

// next is the map to be swept next, and when; nil for none. Of the maps that are ready it is the one whose last sweep
// was the shortest, so that a small map does not wait for all the large ones. With fair, every other sweep is of the
// map that has waited for longest, so that small maps without end do not keep a large one waiting. fair is for when all
// earlier sweeps have been rested for.
func (q *queue) next(now time.Time, fair bool) (*waitingMap, time.Time) {
	for len(q.later.list) > 0 && !q.later.list[0].at.After(now) {
		m := q.later.list[0]
		q.later.remove(m)
		m.readySince = now
		q.ready.add(m)
	}
	if len(q.ready.list) > 0 {
		if fair && q.cheapestLast {
			return slices.MinFunc(q.ready.list, compareReadySince), now
		}
		return q.ready.list[0], now
	}
	if len(q.later.list) > 0 {
		return q.later.list[0], q.later.list[0].at
	}
	return nil, time.Time{}
}

// begin and end are called around a sweep of the map.
func (q *queue) begin(m *waitingMap, now time.Time) {
	q.cheapestLast = len(q.ready.list) > 0 && q.ready.list[0] == m
	m.schedule.Begin(now)
	m.asked = false
	q.ready.remove(m)
	q.later.remove(m)
}

func (q *queue) end(m *waitingMap, now time.Time, took time.Duration, failed bool) {
	m.schedule.End(now, took, failed)
	m.took = took
	q.place(m)
}

func (q *queue) remove(m *waitingMap) {
	q.ready.remove(m)
	q.later.remove(m)
	delete(q.maps, m.name)
}

// place puts the map where its schedule says. It forgets a map without another sweep on its schedule.
func (q *queue) place(m *waitingMap) {
	at, ok := m.schedule.Next()
	if !ok {
		q.remove(m)
		return
	}
	if _, ready := q.ready.find(m); ready {
		return
	}
	q.later.remove(m)
	m.at = at
	q.later.add(m)
}

func compareAt(a, b *waitingMap) int { return cmp.Or(a.at.Compare(b.at), compareNames(a, b)) }

func compareTook(a, b *waitingMap) int {
	return cmp.Or(cmp.Compare(a.took, b.took), compareNames(a, b))
}

func compareReadySince(a, b *waitingMap) int {
	return cmp.Or(a.readySince.Compare(b.readySince), compareNames(a, b))
}

func compareNames(a, b *waitingMap) int {
	return cmp.Or(cmp.Compare(a.name.Family, b.name.Family), cmp.Compare(a.name.Map, b.name.Map),
		cmp.Compare(a.name.Service, b.name.Service))
}

func newQueue() *queue {
	return &queue{maps: map[ruleset.AffinityName]*waitingMap{}, later: sortedMaps{compare: compareAt},
		ready: sortedMaps{compare: compareTook}}
}

// sortedMaps are maps in an order. What a map is compared by changes only while it is not among them.
type sortedMaps struct {
	list    []*waitingMap
	compare func(a, b *waitingMap) int
}

// find returns where the map is or would be, and whether it is there.
func (s *sortedMaps) find(m *waitingMap) (int, bool) {
	return slices.BinarySearchFunc(s.list, m, s.compare)
}

func (s *sortedMaps) add(m *waitingMap) {
	at, _ := s.find(m)
	s.list = slices.Insert(s.list, at, m)
}

// remove removes the map if it is there.
func (s *sortedMaps) remove(m *waitingMap) {
	if at, found := s.find(m); found {
		s.list = slices.Delete(s.list, at, at+1)
	}
}
