package daemon

import (
	"context"
	"slices"
	"sync"

	"nftproxy/daemon/proxy"
)

// A sync has four phases for others: before its write, and after it those of observers.

// beforeWrite is called before a sync writes anything.
func (p *parts) beforeWrite(c Config) {
	p.load.BeforeRead(func() bool {
		found, err := rulesThere(p.conn, c.Rules.Table)
		return found || err != nil
	})
	p.cleaner.SyncBegins()
}

// observers are called after a sync, one phase after the other.
type observers struct {
	// settle does what has to be done before anybody says that the sync is over.
	settle []func(proxy.Sync)
	// inform tells everybody else, in any order.
	inform []func(proxy.Sync)
	// announce relies on what the others have been told.
	announce []func(proxy.Sync)
}

func (o observers) all() []func(proxy.Sync) { return slices.Concat(o.settle, o.inform, o.announce) }

func (p *parts) observers(ctx context.Context, c Config) observers {
	r := p.reporter
	served := sync.OnceFunc(func() { close(p.served.true) })
	return observers{
		settle: []func(proxy.Sync){
			// The cleaner removes nothing until it knows the outcome.
			cleanAfter(p.cleaner, c.Rules.Table),
			// Who waits for the sync may ask another process at once which endpoints are left out or growing.
			r.adjustmentObserver(p.adjusted),
		},
		inform: []func(proxy.Sync){
			func(proxy.Sync) { p.load.Synced() },
			p.judge.Observe, p.page.Observe, r.syncObserver(p.watcher), newBusiest(r, p.watcher).observe, p.counts.Observe,
			p.ports.Notify, p.local.Notify, p.others.Observe, p.kubeProxy.Observe,
			func(s proxy.Sync) { p.eligible.Store(s.Snapshot.Node.Eligible) },
			func(s proxy.Sync) { p.rewriters.Observe(ctx, s) },
			func(s proxy.Sync) { p.sweeper.Notify(s.Applied, s.Adopted) },
			func(s proxy.Sync) { p.refused.Notify(s.Applied) },
			func(s proxy.Sync) { p.ejector.Notify(s.Snapshot) },
			func(s proxy.Sync) { p.connections()(s) },
			p.settings.observe,
		},
		announce: []func(proxy.Sync){
			func(proxy.Sync) {
				if len(p.judge.Waiting()) == 0 {
					served()
				}
			},
		},
	}
}
