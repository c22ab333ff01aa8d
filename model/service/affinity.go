package service

import (
	"fmt"

	"nftproxy/model/treap"
)

// DefaultMaxAffinityPorts is the default bound on service ports with session affinity.
// Each such port has a map of its own in the kernel. The kernel searches maps one after
// the other, so n of them cost n squared.
const DefaultMaxAffinityPorts = 2000

// affinityShares is the number of namespaces that can use up the whole bound.
const affinityShares = 4

// WithoutAffinity says why a service that asks for session affinity is served without
// it.
type WithoutAffinity struct {
	// Ports is the number of the service's ports.
	Ports int
	// Limit is how many ports may have session affinity: ports of the services in the
	// service's namespace or, without Namespace, of all services.
	Limit     int
	Namespace bool
}

// String reads like "served without session affinity: the services of one
// namespace may have it on 500 ports, the oldest first".
func (w *WithoutAffinity) String() string {
	services := "all services together"
	if w.Namespace {
		services = "the services of one namespace"
	}
	if w.Ports > w.Limit {
		return fmt.Sprintf("served without session affinity: it has %d ports, and %s may have it on %d", w.Ports, services, w.Limit)
	}
	return fmt.Sprintf("served without session affinity: %s may have it on %d ports, the oldest first", services, w.Limit)
}

// affinity decides which services have the session affinity that they ask for. In each
// namespace it admits the oldest services, up to the namespace's share. Of these it
// admits the oldest of all, up to the limit. The result depends on the services that
// ask, not on the order in which they came. A change costs O(log n) for each service
// that it admits or turns away.
type affinity struct {
	share      int
	namespaces map[string]*queue
	all        queue
	// moved has the services that may have been admitted or turned away.
	moved []right
}

func newAffinity(limit int) affinity {
	share := (limit-1)/affinityShares + 1
	return affinity{share: share, namespaces: map[string]*queue{}, all: queue{limit: limit}}
}

// affinityPorts is the number of ports for which a service asks for affinity. The
// service may be nil.
func (s *Service) affinityPorts() int {
	if s == nil || s.AffinityTimeout == 0 {
		return 0
	}
	return len(s.Ports)
}

// replace replaces the version old of a service by s. Either may be nil.
func (a *affinity) replace(old, s *Service) {
	before, after := a.request(old), a.request(s)
	if before == after {
		return
	}
	one := after
	if one.right == "" {
		one = before
	}
	namespace, _ := one.right.name().Split()
	own := a.namespaces[namespace]
	if own == nil {
		own = &queue{limit: a.share}
		a.namespaces[namespace] = own
	}
	if before.right != "" {
		own.set(affinityRequest{right: before.right})
	}
	if after.right != "" {
		own.set(after)
	}
	for _, r := range own.admit() {
		a.all.set(affinityRequest{r, own.admitted.At(r)})
	}
	a.moved = append(a.moved, a.all.admit()...)
	if own.empty() {
		delete(a.namespaces, namespace)
	}
}

// request returns the service's request. A service with more ports than a namespace may
// have makes none: it would only keep younger services from being admitted.
func (a *affinity) request(s *Service) affinityRequest {
	if n := s.affinityPorts(); n > 0 && n <= a.share {
		return affinityRequest{s.age(), n}
	}
	return affinityRequest{}
}

// age is a right that sorts services by their age, like CompareAge.
func (s *Service) age() right { return s.right(0, false) }

// reasonWithout says why the service, which must be in the queues, is served without
// session affinity. It is nil if the service has affinity or does not ask for it.
func (a *affinity) reasonWithout(s *Service) *WithoutAffinity {
	n := s.affinityPorts()
	if n == 0 {
		return nil
	}
	namespace, _ := s.Name.Split()
	own := a.namespaces[namespace]
	switch r := s.age(); {
	case own == nil || own.admitted.At(r) == 0:
		return &WithoutAffinity{Ports: n, Limit: a.share, Namespace: true}
	case a.all.admitted.At(r) == 0:
		return &WithoutAffinity{Ports: n, Limit: a.all.limit}
	}
	return nil
}

// affinityRequest is a service's request for affinity on a number of ports. The zero
// value is no request.
type affinityRequest struct {
	right right
	ports int
}

// queue has requests by age. It admits the oldest ones, as long as their ports are not
// more than the limit. Behind the first request that does not fit it admits none, even
// one that would fit: so the older services alone decide whether one is admitted.
type queue struct {
	limit int
	// used is the number of ports that are admitted.
	used int
	// All admitted services are older than all waiting ones. The values are ports.
	admitted, waiting treap.Map[right, int]
	// moved has the services that were set, admitted or turned away since the last
	// call of admit.
	moved []right
}

// set replaces the request with the same right. A request without ports leaves the
// queue.
func (q *queue) set(r affinityRequest) {
	had, wasAdmitted := q.admitted.Get(r.right)
	if !wasAdmitted {
		had = q.waiting.At(r.right)
	}
	if had == r.ports {
		return
	}
	if wasAdmitted {
		q.used -= had
	}
	q.admitted, q.waiting = q.admitted.Delete(r.right), q.waiting.Delete(r.right)
	q.moved = append(q.moved, r.right)
	if r.ports == 0 {
		return
	}
	if first, _, ok := q.waiting.First(); ok && first < r.right {
		q.waiting = q.waiting.Set(r.right, r.ports)
		return
	}
	q.admitted = q.admitted.Set(r.right, r.ports)
	q.used += r.ports
}

// admit turns away the youngest services until the limit holds, and then admits the
// oldest waiting ones that fit. It returns the services that this may concern.
func (q *queue) admit() []right {
	for q.used > q.limit {
		last, ports, _ := q.admitted.Last()
		q.admitted, q.waiting = q.admitted.Delete(last), q.waiting.Set(last, ports)
		q.used -= ports
		q.moved = append(q.moved, last)
	}
	for {
		first, ports, ok := q.waiting.First()
		if !ok || q.used+ports > q.limit {
			break
		}
		q.waiting, q.admitted = q.waiting.Delete(first), q.admitted.Set(first, ports)
		q.used += ports
		q.moved = append(q.moved, first)
	}
	moved := q.moved
	q.moved = nil
	return moved
}

func (q *queue) empty() bool { return q.admitted.Len() == 0 && q.waiting.Len() == 0 }
