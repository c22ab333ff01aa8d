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
		return fmt.Sprintf("served without session affinity, by a hash of the client's address: it has %d ports, and %s "+
			"may have it on %d", w.Ports, services, w.Limit)
	}
	return fmt.Sprintf("served without session affinity, by a hash of the client's address: %s may have it on %d ports, "+
		"the oldest first", services, w.Limit)
}

// affinity decides which services have the session affinity that they ask for, on some ports.
type affinity struct{ quota[amount] }

// newAffinity has a service with more ports than a namespace may have ask for nothing: it would only keep younger
// services from being admitted.
func newAffinity(limit int) affinity {
	return affinity{newQuota(limit, func(s *Service) (d amount) {
		if n := s.affinityPorts(); n > 0 && n <= shareOf(limit) {
			d = amount{s.Name, n}
		}
		return d
	})}
}

// affinityPorts is the number of ports for which a service asks for affinity. The
// service may be nil.
func (s *Service) affinityPorts() int {
	if s == nil || s.AffinityTimeout == 0 {
		return 0
	}
	return len(s.Ports)
}

// reasonWithout says why the service is served without session affinity. It is nil if the service has affinity or does
// not ask for it.
func (a *affinity) reasonWithout(s *Service) *WithoutAffinity {
	n := s.affinityPorts()
	if n == 0 {
		return nil
	}
	namespace, _ := s.Name.Split()
	own := a.namespaces[namespace]
	switch d := a.of(s); {
	case own == nil || own.admitted[d] == "":
		return &WithoutAffinity{Ports: n, Limit: shareOf(a.limit), Namespace: true}
	case a.all.admitted[d] == "":
		return &WithoutAffinity{Ports: n, Limit: a.limit}
	}
	return nil
}
