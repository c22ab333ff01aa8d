package daemon

import (
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

// seldom is the time between two counts from which the log says that shares follow connections slowly.
const seldom = 10 * time.Second

func newBalancer(c Config, o outside, w *watch.Watcher, counts *metrics.Metrics) *balance.Balancer {
	r := o.reporter
	failing, slow := failures{}, false
	return balance.New(balance.Config{Table: o.counted, NodePortAddresses: c.Rules.NodePortAddresses, Set: w.SetSlots,
		Observe: func(report balance.Report) {
			counts.ObserveBalance(report)
			if failing.isNew(report.Err) {
				r.log.Warn("cannot count connections; the shares of Services with balance least-connections stay as they are",
					"err", report.Err)
			}
			if was := slow; report.Err == nil {
				if slow = report.Next > seldom; slow && !was {
					r.log.Warn("connections are counted seldom for balance least-connections, since that takes long",
						"connections", report.Connections, "cpu", report.CPU.Round(time.Millisecond).String(), "next",
						report.Next.Round(time.Second).String())
				}
			}
		}})
}

// restoreSlots has the first rules give endpoints the slots that those of an earlier run give them. It costs little
// unless there are some.
func restoreSlots(conn *kernel.Conn, c Config, w *watch.Watcher) {
	fed := false
	for _, f := range nft.Families() {
		chains, err := conn.Chains(nft.TableID{Family: f, Name: c.Rules.Table})
		for _, name := range chains {
			fed = fed || err == nil && ruleset.Feeds(name)
		}
	}
	if !fed {
		return
	}
	tables, err := inspect.ReadTables(conn, c.Rules.Table)
	if err != nil || tables == nil {
		c.Log.Warn("Services with balance least-connections begin with equal shares", "err", err)
		return
	}
	w.SetSlots(ruleset.ReadSlots(tables, c.Rules.Table, &service.Node{Name: c.Node}))
}
