package service

import "fmt"

// DefaultMaxAffinityPorts is the default bound on service ports with session affinity. Each such
// port has a map of its own in the kernel. The kernel searches maps by name in a list, so n of them
// cost n squared.
const DefaultMaxAffinityPorts = 2000

// WithoutAffinity says why a service that asks for session affinity is served without
// it, by a hash of the client's address.
type WithoutAffinity struct {
	// Ports is the number of the service's ports.
	Ports int
	// Limit is how many ports may have session affinity: ports of the services in the
	// service's namespace or, without Namespace, of all services.
	Limit     int
	Namespace bool
}

// String reads like "served without session affinity, by a hash of the client's address: the services of one
// namespace may have it on 500 ports, the oldest first".
func (w *WithoutAffinity) String() string {
	services := "all services together"
	if w.Namespace {
		services = "the services of one namespace"
	}
	if w.Ports > w.Limit {
		return fmt.Sprintf("served without session affinity, by a hash of the client's address: it has %d ports, and %s may have it on %d", w.Ports, services, w.Limit)
	}
	return fmt.Sprintf("served without session affinity, by a hash of the client's address: %s may have it on %d ports, the oldest first", services, w.Limit)
}

// affinity decides which services have the session affinity that they ask for. A change
// costs O(log n) for each service that it admits or turns away.
type affinity struct {
	quota[*queue]
	// moved has the services that may have been admitted or turned away.
	moved []right
}

func newAffinity(limit int) affinity {
	return affinity{quota: newQuota(limit, newQueue)}
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
	a.change(one.right, func(own *queue) {
		if before.right != "" {
			own.set(request{right: before.right})
		}
		if after.right != "" {
			own.set(after)
		}
	})
	a.moved = append(a.moved, a.all.admit()...)
}

// request returns the service's request. A service with more ports than a namespace may
// have makes none: it would only keep younger services from being admitted.
func (a *affinity) request(s *Service) request {
	if n := s.affinityPorts(); n > 0 && n <= shareOf(a.limit) {
		return request{s.age(), n}
	}
	return request{}
}

// age is a right that sorts services by their age, the oldest first, and the retained ones last.
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
		return &WithoutAffinity{Ports: n, Limit: shareOf(a.limit), Namespace: true}
	case a.all.admitted.At(r) == 0:
		return &WithoutAffinity{Ports: n, Limit: a.limit}
	}
	return nil
}
