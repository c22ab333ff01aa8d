package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/metrics"
	"nftproxy/nft/invalidtable"
)

// invalidPeriod is the time between two looks at the rule that drops invalid packets: another program may have removed
// it.
const invalidPeriod = 10 * time.Second

// removeInvalidTable removes the table of an earlier process that dropped invalid packets.
func removeInvalidTable(c Config) {
	if c.DropInvalid {
		return
	}
	if _, err := invalidtable.Remove(c.Rules.Table, 0); err != nil {
		c.Log.Warn("could not remove the table of an earlier process that dropped invalid packets", "err", err)
	}
}

// invalidDropper returns a task that keeps the rule, and counts what it drops in a metric.
func invalidDropper(c Config, registry prometheus.Registerer) func(context.Context) error {
	var dropped atomic.Uint64
	metrics.CountInvalidDropped(registry, dropped.Load)
	return func(ctx context.Context) error {
		ticker := time.NewTicker(invalidPeriod)
		defer ticker.Stop()
		var failing failures
		for {
			packets, err := keepInvalid(c)
			if err == nil {
				dropped.Store(packets)
			}
			if failing.isNew(err) {
				c.Log.Warn("cannot keep the rule that drops invalid packets; will try again", "err", err)
			}
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
		}
	}
}

// DropsInvalid says whether there is a rule now that drops invalid packets.
func (c *Config) DropsInvalid() bool { return c.DropInvalid && !c.SysctlFiles.BeLiberal() }

// keepInvalid sees to the rule, and returns what it has dropped. Like kube-proxy it has none while the kernel
// translates segments out of the window.
func keepInvalid(c Config) (dropped uint64, err error) {
	if !c.DropsInvalid() {
		_, err := invalidtable.Remove(c.Rules.Table, 0)
		return 0, err
	}
	return invalidtable.Keep(c.Rules.Table, 0)
}
