package daemon

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/conntrack"
	"nftproxy/daemon/flows"
	"nftproxy/daemon/metrics"
	"nftproxy/model/service"
	"nftproxy/nft/flowtable"
)

// newFollower makes what follows connections; nil without --nftproxy-flows.
func newFollower(c Config, o outside, registry prometheus.Registerer) *flows.Follower {
	if c.Rules.Flows.Rate() == 0 {
		return nil
	}
	var failing failures
	said := false // that all is followed, since the last failure
	observed := metrics.NewFlows(registry)
	f := flows.New(flows.Config{
		Table: o.asked, Services: c.Rules.Table, Mode: c.Rules.Flows,
		Files: c.SysctlFiles,
		Index: conntrack.NewIndex(conntrack.Options{NodePortAddresses: c.Rules.NodePortAddresses,
			Pod: c.Rules.Pod}),
		Observe: observed.Observe,
		Failed: func(err error) {
			switch isNew := failing.isNew(err); {
			case isNew:
				said = false
				c.Log.Warn("cannot follow all connections; will try again", "err", err)
			case err == nil && !said:
				said = true
				c.Log.Info("following connections", "share", c.Rules.Flows.String())
			}
		},
		Thinned: func(services int, worst service.Name, of int) {
			c.Log.Warn("too many connections to follow: fewer of some Services are in nftproxy flows, and count for more",
				"services", services, "worst", worst, "one-of", of)
		},
	})
	observed.Count(f.Counts)
	return f
}

// flowTask is the task of a follower. Where the kernel tells of nothing, there is nothing to do.
func flowTask(p *parts) func(context.Context) error {
	return func(ctx context.Context) error {
		if rules := p.rules(); rules.Unlogged || rules.Unlabelled {
			p.flowing.Silence(errors.New("the kernel cannot tell of connections (the log of the start says why)"))
			return nil
		}
		return p.flowing.Run(ctx)
	}
}

// removeFlowTable removes the table of an earlier process with --nftproxy-flows.
func removeFlowTable(c Config) {
	if c.Rules.Flows.Rate() > 0 {
		return
	}
	if _, err := flowtable.Remove(c.Rules.Table, 0); err != nil {
		c.Log.Warn("could not remove the table of an earlier process that followed connections", "err", err)
	}
}
