package daemon

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"nftproxy/conntrack"
	"nftproxy/daemon/eject"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/ejection"
	"nftproxy/model/service"
	"nftproxy/nft/ejecttable"
	"nftproxy/watch"
)

const (
	// ejectionLines is how many endpoints one change of ejections names in the log.
	ejectionLines = 5
	// ejectionEvents is how many events about them the node writes in a minute: every node notices a dead one.
	ejectionEvents = 3
)

// newEjector makes an ejector. Only a node with mode on has the rule that counts repeated packets: all packets meet it.
func newEjector(c Config, r reporter, flows *conntrack.Table, table *ejecttable.Table, w *watch.Watcher, counts *metrics.Metrics) *eject.Ejector {
	tell := r.ejectionObserver(w)
	tellOthers := func(left service.Ejections) {
		if err := table.SetLeft(left); err != nil {
			r.log.Warn("get, explain and verify do not know which endpoints are left out", "err", err)
		}
	}
	set := func(left service.Ejections) { w.SetEjections(left); tellOthers(left) }
	config := eject.Config{Table: flows, Mode: c.Eject, Set: set, Observe: func(report eject.Report) {
		counts.ObserveEjections(report)
		tell(report)
	}}
	if c.Eject == ejection.On {
		config.Repeats = table.Repeats
	}
	return eject.New(config)
}

// growthObserver tells other processes which endpoints have a part of their weight in the tables: when that changes, when another
// program has changed the ruleset, and at first, since an earlier process may have told something else.
func (r reporter) growthObserver(table *ejecttable.Table) func(proxy.Sync) {
	var told service.Growth
	begun := false
	return func(s proxy.Sync) {
		if begun && s.Snapshot.Growth == told && !s.Check {
			return
		}
		begun, told = true, s.Snapshot.Growth
		if err := table.SetGrowth(told); err != nil {
			r.log.Warn("get, explain and verify do not know which endpoints are growing", "err", err)
		}
	}
}

// removeEjectTable removes the table of an earlier process with mode on.
func removeEjectTable(c Config) {
	if c.Eject == ejection.On {
		return
	}
	if _, err := ejecttable.Remove(c.Rules.Table); err != nil {
		c.Log.Warn("could not remove the table of an earlier process that left out endpoints", "err", err)
	}
}

// ejectionObserver logs what is left out and comes back, and writes events about the Services.
func (r reporter) ejectionObserver(w *watch.Watcher) func(eject.Report) {
	failure, held := "", map[ejection.Held]bool{}
	events := rate.NewLimiter(rate.Every(time.Minute/ejectionEvents), ejectionEvents)
	return func(report eject.Report) {
		text := ""
		if report.Err != nil {
			text = report.Err.Error()
		}
		if text != "" && text != failure {
			r.log.Warn("cannot look for connections without an answer; will try again", "err", report.Err)
		}
		if failure = text; !report.Looked && len(report.Added)+len(report.Returned) == 0 {
			return
		}
		for i, l := range report.Added {
			if i == ejectionLines {
				r.log.Warn("further endpoints do not answer", "endpoints", len(report.Added)-i)
				break
			}
			r.log.Warn("an endpoint does not answer; "+ejectionEffect(l.Mode), "port", l.Port, "endpoint", l.Addr.String(), "protocol", l.Protocol.String(), "mode", l.Mode.String(), "reason", l.Why)
			if o := w.ServiceObject(l.Service); o.UID != "" && events.Allow() {
				r.record(watch.Event{Object: o, Reason: watch.ReasonNotAnswering,
					Note: fmt.Sprintf("node %s gets no answer from the endpoint %s of port %s: %s; %s", r.node, l.Addr, l.Port, l.Why, ejectionEffect(l.Mode))})
			}
		}
		for i, l := range report.Returned {
			if i == ejectionLines {
				r.log.Info("further endpoints are back", "endpoints", len(report.Returned)-i)
				break
			}
			r.log.Info("an endpoint is no longer left out", "port", l.Port, "endpoint", l.Addr.String(), "mode", l.Mode.String(), "after", time.Since(l.Since).Round(time.Millisecond).String())
		}
		now := map[ejection.Held]bool{}
		for _, h := range report.Held {
			known := ejection.Held{Service: h.Service, Port: h.Port, Why: h.Why}
			if len(now) == ejectionLines {
				break
			}
			if now[known] = true; !held[known] {
				r.log.Warn("endpoints do not answer, and none of them is left out", "port", h.Port, "silent", h.Silent, "endpoints", h.Endpoints, "reason", string(h.Why))
			}
		}
		held = now
	}
}

// ejectionEffect says what a mode does about an endpoint that does not answer.
func ejectionEffect(m ejection.Mode) string {
	if m == ejection.On {
		return "new connections go to others until it answers"
	}
	return "with nftproxy-eject=on it would be left out"
}
