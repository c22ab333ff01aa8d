package service

import "nftproxy/model/treap"

// shares is the number of namespaces that can use up the whole of a bound on all services.
const shares = 4

// shareOf is how much of a bound one namespace may use up.
func shareOf(limit int) int { return (limit-1)/shares + 1 }

// quota is a bound on what the services have together, and of each namespace on its share of
// that. In each namespace the oldest requests are admitted, up to the share. Of these the
// oldest of all are admitted, up to the limit. The result depends on the requests, not on the
// order in which they came.
type quota[T tier[T]] struct {
	limit      int
	tier       func(limit int) T
	namespaces map[string]T
	// all has the requests that the namespaces admit.
	all T
}

// tier is the bound of one namespace, or that of all.
type tier[T any] interface {
	// handOn has the tier above hold what this one admits.
	handOn(above T)
	empty() bool
}

func newQuota[T tier[T]](limit int, tier func(limit int) T) quota[T] {
	return quota[T]{limit: limit, tier: tier, namespaces: map[string]T{}, all: tier(limit)}
}

// change changes requests in the namespace of a service, and what all have by it.
func (q *quota[T]) change(r right, change func(own T)) {
	namespace, _ := r.name().Split()
	own, known := q.namespaces[namespace]
	if !known {
		own = q.tier(shareOf(q.limit))
		q.namespaces[namespace] = own
	}
	change(own)
	own.handOn(q.all)
	if own.empty() {
		delete(q.namespaces, namespace)
	}
}

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

func newQueue(limit int) *queue { return &queue{limit: limit} }

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

func (q *queue) handOn(above *queue) {
	for _, r := range q.admit() {
		above.set(request{r, q.admitted.At(r)})
	}
}

func (q *queue) empty() bool { return q.admitted.Len() == 0 && q.waiting.Len() == 0 }
