package daemon

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"nftproxy/daemon/eject"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/ejection"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft/ejecttable"
	"nftproxy/watch"
)

const (
	// ejectionLines is how many endpoints one change of ejections names in the log.
	ejectionLines = 5
	// ejectionEvents is how many events about them the node writes in a minute: every node notices a dead one.
	ejectionEvents = 3
	// healthPort is that of a service proxy's health server by default.
	healthPort = 10256
)

// newEjector makes an ejector. Only a node with mode on has the rule that counts repeated packets: all packets meet it.
func newEjector(c Config, o outside, w *watch.Watcher, counts *metrics.Metrics) *eject.Ejector {
	r := o.reporter
	tell := r.ejectionObserver(w)
	config := eject.Config{Table: o.waiting, Mode: c.Eject, Set: w.SetAdjustments}
	config.Observe = func(report eject.Report) {
		counts.ObserveEjections(report)
		tell(report)
	}
	if c.Eject == service.EjectOn {
		config.Repeats = o.adjusted.Repeats
	}
	if client := o.source.Client; client != nil {
		config.Lookup = func(ctx context.Context, node string) (ejection.Facts, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			// Endpoints stay until it is known where their nodes are. A server that is lost must not delay that: this ends
			// before the second connect to the endpoint has failed.
			defer time.AfterFunc(ejection.Patience/10, func() {
				if !o.source.Answers(ctx, ejection.Patience/2) {
					cancel()
				}
			}).Stop()
			facts, kubelet, err := client.Node(ctx, node)
			if facts == nil {
				return ejection.Facts{}, err
			}
			return nodeFacts(facts, kubelet), nil
		}
	}
	return eject.New(config)
}

// nodeFacts has where to ask a Node whether it lives: at its first address of each family, the port of its kubelet and
// that on which each kube-proxy and nftproxy has its health server by default. A refusal is an answer, too.
func nodeFacts(n *service.Node, kubelet uint16) ejection.Facts {
	facts := ejection.Facts{PodCIDRs: n.PodCIDRs}
	for _, family := range ip.Families() {
		if i := slices.IndexFunc(n.Addresses, family.Has); i >= 0 {
			facts.Addrs = append(facts.Addrs, netip.AddrPortFrom(n.Addresses[i], kubelet), netip.AddrPortFrom(n.Addresses[i],
				healthPort))
		}
	}
	return facts
}

// adjustmentObserver tells other processes which endpoints have less than their weight in the tables: when that
// changes, when another program has changed the ruleset, and at first, since an earlier process may have told something
// else.
func (r reporter) adjustmentObserver(table *ejecttable.Table) func(proxy.Sync) {
	var told service.Adjustments
	begun := false
	return func(s proxy.Sync) {
		if begun && s.Snapshot.Adjustments == told && !s.Check {
			return
		}
		begun, told = true, s.Snapshot.Adjustments
		if err := table.Set(told); err != nil {
			r.log.Warn("get, explain and verify do not know which endpoints are left out or growing", "err", err)
		}
	}
}

// removeEjectTable removes the table of an earlier process with mode on.
func removeEjectTable(c Config) {
	if c.Eject == service.EjectOn {
		return
	}
	if _, err := ejecttable.Remove(c.Rules.Table); err != nil {
		c.Log.Warn("could not remove the table of an earlier process that left out endpoints", "err", err)
	}
}

// ejectionObserver logs what is left out and comes back, and writes events about the Services.
func (r reporter) ejectionObserver(w *watch.Watcher) func(eject.Report) {
	failing, kept := failures{}, map[any]bool{}
	events := rate.NewLimiter(rate.Every(time.Minute/ejectionEvents), ejectionEvents)
	return func(report eject.Report) {
		if report.Looked && failing.isNew(report.Err) {
			r.log.Warn("cannot look for connections without an answer; will try again", "err", report.Err)
		}
		kept = r.logKept(report.Verdict, kept)
		for i, l := range report.Added {
			if i == ejectionLines {
				r.log.Warn("further endpoints do not answer", "endpoints", len(report.Added)-i)
				break
			}
			r.log.Warn("an endpoint does not answer; "+ejectionEffect(l.Mode), "port", l.Port, "endpoint", l.Addr.String(),
				"protocol", l.Protocol.String(), "mode", l.Mode.String(), "reason", l.Why)
			if o := w.ServiceObject(l.Service); o.UID != "" && events.Allow() {
				r.record(watch.Event{Object: o, Reason: watch.ReasonNotAnswering,
					Note: fmt.Sprintf("node %s gets no answer from the endpoint %s of port %s: %s; %s", r.node, l.Addr, l.Port, l.Why,
						ejectionEffect(l.Mode))})
			}
		}
		for i, l := range report.Returned {
			if i == ejectionLines {
				r.log.Info("further endpoints are back", "endpoints", len(report.Returned)-i)
				break
			}
			r.log.Info("an endpoint is no longer left out", "port", l.Port, "endpoint", l.Addr.String(), "mode", l.Mode.String(),
				"after", time.Since(l.Since).Round(time.Millisecond).String())
		}
	}
}

// logKept logs why something is kept although it does not answer, unless that was so before. It returns what it knows.
func (r reporter) logKept(v ejection.Verdict, before map[any]bool) map[any]bool {
	now := map[any]bool{}
	for _, u := range v.Unjudged {
		if now[u.Why] = true; !before[u.Why] {
			before[u.Why] = true
			r.log.Warn("a node does not answer; only those of its endpoints are left out that were asked themselves", "node",
				u.Node, "reason", u.Why)
		}
	}
	for _, h := range v.Held[:min(len(v.Held), ejectionLines)] {
		known := ejection.Held{Service: h.Service, Port: h.Port, Why: h.Why}
		if now[known] = true; !before[known] {
			r.log.Warn("endpoints do not answer and are kept", "port", h.Port, "silent", h.Silent, "endpoints", h.Endpoints,
				"reason", string(h.Why))
		}
	}
	return now
}

// ejectionEffect says what a mode does about an endpoint that does not answer.
func ejectionEffect(m service.Eject) string {
	if m == service.EjectOn {
		return "new connections go to others until it answers"
	}
	return "with nftproxy-eject=on it would be left out"
}
