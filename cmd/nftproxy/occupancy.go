package main

import (
	"context"
	"fmt"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/metrics"
	"nftproxy/watch"
)

// occupancyPeriod is the time between two counts of the conntrack table's entries. A
// count takes the kernel microseconds.
const occupancyPeriod = 10 * time.Second

func (d *daemon) followOccupancy(ctx context.Context, flows *conntrack.Table, counts *metrics.Metrics) error {
	warn := d.occupancyLogger()
	return conntrack.FollowOccupancy(ctx, flows, occupancyPeriod, func(o conntrack.Occupancy) {
		counts.ObserveOccupancy(o)
		warn(o)
	})
}

// occupancyLogger warns once when the table is full, and logs when it has room again.
// The cleaner has already warned of a table that cannot be counted.
func (d *daemon) occupancyLogger() func(conntrack.Occupancy) {
	const hint = "raise --conntrack-min or --conntrack-max-per-core, or net.netfilter.nf_conntrack_max on the host; " +
		"nftproxy conntrack list shows the entries of Services"
	full, uncounted := false, false
	return func(o conntrack.Occupancy) {
		switch {
		case o.Err != nil && !uncounted:
			d.log.Debug("cannot count the conntrack entries", "err", o.Err)
		case o.Err != nil:
		case o.Full && !full:
			d.log.Warn("the conntrack table is full: the kernel drops new connections", "entries", o.Entries, "limit", o.Limit, "hint", hint)
			d.record(watch.Event{
				Object: watch.NodeObject(d.node), Reason: watch.ReasonConntrackFull,
				Note: fmt.Sprintf("the connection tracking table has %d of %d entries, and the kernel drops new connections: %s", o.Entries, o.Limit, hint),
			})
		case !o.Full && full:
			d.log.Info("the conntrack table has room again", "entries", o.Entries, "limit", o.Limit)
		}
		full, uncounted = o.Full, o.Err != nil
	}
}
