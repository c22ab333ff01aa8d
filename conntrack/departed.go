package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
)

// maxDeparted bounds the number of departures that are remembered while no pass
// succeeds, as without the permission to dump the table. The departures of the
// earliest update do not count: they are no more than the endpoints before it.
const maxDeparted = 1 << 16

// departed remembers for a while the endpoints that claims had and have lost. Once no
// Service has a claim, only this shows whether our rules made a flow to it.
type departed struct {
	from  map[service.Claim][]departure
	count int
	// epoch counts the updates of the index. first is the earliest epoch that is
	// remembered, and later counts the departures of later epochs.
	epoch, first uint64
	later        int
}

// departure has the endpoints that a claim had until an epoch. It shares their memory
// with the former Service.
type departure struct {
	endpoints service.Endpoints
	epoch     uint64
}

// add remembers endpoints that a claim lost in the current epoch.
func (d *departed) add(c service.Claim, endpoints service.Endpoints) {
	if endpoints.Len() == 0 {
		return
	}
	switch {
	case d.count == 0:
		d.first, d.later = d.epoch, 0
	case d.later >= maxDeparted:
		d.forget(d.epoch - 1)
	case d.epoch > d.first:
		d.later++
	}
	d.from[c] = append(d.from[c], departure{endpoints, d.epoch})
	d.count++
}

// has says whether addr was an endpoint of the claim.
func (d *departed) has(c service.Claim, addr netip.AddrPort) bool {
	return slices.ContainsFunc(d.from[c], func(one departure) bool { return endpoint(one.endpoints, addr) != nil })
}

// forget drops the departures up to an epoch.
func (d *departed) forget(epoch uint64) {
	d.first, d.later = max(d.first, epoch+1), 0
	for c, list := range d.from {
		left := slices.DeleteFunc(list, func(one departure) bool { return one.epoch <= epoch })
		d.count -= len(list) - len(left)
		if len(left) == 0 {
			delete(d.from, c)
		} else {
			d.from[c] = left
		}
	}
}
