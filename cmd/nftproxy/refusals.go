package main

import (
	"fmt"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/refusals"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// observeRefusals returns an observer of refused and dropped packets. It counts them, and
// reports Services whose clients keep coming although all are refused, as an event and in
// the log. It reports no clients outside of the source ranges: anybody can be one.
func (d *daemon) observeRefusals(w *watch.Watcher, counts *metrics.Metrics) func(refusals.Look) {
	failure := ""
	return func(l refusals.Look) {
		counts.ObserveRefusals(l)
		text := ""
		if l.Err != nil {
			text = l.Err.Error()
		}
		if text != "" && text != failure {
			d.log.Warn("cannot read the counters of refused packets; will try again", "err", l.Err)
		}
		failure = text
		for _, r := range l.Persistent {
			e, ok := d.refusedEvent(w, r)
			if !ok {
				continue
			}
			d.log.Info("clients keep connecting to a Service that refuses them", "service", r.Name, "cause", r.Cause, "packets", r.Packets)
			if e.Object.UID != "" {
				d.record(e)
			}
		}
	}
}

// refusedEvent returns the event about a Service whose clients are refused, if there is one. The
// note has no number, so that repeated events are counted as one.
func (d *daemon) refusedEvent(w *watch.Watcher, r refusals.Refused) (watch.Event, bool) {
	e := watch.Event{Object: w.ServiceObject(r.Name)}
	switch r.Cause {
	case ruleset.NoEndpoints:
		e.Reason = watch.ReasonNoEndpoints
		e.Note = fmt.Sprintf("clients keep connecting on node %s and are refused: the Service has no endpoints that serve; check its selector, and whether its pods are ready", d.node)
	case ruleset.NoLocalEndpoints:
		e.Reason = watch.ReasonNoLocalEndpoints
		e.Note = fmt.Sprintf("clients keep connecting on node %s and are dropped: the Service has endpoints on other nodes only, and its internalTrafficPolicy is Local", d.node)
	default:
		return e, false
	}
	return e, true
}
