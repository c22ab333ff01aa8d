package watch

import (
	"cmp"
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/model/sorted"
)

// lists returns a function that returns the endpoints of a port in each slice that has some,
// and their number. With many ports and many slices it does not look for each port in each
// slice.
func (j *joined) lists(ports int) func(service.SlicePort) ([]service.Endpoints, int) {
	const few = 8
	if ports <= few || len(j.slices) <= few {
		return func(k service.SlicePort) ([]service.Endpoints, int) { return listsIn(j.slices, k) }
	}
	byPort := map[service.SlicePort][]*sliceObject{}
	for _, s := range j.slices {
		for i := range s.ports {
			if key := s.ports[i].key; i == 0 || key != s.ports[i-1].key {
				byPort[key] = append(byPort[key], s)
			}
		}
	}
	return func(k service.SlicePort) ([]service.Endpoints, int) { return listsIn(byPort[k], k) }
}

// listsIn returns the endpoints of a port in each of some slices that has some, and their number.
func listsIn(all []*sliceObject, k service.SlicePort) (lists []service.Endpoints, total int) {
	for _, s := range all {
		if list := s.port(k); list.Len() > 0 {
			lists, total = append(lists, list), total+list.Len()
		}
	}
	return lists, total
}

// otherPorts returns the ports of the slices that none of the Service's ports takes, if one of these has no endpoints:
// their names may differ by mistake.
func (j *joined) otherPorts(ports []service.Port) []service.SlicePort {
	if !slices.ContainsFunc(ports, func(p service.Port) bool { return p.Endpoints.Len() == 0 && !p.IsRange() }) {
		return nil
	}
	taken := map[service.SlicePort]bool{}
	for i := range ports {
		taken[ports[i].InSlices()] = true
	}
	var others []service.SlicePort
	for _, s := range j.slices {
		if s.endpoints.Len() == 0 {
			continue
		}
		for i := range s.ports {
			if key := s.ports[i].key; !taken[key] {
				taken[key] = true
				others = append(others, key)
			}
		}
	}
	slices.SortFunc(others, service.SlicePort.Compare)
	return others[:min(len(others), service.MaxOtherPorts)]
}

// mergeLists returns the endpoints of one port, which the slices have in these lists. have are those before, and
// changed returns the addresses at which they differ. If only one slice has any, the list is that slice's own. If
// several have, and the changes are few, the cost is that of finding the changed addresses in each slice.
func mergeLists(lists []service.Endpoints, total int, have service.Endpoints, changed func() []netip.AddrPort,
) service.Endpoints {
	switch len(lists) {
	case 0:
		return service.Endpoints{}
	case 1:
		return lists[0]
	}
	if have.Long() {
		addrs := changed()
		if len(addrs)*len(lists) < total {
			return edited(have, lists, addrs)
		}
	}
	all := make([]service.Endpoint, 0, total)
	for _, list := range lists {
		for chunk := range list.Chunks() {
			all = append(all, chunk...)
		}
	}
	return sorted.Reuse(have, service.MergeEndpoints(all))
}

// changedAddrs returns the addresses of a port whose endpoints differ between the slices before and after some events,
// sorted, each once. Mostly each slice has its place in both.
func changedAddrs(key service.SlicePort, before, after []*sliceObject) []netip.AddrPort {
	var addrs []netip.AddrPort
	add := func(old, now *sliceObject) {
		for e := range sorted.Diff(old.port(key), now.port(key)) {
			addrs = append(addrs, cmp.Or(e.Old, e.New).Addr)
		}
	}
	for _, old := range before {
		if len(after) == 0 || after[0].key != old.key {
			add(old, nil)
			continue
		}
		if after[0] != old {
			add(old, after[0])
		}
		after = after[1:]
	}
	for _, s := range after {
		add(nil, s)
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return slices.Compact(addrs)
}

// edited returns have with the endpoints at addrs replaced by those in the lists.
func edited(have service.Endpoints, lists []service.Endpoints, addrs []netip.AddrPort) service.Endpoints {
	var found []service.Endpoint
	for _, list := range lists {
		for _, a := range addrs {
			if e := list.Find(service.Endpoint{Addr: a}); e != nil {
				found = append(found, *e)
			}
		}
	}
	merged := service.MergeEndpoints(found)
	edits := make([]sorted.Edit[service.Endpoint], len(addrs))
	for i, a := range addrs {
		edits[i] = sorted.Edit[service.Endpoint]{Item: service.Endpoint{Addr: a}, Gone: true}
		if e := merged.Find(edits[i].Item); e != nil {
			edits[i] = sorted.Edit[service.Endpoint]{Item: *e}
		}
	}
	return have.Edit(edits)
}

// endpointsOfPort returns the endpoints of a service's i-th port if that port has the
// name and protocol of p, and else none. The service may be nil.
func endpointsOfPort(s *service.Service, i int, p *service.Port) service.Endpoints {
	if s != nil && i < len(s.Ports) && s.Ports[i].InSlices() == p.InSlices() {
		return s.Ports[i].Endpoints
	}
	return service.Endpoints{}
}
