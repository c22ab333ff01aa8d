package daemon

import (
	"context"
	"slices"
	"sync"

	"nftproxy/daemon/proxy"
	"nftproxy/nft"
)

// beforeWrite is called before a sync writes anything.
func (p *parts) beforeWrite(c Config) {
	p.load.BeforeRead(func() bool {
		found, err := rulesThere(p.conn, c.Rules.Table)
		return found || err != nil
	})
	p.cleaner.SyncBegins()
}

// observers are called after a sync, in this order.
func (p *parts) observers(ctx context.Context, c Config) []func(proxy.Sync) {
	r := p.reporter
	served := sync.OnceFunc(func() { close(p.served.true) })
	return []func(proxy.Sync){
		// First what has to be done before anybody says that the sync is over. The cleaner removes nothing until it knows
		// the outcome.
		cleanAfter(p.cleaner, c.Rules.Table),
		// Who waits for the sync may ask another process at once which endpoints are left out or growing, and for the flows
		// of a Service.
		r.adjustmentObserver(p.adjusted),
		func(s proxy.Sync) {
			if p.flowing != nil {
				p.flowing.Notify(s.Snapshot)
			}
		},

		// These are told in any order.
		func(proxy.Sync) { p.load.Synced() },
		p.judge.Observe, p.page.Observe, r.syncObserver(p.watcher), newBusiest(r, p.watcher).observe, p.counts.Observe,
		p.ports.Notify, p.local.Notify, p.others.Observe, p.kubeProxy.Observe,
		func(s proxy.Sync) { p.eligible.Store(s.Snapshot.Node.Eligible) },
		func(s proxy.Sync) { p.rewriters.Observe(ctx, s) },
		func(s proxy.Sync) { p.sweeper.Notify(s.Applied, s.Adopted) },
		func(s proxy.Sync) { p.refused.Notify(s.Applied) },
		func(s proxy.Sync) { p.ejector.Notify(s.Snapshot) },
		func(s proxy.Sync) {
			if families := nft.Families(); slices.ContainsFunc(families[:], s.InForce) {
				p.balancer.Notify(s.Snapshot)
			}
		},
		func(s proxy.Sync) { p.connections()(s) },
		p.settings.observe,

		// The last one relies on what the others have been told.
		func(proxy.Sync) {
			if len(p.judge.Waiting()) == 0 {
				served()
			}
		},
	}
}
