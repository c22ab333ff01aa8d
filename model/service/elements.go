package service

import (
	"cmp"
	"net/netip"

	"nftproxy/model/ip"
)

// DefaultMaxAllElements is the default bound on the elements of all services of a node. Beyond what each service may
// have in any case, it holds for their lists of endpoints, and once more for the slots of weights and hashes.
const DefaultMaxAllElements = 1 << 20

// UncountedElements is how many elements without slots each service may have, whatever others have.
const UncountedElements = 1 << 12

// amount is what one service asks for by itself.
type amount struct {
	name Name
	n    int
}

func (a amount) size() int { return a.n }

// elements decides which services have as many elements as the bound on one service allows.
type elements struct {
	// plain is the elements of services without slots beyond UncountedElements, slots those that slots add.
	plain, slots quota[amount]
	// asks has what each service asks for, of those that ask for something.
	asks map[Name]elementDemand
}

// elementDemand is what a service asks for of both quotas.
type elementDemand struct{ plain, slots int }

func newElements(limit int) elements {
	e := elements{asks: map[Name]elementDemand{}}
	e.plain = newQuota(limit, func(s *Service) amount { return amountOf(s.Name, e.asks[s.Name].plain) })
	e.slots = newQuota(limit, func(s *Service) amount { return amountOf(s.Name, e.asks[s.Name].slots) })
	return e
}

// amountOf is the zero value, which asks for nothing, where n is 0.
func amountOf(name Name, n int) amount {
	if n == 0 {
		return amount{}
	}
	return amount{name, n}
}

// replace replaces the version old of a service by s, which asks for that much. Either may be nil.
func (e *elements) replace(old, s *Service, asks elementDemand) {
	name := cmp.Or(s, old).Name
	before := e.asks[name]
	if asks == (elementDemand{}) {
		delete(e.asks, name)
	} else {
		e.asks[name] = asks
	}
	e.plain.change(old, s, amountOf(name, before.plain), amountOf(name, asks.plain))
	e.slots.change(old, s, amountOf(name, before.slots), amountOf(name, asks.slots))
}

// takeMoved returns the services of which others have changed what they get, since the last call.
func (e *elements) takeMoved() []age {
	return append(e.plain.takeMoved(), e.slots.takeMoved()...)
}

// bounded returns the part of the service that it may have, and a count of the rest. Without room for its slots it has
// none, without room for its elements it has UncountedElements.
func (e *elements) bounded(s *Service, limit int) (*Service, *LeftOut) {
	plain, slots := e.plain.admits(s), e.slots.admits(s)
	if !slots {
		random := *s
		random.SlotLimit = noSlots
		s = &random
	}
	if !plain {
		limit = min(limit, UncountedElements)
	}
	served, left := s.bounded(limit)
	if !slots && left == nil {
		left = &LeftOut{Limit: limit}
	}
	if !slots {
		left.SlotLimit = noSlots
	}
	if left != nil && !(plain && slots) {
		left.All = e.plain.limit
	}
	return served, left
}

// demand returns what the service asks for, with a bound on one service. The service may be nil.
func (s *Service) demand(limit int) elementDemand {
	if s == nil {
		return elementDemand{}
	}
	plain := min(limit, s.elements((*Port).endpoints))
	all := plain
	if s.asksForSlots() {
		fitted := s.fitted(limit)
		all = max(all, min(limit, fitted.elements(fitted.Slots)))
	}
	if s.Options.SlowStart > 0 {
		all = max(all, min(limit, int(WholeShare.Quarters())*plain))
	}
	return elementDemand{plain: max(0, plain-UncountedElements), slots: all - plain}
}

// elements is how many elements the service has at most, with lists of that size.
func (s *Service) elements(size func(*Port, ip.Family) int) int {
	var each ip.PerFamily[int]
	lists := 1
	if s.ExternalPolicy == Local {
		lists = 2
	}
	for i := range s.Ports {
		for _, f := range ip.Families() {
			*each.Of(f) += 1 + lists*size(&s.Ports[i], f)
		}
	}
	sum := len(s.ClusterIPs) + s.pairs()
	for _, addrs := range [][]netip.Addr{s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs} {
		for _, a := range addrs {
			sum += *each.Of(ip.Of(a))
		}
	}
	if s.hasNodePort() {
		sum += *each.Of(ip.V4) + *each.Of(ip.V6)
	}
	return sum
}
