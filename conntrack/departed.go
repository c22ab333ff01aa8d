package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
)

const (
	// maxDeparted bounds the number of departures that are remembered while no pass
	// succeeds, as without the permission to dump the table. The departures of the
	// earliest update do not count: they are no more than the endpoints before it.
	maxDeparted = 1 << 16
	// maxKept bounds the number of endpoints in departures that passes have covered.
	maxKept = 1 << 15
)

// departed remembers for a while the endpoints that claims had and have lost. Only this
// shows whether our rules made a flow that leads to no endpoint of its Service: the rules
// of other programs, such as the portmap plugin, may DNAT the same address and port.
type departed struct {
	from map[service.Claim][]departure
	// order has all departures, the earliest first. Passes have covered the first kept ones.
	order []ordered
	kept  int
	// keptEndpoints counts the endpoints of the kept departures.
	keptEndpoints int
	// epoch counts the updates of the index. first is the earliest epoch that is not
	// covered, and later counts the departures of later epochs.
	epoch, first uint64
	later        int
	// anything is the epoch until which any address counts as a former endpoint of each
	// Service; 0 for none.
	anything uint64
}

// departure has the endpoints that a claim had until an epoch. It shares their memory
// with the former Service.
type departure struct {
	endpoints service.Endpoints
	epoch     uint64
	// ranges has the ports at which the claim had them, if the endpoints are those of ranges.
	ranges service.PortRanges
}

// ordered is a departure's place in order.
type ordered struct {
	claim     service.Claim
	epoch     uint64
	endpoints int
}

// add remembers endpoints of a port that a claim lost in the current epoch.
func (d *departed) add(c service.Claim, p *service.Port, endpoints service.Endpoints) {
	if endpoints.Len() == 0 {
		return
	}
	switch {
	case len(d.order) == d.kept:
		d.first, d.later = d.epoch, 0
	case d.later >= maxDeparted:
		d.forget(d.epoch - 1)
	case d.epoch > d.first:
		d.later++
	}
	d.from[c] = append(d.from[c], departure{endpoints, d.epoch, p.Ranges})
	d.order = append(d.order, ordered{c, d.epoch, endpoints.Len()})
}

// has says whether connections to a port number were led to addr by the claim.
func (d *departed) has(c service.Claim, number uint16, addr netip.AddrPort) bool {
	return slices.ContainsFunc(d.from[c], func(one departure) bool {
		p := service.Port{Ranges: one.ranges, Endpoints: one.endpoints}
		return (!p.IsRange() || one.ranges.Has(number)) && p.Endpoint(number, addr) != nil
	})
}

// cover says that passes have found the flows of the departures up to an epoch. They are
// kept, since a client that is remembered for session affinity may still be led to such an
// endpoint. But of these the earliest go where there are too many.
func (d *departed) cover(epoch uint64) {
	d.first, d.later = max(d.first, epoch+1), 0
	for ; d.kept < len(d.order) && d.order[d.kept].epoch <= epoch; d.kept++ {
		d.keptEndpoints += d.order[d.kept].endpoints
	}
	for d.keptEndpoints > maxKept {
		d.forgetFirst()
	}
}

// endPresumption ends the time during which any address counts, if it began by the epoch.
func (d *departed) endPresumption(epoch uint64) {
	if d.anything <= epoch {
		d.anything = 0
	}
}

// forget drops the departures up to an epoch.
func (d *departed) forget(epoch uint64) {
	d.cover(epoch)
	for d.kept > 0 && d.order[0].epoch <= epoch {
		d.forgetFirst()
	}
}

// forgetFirst drops the earliest departure, a kept one.
func (d *departed) forgetFirst() {
	first := d.order[0]
	d.order, d.kept, d.keptEndpoints = d.order[1:], d.kept-1, d.keptEndpoints-first.endpoints
	if list := d.from[first.claim]; len(list) == 1 {
		delete(d.from, first.claim)
	} else {
		d.from[first.claim] = list[1:]
	}
}
