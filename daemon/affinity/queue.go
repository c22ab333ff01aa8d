package affinity

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"nftproxy/model/pace"
	"nftproxy/nft/ruleset"
)

// queue says which map is swept next. A call costs time that grows with the logarithm of the number of waiting maps, or
// one look at each map that is ready. Sorted lists would move half of the maps at each call: to ask for a sweep of all
// maps of 30,000 Services then took 40 times as long.
type queue struct {
	maps map[ruleset.AffinityName]*waitingMap
	// later has the maps whose time has not come, the earliest first. ready has the
	// others, first the one whose last sweep was the shortest.
	later, ready mapHeap
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
	// inHeap is the heap that has it, at the index.
	inHeap *mapHeap
	index  int
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
		m.readySince = now
		q.push(&q.ready, m)
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
	q.removeFromHeap(m)
}

func (q *queue) end(m *waitingMap, now time.Time, took time.Duration, failed bool) {
	m.schedule.End(now, took, failed)
	m.took = took
	q.place(m)
}

func (q *queue) remove(m *waitingMap) {
	q.removeFromHeap(m)
	delete(q.maps, m.name)
}

// place puts the map into the heap for its schedule. It forgets a map without another sweep on its schedule.
func (q *queue) place(m *waitingMap) {
	at, ok := m.schedule.Next()
	if !ok {
		q.remove(m)
		return
	}
	if m.inHeap == &q.ready {
		return
	}
	q.removeFromHeap(m)
	m.at = at
	q.push(&q.later, m)
}

func (q *queue) push(to *mapHeap, m *waitingMap) {
	q.removeFromHeap(m)
	m.inHeap = to
	heap.Push(to, m)
}

func (q *queue) removeFromHeap(m *waitingMap) {
	if m.inHeap != nil {
		heap.Remove(m.inHeap, m.index)
		m.inHeap = nil
	}
}

// mapHeap is a heap of maps in the order of less.
type mapHeap struct {
	list []*waitingMap
	less func(a, b *waitingMap) bool
}

func soonest(a, b *waitingMap) bool { return cmp.Or(a.at.Compare(b.at), compareNames(a, b)) < 0 }

func cheapest(a, b *waitingMap) bool {
	return cmp.Or(cmp.Compare(a.took, b.took), compareNames(a, b)) < 0
}

func compareReadySince(a, b *waitingMap) int {
	return cmp.Or(a.readySince.Compare(b.readySince), compareNames(a, b))
}

func compareNames(a, b *waitingMap) int {
	return cmp.Or(cmp.Compare(a.name.Family, b.name.Family), cmp.Compare(a.name.Map, b.name.Map))
}

func newQueue() *queue {
	return &queue{maps: map[ruleset.AffinityName]*waitingMap{}, later: mapHeap{less: soonest},
		ready: mapHeap{less: cheapest}}
}

// Len, Less, Swap, Push and Pop are for package heap.
func (h *mapHeap) Len() int { return len(h.list) }

// Less says whether the map at i comes before the map at j.
func (h *mapHeap) Less(i, j int) bool { return h.less(h.list[i], h.list[j]) }

// Swap swaps two maps.
func (h *mapHeap) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}

// Push appends a map.
func (h *mapHeap) Push(x any) {
	m := x.(*waitingMap)
	m.index = len(h.list)
	h.list = append(h.list, m)
}

// Pop removes the last map and returns it.
func (h *mapHeap) Pop() any {
	last := h.list[len(h.list)-1]
	h.list[len(h.list)-1] = nil
	h.list = h.list[:len(h.list)-1]
	return last
}
