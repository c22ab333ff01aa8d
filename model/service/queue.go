package service

import "nftproxy/model/treap"

// shares is the number of namespaces that can use up the whole of a bound on all services.
const shares = 4

// shareOf is how much of a bound one namespace may use up.
func shareOf(limit int) int { return (limit-1)/shares + 1 }

// request is a service's request for some of what a queue bounds. The zero
// value is no request.
type request struct {
	right right
	// size is how much the service asks for.
	size int
}

// queue has requests by age. It admits the oldest ones, as long as their sizes are not
// more than the limit. Behind the first request that does not fit it admits none, even
// one that would fit: so the older services alone decide whether one is admitted.
type queue struct {
	limit int
	// used is the sum of the admitted sizes.
	used int
	// All admitted services are older than all waiting ones. The values are sizes.
	admitted, waiting treap.Map[right, int]
	// moved has the services that were set, admitted or turned away since the last
	// call of admit.
	moved []right
}

// set replaces the request with the same right. A request of size 0 leaves the
// queue.
func (q *queue) set(r request) {
	had, wasAdmitted := q.admitted.Get(r.right)
	if !wasAdmitted {
		had = q.waiting.At(r.right)
	}
	if had == r.size {
		return
	}
	if wasAdmitted {
		q.used -= had
	}
	q.admitted, q.waiting = q.admitted.Delete(r.right), q.waiting.Delete(r.right)
	q.moved = append(q.moved, r.right)
	if r.size == 0 {
		return
	}
	if first, _, ok := q.waiting.First(); ok && first < r.right {
		q.waiting = q.waiting.Set(r.right, r.size)
		return
	}
	q.admitted = q.admitted.Set(r.right, r.size)
	q.used += r.size
}

// admit turns away the youngest services until the limit holds, and then admits the
// oldest waiting ones that fit. It returns the services that this may concern.
func (q *queue) admit() []right {
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

func (q *queue) empty() bool { return q.admitted.Len() == 0 && q.waiting.Len() == 0 }
