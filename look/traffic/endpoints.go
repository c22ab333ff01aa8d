package traffic

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// EndpointTraffic is the new connections that were sent to an endpoint of a Service port.
type EndpointTraffic struct {
	Endpoint netip.AddrPort
	Connections
}

// endpointMeters has what was read of endpoints. Only the ports of the last read stay.
type endpointMeters struct {
	ports map[Port]map[netip.AddrPort]*meter
	// last has what each element said. An element that has another endpoint is another one.
	last map[endpointPlace]uint64
	read time.Time
}

type endpointPlace struct {
	place
	endpoint netip.AddrPort
}

// ReadEndpoints reads the counters of the endpoints of these Service ports. It returns the
// endpoints of each by rate, then total, the greatest first. The rate is known if the read
// before was of this port too. The cost grows with the number of endpoints.
func (r *Reader) ReadEndpoints(ports []Port) (map[Port][]EndpointTraffic, error) {
	before, now := r.meters, r.clock()
	r.meters = endpointMeters{map[Port]map[netip.AddrPort]*meter{}, map[endpointPlace]uint64{}, now}
	took := time.Duration(0)
	if !before.read.IsZero() {
		took = now.Sub(before.read)
	}
	all := map[Port][]EndpointTraffic{}
	for _, p := range ports {
		meters, err := r.readPort(p, &before)
		if err != nil {
			return nil, fmt.Errorf("read connections of endpoints of %s: %w", p.Service, err)
		}
		r.meters.ports[p] = meters
		list := make([]EndpointTraffic, 0, len(meters))
		known := took
		if before.ports[p] == nil {
			known = 0
		}
		for a, m := range meters {
			list = append(list, EndpointTraffic{a, m.connections(known)})
		}
		slices.SortFunc(list, func(a, b EndpointTraffic) int {
			return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Total, a.Total), a.Endpoint.Compare(b.Endpoint))
		})
		all[p] = list
	}
	return all, nil
}

// readPort reads the endpoints of one port in all places of the port.
func (r *Reader) readPort(port Port, before *endpointMeters) (map[netip.AddrPort]*meter, error) {
	meters := map[netip.AddrPort]*meter{}
	svc := r.snapshot.Services.At(port.Service)
	if svc == nil {
		return meters, nil
	}
	for i := range svc.Ports {
		if portOf(svc, &svc.Ports[i]) != port {
			continue
		}
		for _, c := range ruleset.CounterPlaces(svc, &svc.Ports[i]) {
			if at := r.places[place{c.Family, c.Set, c.Key}]; at == nil || at.port != port {
				continue // another Service has it
			}
			table := r.declared.Table(c.Family)
			for set, keys := range c.Endpoints(svc, &svc.Ports[i]) {
				err := r.kernel.Counts(table.ID(), setOf(table, set), keys, func(n kernel.Count) {
					r.addCount(meters, before, port, c, set, n)
				})
				if err != nil {
					return nil, err
				}
			}
		}
	}
	return meters, nil
}

// addCount adds one element's counter to the meter of its endpoint.
func (r *Reader) addCount(meters map[netip.AddrPort]*meter, before *endpointMeters, port Port, c ruleset.CounterPlace,
	set string, n kernel.Count) {
	at := endpointPlace{place{c.Family, set, n.Key}, c.Endpoint(n.Key, n.Data)}
	m := meters[at.endpoint]
	if m == nil {
		m = &meter{}
		if old := before.ports[port][at.endpoint]; old != nil {
			m.total, m.before = old.total, old.total
		}
		meters[at.endpoint] = m
	}
	m.total += since(before.last[at], n.Packets)
	r.meters.last[at] = n.Packets
}
