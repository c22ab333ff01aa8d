package flows

import (
	"container/heap"
	"time"
)

// ended has the connections that have ended last. When there are too many, the oldest one of the namespace that has
// most is forgotten: one tenant's do not drive out all others'.
type ended struct {
	most, count int
	// since is when the last one ended that has been forgotten, and sinceIn the same of each namespace. Of those that it
	// does not have, none that ended after others has been.
	since, others time.Time
	sinceIn       map[string]time.Time
	spaces        map[string]*endedOf
	queue         endedQueue
}

// endedOf has those of a namespace, the oldest first.
type endedOf struct {
	namespace string
	flows     []Flow
	place     int // in the queue
}

func newEnded(most int) ended {
	return ended{most: most, sinceIn: map[string]time.Time{}, spaces: map[string]*endedOf{}}
}

func (e *ended) add(f Flow) {
	namespace, _ := f.Service.Split()
	of := e.spaces[namespace]
	if of == nil {
		of = &endedOf{namespace: namespace, flows: []Flow{f}}
		e.spaces[namespace] = of
		heap.Push(&e.queue, of)
	} else {
		of.flows = append(of.flows, f)
		heap.Fix(&e.queue, of.place)
	}
	if e.count++; e.count > e.most {
		e.evict()
	}
}

// evict forgets one.
func (e *ended) evict() {
	of := e.queue[0]
	e.forgot(of.namespace, of.flows[0].end())
	e.count--
	if of.flows = of.flows[1:]; len(of.flows) > 0 {
		heap.Fix(&e.queue, 0)
		return
	}
	heap.Pop(&e.queue)
	delete(e.spaces, of.namespace)
}

// forgot notes that one which ended at a moment is forgotten. There are no more notes than flows.
func (e *ended) forgot(namespace string, at time.Time) {
	if _, known := e.sinceIn[namespace]; !known && len(e.sinceIn) >= e.most {
		e.others = e.since
		clear(e.sinceIn)
	}
	if at.After(e.since) {
		e.since = at
	}
	if at.After(e.sinceIn[namespace]) {
		e.sinceIn[namespace] = at
	}
}

// end is when an ended flow ended, by the clock of answers.
func (f *Flow) end() time.Time { return f.Begin.Add(time.Duration(f.Seconds * float64(time.Second))) }

// endedQueue is a heap of namespaces: first the one with most, and of equal ones that with the oldest.
type endedQueue []*endedOf

func (q endedQueue) Len() int { return len(q) }

func (q endedQueue) Less(i, j int) bool {
	if a, b := len(q[i].flows), len(q[j].flows); a != b {
		return a > b
	}
	return q[i].flows[0].Seq < q[j].flows[0].Seq
}

func (q endedQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push is for package heap.
func (q *endedQueue) Push(x any) {
	of := x.(*endedOf)
	of.place = len(*q)
	*q = append(*q, of)
}

// Pop is for package heap.
func (q *endedQueue) Pop() any {
	last := (*q)[len(*q)-1]
	(*q)[len(*q)-1] = nil
	*q = (*q)[:len(*q)-1]
	return last
}
