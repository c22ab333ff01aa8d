package service

import "nftproxy/model/treap"

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
