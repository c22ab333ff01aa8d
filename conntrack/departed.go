package conntrack

import (
	"net/netip"
	"slices"

	"nftproxy/internal/service"
)

// maxDeparted bounds how many departures are remembered where no pass succeeds
// for long, as without the permission to dump the table. Those of the first
// update that has any come on top: they are no more than what there was before.
const maxDeparted = 1 << 16

// departed remembers, for a while, where addresses and ports led that have
// lost endpoints, or their service. What is nobody's any more shows only so
// whether a flow to it was ours.
type departed struct {
	from  map[service.Claim][]departure
	count int
	// epoch counts the updates of the index. first is the earliest of those
	// that are remembered, and later counts departures since.
	epoch, first uint64
	later        int
}

// departure is some endpoints that an address and port had until an epoch; it
// shares them with the service that was.
type departure struct {
	endpoints []service.Endpoint
	epoch     uint64
}

func (d *departed) add(c service.Claim, endpoints []service.Endpoint) {
	if len(endpoints) == 0 {
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

func (d *departed) has(c service.Claim, addr netip.AddrPort) bool {
	return slices.ContainsFunc(d.from[c], func(one departure) bool { return endpoint(one.endpoints, addr) != nil })
}

// forget drops what departed up to an epoch.
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
