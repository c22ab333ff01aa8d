package daemon

import (
	"errors"
	"log/slog"
	"slices"
	"time"

	"nftproxy/daemon/balance"
	"nftproxy/daemon/metrics"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// seldom is the time between two counts, or two turns of a Service, from which the log says that shares follow
// connections slowly, and often the one from which they do so no longer.
const seldom, often = 10 * time.Second, 5 * time.Second

func newBalancer(c Config, o outside, w *watch.Watcher, counts *metrics.Metrics) *balance.Balancer {
	return balance.New(balance.Config{Table: o.counted, NodePortAddresses: c.Rules.NodePortAddresses, Set: w.SetSlots,
		Observe: balanceObserver(o.reporter.log, counts.ObserveBalance)})
}

// balanceObserver has the log say when counts begin to fail, when they or turns begin to be rare, and when they are
// rare no longer.
func balanceObserver(log *slog.Logger, count func(balance.Report)) func(balance.Report) {
	failing, slow := failures{}, false
	return func(report balance.Report) {
		count(report)
		if failing.isNew(report.Err) {
			log.Warn("cannot count connections; the shares of Services with balance least-connections stay as they are",
				"err", report.Err)
		}
		switch takes := max(report.Next, report.Round); {
		case report.Err != nil:
		case !slow && takes > seldom:
			slow = true
			log.Warn("shares follow connections seldom for balance least-connections, since counts take long or many slots move",
				"connections", report.Connections, "cpu", report.CPU.Round(time.Millisecond).String(),
				"next", report.Next.Round(time.Second).String(), "round", report.Round.Round(time.Second).String())
		case slow && takes < often:
			slow = false
			log.Info("shares follow connections often again for balance least-connections", "connections", report.Connections)
		}
	}
}

const equalShares = "Services with balance least-connections begin with equal shares"

// restoreSlots has the first rules give endpoints the slots that those of an earlier run give them. It costs little
// unless there are some.
func restoreSlots(conn *kernel.Conn, c Config, w *watch.Watcher) {
	var failed error
	fed := false
	for _, f := range nft.Families() {
		chains, err := conn.Chains(nft.TableID{Family: f, Name: c.Rules.Table})
		failed, fed = errors.Join(failed, err), fed || slices.ContainsFunc(chains, ruleset.Feeds)
	}
	if !fed {
		if failed != nil {
			c.Log.Warn(equalShares, "err", failed)
		}
		return
	}
	tables, err := inspect.ReadTables(conn, c.Rules.Table)
	if err != nil || tables == nil {
		c.Log.Warn(equalShares, "err", err)
		return
	}
	w.SetSlots(ruleset.ReadSlots(tables, c.Rules.Table, &service.Node{Name: c.Node}))
}
