package snapshots

import (
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
)

// amount is what one service asks for by itself.
type amount struct {
	name service.Name
	n    int
}

func (a amount) size() int { return a.n }

// elements decides which services have as many elements as the bound on one service allows.
type elements struct {
	// plain is the elements of services without slots beyond UncountedElements, slots those that slots add.
	plain, slots quota[amount]
}

// elementDemand is what a service asks for of both quotas.
type elementDemand struct{ plain, slots int }

func newElements(limit int) elements {
	return elements{newQuota[amount](limit), newQuota[amount](limit)}
}

// amountOf is the zero value, which asks for nothing, where n is 0.
func amountOf(name service.Name, n int) amount {
	if n == 0 {
		return amount{}
	}
	return amount{name, n}
}

// replace replaces what a service asks for of both quotas by what its version s asks for, nil if the service goes.
func (e *elements) replace(name service.Name, s *service.Service, asks elementDemand) {
	e.plain.replace(name, s, amountOf(name, asks.plain))
	e.slots.replace(name, s, amountOf(name, asks.slots))
}

// bounded returns the part of the service that it may have, and a count of the rest. Without room for its slots it has
// none, without room for its elements it has UncountedElements.
func (e *elements) bounded(s *service.Service, limit int) (*service.Service, *service.LeftOut) {
	plain, slots := e.plain.admits(s.Name), e.slots.admits(s.Name)
	if !slots {
		random := *s
		random.SlotLimit = service.NoSlots
		s = &random
	}
	if !plain {
		limit = min(limit, service.UncountedElements)
	}
	served, left := bounded(s, limit)
	if !slots && left == nil {
		left = &service.LeftOut{Limit: limit}
	}
	if !slots {
		left.SlotLimit = service.NoSlots
	}
	if left != nil && !(plain && slots) {
		left.All = e.plain.limit
	}
	return served, left
}

// demandOf returns what a service asks for, with a bound on one service. The service may be nil.
func demandOf(s *service.Service, limit int) elementDemand {
	if s == nil {
		return elementDemand{}
	}
	plain := min(limit, elementsOf(s, (*service.Port).Count))
	all := plain
	if asksForSlots(s) {
		fitted := fitted(s, limit)
		all = max(all, min(limit, elementsOf(fitted, slotsOf(fitted))))
	}
	if s.Options.SlowStart > 0 {
		growing := func(p *service.Port, f ip.Family) int { return share.MostSlotsGrowing(s, p, f) }
		all = max(all, min(slotRoom(s, limit), elementsOf(s, growing))) // as fitted has it
	}
	return elementDemand{plain: max(0, plain-service.UncountedElements), slots: all - plain}
}

// elementsOf is how many elements a service has at most, with lists of that size.
func elementsOf(s *service.Service, size sizeOf) int {
	var each ip.PerFamily[int]
	lists := 1
	if s.ExternalPolicy == service.Local {
		lists = 2
	}
	for i := range s.Ports {
		for _, f := range ip.Families() {
			*each.Of(f) += 1 + lists*size(&s.Ports[i], f)
		}
	}
	sum := len(s.ClusterIPs) + pairs(s)
	for _, addrs := range [][]netip.Addr{s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs} {
		for _, a := range addrs {
			sum += *each.Of(ip.Of(a))
		}
	}
	if hasNodePort(s) {
		sum += *each.Of(ip.V4) + *each.Of(ip.V6)
	}
	return sum
}

// hasNodePort says whether some port of a service has a node port.
func hasNodePort(s *service.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p service.Port) bool { return p.NodePort != 0 })
}
