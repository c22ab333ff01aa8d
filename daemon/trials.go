package daemon

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// trials are those of the kernel (kernel.Conn).
type trials interface {
	TryCounters() error
	TryLabels() error
	TryFlows() error
	TryTimeouts() error
}

// tried returns what the rules are compiled with, by what the kernel can do. Neither counters, labels nor time-outs
// decide serving: without them the rules do the same with each packet.
func tried(rules ruleset.Config, conn trials, log *slog.Logger) ruleset.Config {
	if err := conn.TryCounters(); err != nil {
		rules.Uncounted = true
		log.Warn("the kernel cannot count packets for thousands of elements; the rules have no counters, so nftproxy top "+
			"and the metrics of refusals stay empty, and nothing tells of short holds and full sets (no-endpoints: hold)",
			"err", err)
	}
	if err := conn.TryLabels(); err != nil {
		rules.Unlabelled = true
		log.Warn("the kernel has no labels for connections (CONFIG_NF_CONNTRACK_LABELS); unless --iptables-masquerade-bit "+
			"has another bit, the rules use the bit 0x4000 of the packet mark for what is to be masqueraded, as kube-proxy does",
			"err", err)
	}
	if rules.Flows.Rate() > 0 {
		if err := conn.TryFlows(); errors.Is(err, kernel.ErrUndecided) {
			rules.Unlogged = true
			log.Warn("the kernel had no room to say whether it can tell of connections; --nftproxy-flows has no effect until "+
				"nftproxy starts again", "err", err)
		} else if err != nil {
			rules.Unlogged = true
			log.Warn("the kernel cannot tell of connections (it needs CONFIG_NF_CONNTRACK_LABELS and "+
				"CONFIG_NETFILTER_NETLINK_LOG); --nftproxy-flows has no effect", "err", err)
		}
	}
	if rules.DNSTimeouts == (service.Timeouts{}) {
		return rules
	}
	err := conn.TryTimeouts()
	for range undecidedTries - 1 {
		if !errors.Is(err, kernel.ErrUndecided) {
			break
		}
		time.Sleep(undecidedPause)
		err = conn.TryTimeouts()
	}
	const effect = "those of DNS are the node's, without --nftproxy-dns-udp-timeouts"
	switch {
	case err == nil:
		return rules
	case errors.Is(err, kernel.ErrUndecided):
		log.Warn("the kernel did not say whether it gives time-outs to single connections; until nftproxy starts again, "+
			effect, "err", err)
	default:
		log.Warn("the kernel gives no time-outs to single connections (CONFIG_NF_CONNTRACK_TIMEOUT); "+effect, "err", err)
	}
	rules.DNSTimeouts = service.Timeouts{}
	return rules
}

// A kernel without memory at the moment is asked undecidedTries times at the start. The first rules wait for it.
const (
	undecidedTries = 5
	undecidedPause = 200 * time.Millisecond
)

// undecidedFor is how long the answer of a kernel that has not told is taken for one.
const undecidedFor = 10 * time.Second

// remembered is a trial that is asked for by each Service that wants the feature. The kernel's answer counts from then
// on. One that has no memory at the moment is asked again, but not by each of thousands of Services at once. It is not
// safe for concurrent use.
func remembered(try func() error, now func() time.Time) func() error {
	var err error
	var again time.Time
	known := false
	return func() error {
		if !known && !now().Before(again) {
			err = try()
			known, again = !errors.Is(err, kernel.ErrUndecided), now().Add(undecidedFor)
		}
		return err
	}
}

// countConnections returns an observer of syncs. With --nftproxy-counters=metrics it registers the
// metrics of new connections, which are read when Prometheus asks.
func countConnections(c Config, rules ruleset.Config, conn *kernel.Conn,
	registry prometheus.Registerer) func(proxy.Sync) {
	if !c.ConnectionMetrics || rules.Uncounted {
		return func(proxy.Sync) {}
	}
	source := traffic.NewSource(conn, rules.Table, time.Now)
	var failed atomic.Bool // Scrapes may come at the same time.
	metrics.CountConnections(registry, func() ([]traffic.PortTraffic, uint64) {
		ports, total, err := source.Ports()
		if before := failed.Swap(err != nil); err != nil && !before {
			c.Log.Warn("cannot read the counters of new connections; the metrics have the numbers from before", "err", err)
		}
		return ports, total
	})
	return func(s proxy.Sync) {
		if s.InForce(nft.IPv4) || s.InForce(nft.IPv6) {
			source.Notify(s.Snapshot)
		}
	}
}
