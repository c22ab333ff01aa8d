package conntrack

import (
	"iter"
	"net/netip"
	"time"

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
	from map[service.Claim][]*departure
	// byEndpoint says where in the list of a claim each endpoint is. Only long lists that were asked have it.
	byEndpoint map[service.Claim]places
	// order has all departures, the earliest first. Passes have covered the first kept ones.
	order []*departure
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
	// timedAt counts the departures that are to be cut later, by address and protocol.
	timedAt map[service.Claim]int
	// now is the time that Index.Advance was told last.
	now time.Time
	// timed has what is cut later, the next first.
	timed timedCuts
}

// departure has the endpoints that a claim had until an epoch. It shares their memory
// with the former Service.
type departure struct {
	claim     service.Claim
	endpoints service.Endpoints
	// It counts as one of the epoch noted, which may be a later one: see forget.
	epoch, noted uint64
	// ranges has the ports at which the claim had them, if the endpoints are those of ranges.
	ranges service.PortRanges
	cut    cutoff
	// at is the time of the departure, and seen is when there was a connection last that may be given up.
	at, seen time.Time
}

// add remembers endpoints of a port that a claim lost in the current epoch.
func (d *departed) add(c service.Claim, p *service.Port, endpoints service.Endpoints, cut cutoff) {
	if endpoints.Len() > 0 {
		d.remember(&departure{claim: c, endpoints: endpoints, epoch: d.epoch, ranges: p.Ranges, cut: cut,
			at: d.now})
		d.timed.add(d.now, timedCut{c, endpoints, cut.at})
		if c.Protocol == service.TCP && !cut.kept && !cut.due(d.now) && !d.now.IsZero() {
			d.timed.add(d.now, timedCut{c, endpoints, d.now.Truncate(lookEvery).Add(2 * lookEvery)})
		}
	}
}

// remember puts a departure behind all others.
func (d *departed) remember(one *departure) {
	c := one.claim
	switch {
	case len(d.order) == d.kept:
		d.first, d.later = d.epoch, 0
	case d.later >= maxDeparted:
		d.drop(d.epoch - 1)
	case d.epoch > d.first:
		d.later++
	}
	if in := d.byEndpoint[c]; in != nil {
		in.add(len(d.from[c]), one)
	}
	if !one.cut.at.IsZero() {
		if d.timedAt == nil {
			d.timedAt = map[service.Claim]int{}
		}
		d.timedAt[c.Range()]++
	}
	one.noted = d.epoch
	d.from[c] = append(d.from[c], one)
	d.order = append(d.order, one)
}

// last returns the latest departure of an endpoint from the claims, by which connections to a port number were led to
// addr; nil if none is known.
func (d *departed) last(number uint16, addr netip.AddrPort, claims ...service.Claim) *departure {
	var last *departure
	consider := func(one *departure) {
		if (last == nil || one.epoch >= last.epoch) && one.has(number, addr) {
			last = one
		}
	}
	for _, c := range claims {
		for one := range d.having(c, addr) {
			consider(one)
		}
	}
	return last
}

// having yields the departures of a claim that may have the endpoint, by its port or by ranges.
func (d *departed) having(c service.Claim, addr netip.AddrPort) iter.Seq[*departure] {
	return func(yield func(*departure) bool) {
		list := d.from[c]
		if len(list) < longList {
			for _, one := range list {
				if !yield(one) {
					return
				}
			}
			return
		}
		in := d.placesOf(c)
		for _, at := range [2]netip.AddrPort{addr, netip.AddrPortFrom(addr.Addr(), 0)} { // the second one is of ranges
			for _, i := range in[at] {
				if !yield(list[i]) {
					return
				}
			}
		}
	}
}

// longList is how many departures of a claim are searched one by one: a pass may ask for each of a million connections.
const longList = 16

// places has the places of each endpoint in a list of departures, the first one first.
type places map[netip.AddrPort][]int32

