package main

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/daemon/traffic"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// The values of --nftproxy-counters.
const (
	countersNone    = "none"
	countersTables  = "tables"
	countersMetrics = "metrics"
)

func addCounters(f *pflag.FlagSet, value *string) {
	const name = ownPrefix + "counters"
	f.StringVar(value, name, countersNone, "count new connections of each Service port and endpoint: none; tables, in the kernel's tables, for nftproxy top and nft list; metrics, also as metrics of the 100 Service ports with the most; without a value: tables")
	f.Lookup(name).NoOptDefVal = countersTables
}

func checkCounters(value string) error {
	switch value {
	case countersNone, countersTables, countersMetrics:
		return nil
	}
	return fmt.Errorf("--%scounters: %q: want %s, %s or %s", ownPrefix, value, countersNone, countersTables, countersMetrics)
}

// tryCounters finds out whether the kernel can count, before the first program. Counting never
// decides serving: without counters the rules do the same with each packet.
func (d *daemon) tryCounters(conn *kernel.Conn) {
	if err := conn.TryCounters(); err != nil {
		d.ruleset.Uncounted = true
		d.log.Warn("the kernel cannot count packets for thousands of elements; the rules have no counters, so nftproxy top and the metrics of refusals stay empty", "err", err)
	}
}

// tryLabels finds out whether rules can set labels of connections, before the first program.
func (d *daemon) tryLabels(conn *kernel.Conn) {
	if err := conn.TryLabels(); err != nil {
		d.ruleset.Unlabelled = true
		d.log.Warn("the kernel has no labels for connections (CONFIG_NF_CONNTRACK_LABELS); unless --iptables-masquerade-bit has another bit, the rules use the bit 0x4000 of the packet mark for what is to be masqueraded, as kube-proxy does", "err", err)
	}
}

// countConnections returns an observer of syncs. With --nftproxy-counters=metrics it registers the
// metrics of new connections, which are read when Prometheus asks.
func (d *daemon) countConnections(conn *kernel.Conn, registry prometheus.Registerer) func(proxy.Sync) {
	if d.options.counters != countersMetrics || d.ruleset.Uncounted {
		return func(proxy.Sync) {}
	}
	source := traffic.NewSource(conn, d.ruleset.Table, time.Now)
	var failed atomic.Bool // Scrapes may come at the same time.
	metrics.CountConnections(registry, func() ([]traffic.PortTraffic, uint64) {
		ports, total, err := source.Ports()
		if before := failed.Swap(err != nil); err != nil && !before {
			d.log.Warn("cannot read the counters of new connections; the metrics have the numbers from before", "err", err)
		}
		return ports, total
	})
	return func(s proxy.Sync) {
		if s.InForce(nft.IPv4) || s.InForce(nft.IPv6) {
			source.Notify(s.Snapshot)
		}
	}
}
