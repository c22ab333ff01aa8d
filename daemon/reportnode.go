package daemon

import (
	"context"
	"fmt"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/metrics"
	"nftproxy/look/traffic"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// refusalObserver returns an observer of refused and dropped packets. It counts them, and
// reports Services whose clients keep coming although all are refused, as an event and in
// the log. It asks for pods of Services that are idled or hold connections. It reports no clients outside of
// the source ranges: anybody can be one.
func (r reporter) refusalObserver(w *watch.Watcher, counts *metrics.Metrics) func(traffic.Refusals) {
	var failing failures
	idled, full := newUnidler(w.IdledAt), false
	return func(l traffic.Refusals) {
		counts.ObserveRefusals(l)
		for _, name := range idled.wanted(l) {
			what := "is idled"
			if w.IdledAt(name).IsZero() {
				what = "has no endpoints that serve"
			}
			r.log.Info("clients connect to a Service that needs pods", "service", name, "why", "it "+what)
			r.aboutService(w, name, watch.ReasonNeedPods, fmt.Sprintf("clients connect on node %s: the Service %s and needs "+
				"pods", r.node, what))
		}
		if l.HeldFull && !full {
			r.log.Warn("as many connections wait for endpoints, or have waited, as the kernel remembers; further ones wait "+
				"until their clients give up", "limit", nft.DynamicLimit)
		}
		full = l.HeldFull
		if failing.isNew(l.Err) {
			r.log.Warn("cannot read the counters of refused packets; will try again", "err", l.Err)
		}
		for _, c := range l.Persistent {
			reason, note := r.refusalNote(c.Cause)
			if note == "" || c.Cause == ruleset.NoEndpoints && !w.IdledAt(c.Name).IsZero() {
				continue // an idled Service is meant to have no pods
			}
			r.log.Info("clients keep connecting to a Service that refuses them", "service", c.Name, "cause", c.Cause, "packets",
				c.Packets)
			r.aboutService(w, c.Name, reason, note)
		}
	}
}

// refusalNote is for the event about a Service whose clients are refused for the cause; empty if there is none. The
// note has no number, so that repeated events are counted as one.
func (r reporter) refusalNote(cause ruleset.Cause) (reason watch.Reason, note string) {
	switch cause {
	case ruleset.NoEndpoints:
		return watch.ReasonNoEndpoints, fmt.Sprintf("clients keep connecting on node %s and are refused: the Service has "+
			"no endpoints that serve; check its selector, and whether its pods are ready", r.node)
	case ruleset.NoLocalEndpoints:
		return watch.ReasonNoLocalEndpoints, fmt.Sprintf("clients keep connecting on node %s and are dropped: the Service "+
			"has endpoints on other nodes only, and its internalTrafficPolicy is Local", r.node)
	}
	return "", ""
}

// occupancyPeriod is the time between two counts of the conntrack table's entries. A
// count takes the kernel microseconds.
const occupancyPeriod = 10 * time.Second

func followOccupancy(ctx context.Context, r reporter, flows *conntrack.Table, counts *metrics.Metrics) error {
	warn := r.occupancyLogger()
	return conntrack.FollowOccupancy(ctx, flows, occupancyPeriod, func(o conntrack.Occupancy) {
		counts.ObserveOccupancy(o)
		warn(o)
	})
}

// occupancyLogger warns once when the table is full, and logs when it has room again.
// The cleaner has already warned of a table that cannot be counted.
func (r reporter) occupancyLogger() func(conntrack.Occupancy) {
	const hint = "raise --conntrack-min or --conntrack-max-per-core, or net.netfilter.nf_conntrack_max on the host; if " +
		"DNS fills it, use --nftproxy-dns-udp-timeouts; " +
		"nftproxy conntrack list shows the entries of Services"
	full, uncounted := false, false
	return func(o conntrack.Occupancy) {
		switch {
		case o.Err != nil && !uncounted:
			r.log.Debug("cannot count the conntrack entries", "err", o.Err)
		case o.Err != nil:
		case o.Full && !full:
			r.log.Warn("the conntrack table is full: the kernel drops new connections", "entries", o.Entries, "limit", o.Limit,
				"hint", hint)
			r.aboutNode(watch.ReasonConntrackFull, fmt.Sprintf("the connection tracking table has %d of %d entries, and the "+
				"kernel drops new connections: %s", o.Entries, o.Limit, hint))
		case !o.Full && full:
			r.log.Info("the conntrack table has room again", "entries", o.Entries, "limit", o.Limit)
		}
		full, uncounted = o.Full, o.Err != nil
	}
}

// removeStartupTaint removes the taint with which the kubelet registers the node. Pods are then scheduled to the node.
func (r reporter) removeStartupTaint(ctx context.Context, client *watch.Client, key string) {
	var failing failures
	watch.RemoveTaint(ctx, client, r.node, key, func(err error) {
		switch {
		case failing.isNew(err):
			r.log.Warn("cannot remove the start-up taint from the Node, trying again: pods are not scheduled to it until then",
				"node", r.node, "taint", key, "err", err)
		case err == nil:
			r.log.Info("removed the start-up taint from the Node", "node", r.node, "taint", key)
		}
	})
}