func (in places) add(place int, one *departure) {
	for e := range one.endpoints.All() {
		in[e.Addr] = append(in[e.Addr], int32(place))
	}
}

// placesOf returns where each endpoint is in the list of a claim.
func (d *departed) placesOf(c service.Claim) places {
	in := d.byEndpoint[c]
	if in == nil {
		in = places{}
		for i, one := range d.from[c] {
			in.add(i, one)
		}
		if d.byEndpoint == nil {
			d.byEndpoint = map[service.Claim]places{}
		}
		d.byEndpoint[c] = in
	}
	return in
}

// has says whether connections to a port number were led to addr.
func (one *departure) has(number uint16, addr netip.AddrPort) bool {
	p := service.Port{Ranges: one.ranges, Endpoints: one.endpoints}
	return (!p.IsRange() || one.ranges.Has(number)) && p.Endpoint(number, addr) != nil
}

// cover says that passes have found the flows of the departures up to an epoch. They are
// kept, since a client that is remembered for session affinity may still be led to such an
// endpoint. But of these the earliest go where there are too many.
func (d *departed) cover(epoch uint64) {
	d.first, d.later = max(d.first, epoch+1), 0
	for ; d.kept < len(d.order) && d.order[d.kept].noted <= epoch; d.kept++ {
		d.keptEndpoints += d.order[d.kept].endpoints.Len()
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

// forget forgets the departures up to an epoch, except those that are to be cut later, and those that say otherwise of
// an endpoint which came back and left again: these count as departures of the current epoch in the order, so they stay
// until a later call.
func (d *departed) forget(epoch uint64) {
	for _, one := range d.drop(epoch) {
		if d.pending(one) || d.overrules(one) {
			d.remember(one)
		}
	}
}

// pending says that the departure is to be cut later, or was not long ago, or has connections that may be given up.
func (d *departed) pending(one *departure) bool {
	at := one.cut.at
	return !at.IsZero() && d.now.Before(at.Add(formerFor)) || !one.seen.IsZero() && d.now.Before(one.seen.Add(formerFor))
}

// overrules says that an endpoint may have an earlier departure which is pending, from the claim or, of ports that
// moved between the two, from ranges or a port of the address.
func (d *departed) overrules(later *departure) bool {
	c := later.claim
	if d.timedAt[c.Range()] == 0 || c.IsRange() {
		return d.timedAt[c.Range()] > 0
	}
	for _, at := range [2]service.Claim{c, c.Range()} {
		for e := range later.endpoints.All() {
			for one := range d.having(at, e.Addr) {
				if one.epoch < later.epoch && d.pending(one) && (one.has(e.Addr.Port(), e.Addr) || one.ranges != "" &&
					one.has(c.Port, netip.AddrPortFrom(e.Addr.Addr(), c.Port))) {
					return true
				}
			}
		}
	}
	return false
}

// drop forgets all departures up to an epoch, and returns them.
func (d *departed) drop(epoch uint64) (list []*departure) {
	d.cover(epoch)
	for d.kept > 0 && d.order[0].noted <= epoch {
		list = append(list, d.forgetFirst())
	}
	return list
}

// forgetFirst drops the earliest departure, a kept one, and returns it.
func (d *departed) forgetFirst() (gone *departure) {
	gone, d.order[0] = d.order[0], nil
	d.order, d.kept, d.keptEndpoints = d.order[1:], d.kept-1, d.keptEndpoints-gone.endpoints.Len()
	delete(d.byEndpoint, gone.claim) // all others have moved
	if at := gone.claim.Range(); !gone.cut.at.IsZero() {
		if d.timedAt[at]--; d.timedAt[at] == 0 {
			delete(d.timedAt, at)
		}
	}
	if d.from[gone.claim] = d.from[gone.claim][1:]; len(d.from[gone.claim]) == 0 {
		delete(d.from, gone.claim)
	}
	return gone
}
