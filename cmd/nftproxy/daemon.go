package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"nftproxy/conntrack"
	"nftproxy/internal/affinity"
	"nftproxy/internal/health"
	"nftproxy/internal/healthport"
	"nftproxy/internal/hostaddr"
	"nftproxy/internal/metrics"
	"nftproxy/internal/proxy"
	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// run works until the context ends; the rules stay.
func (d *daemon) run(ctx context.Context) error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	flows, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return err
	}
	defer flows.Close()

	api, err := d.newAPI(ctx)
	if err != nil {
		return err
	}
	d.record = api.record
	registry := metrics.NewRegistry()
	counts := metrics.New(registry)
	mailbox := service.NewMailbox()
	load := newFirstLoad(restCollector)
	defer load.end()
	watcher, err := d.newWatcher(mailbox, counts, load.begin)
	if err != nil {
		return err
	}
	cleaner := d.newCleaner(flows, counts)
	sweeper := d.newSweeper(conn, counts, cleaner.Again)
	var loop *proxy.Loop
	var eligible atomic.Bool
	judge := health.New(health.Config{
		Busy: func() time.Time { return loop.Busy() }, NodeEligible: d.nodeEligible(&eligible), Answered: counts.CountHealth,
	})
	ports := d.newHealthPorts(judge, counts)
	var sysctls func(proxy.Sync)
	config := d.loopConfig()
	config.Begin = func() {
		load.beforeRead(func() bool { return d.tablesThere(conn) })
		cleaner.Begin()
	}
	// The cleaner comes first: until it knows of a sync it removes nothing.
	loop = proxy.New(config, conn, ruleset.NewCompiler(d.ruleset).Compile, d.cleanAfter(cleaner),
		load.observe, d.syncLogger(watcher), counts.Observe, judge.Observe, ports.Notify, func(s proxy.Sync) {
			eligible.Store(s.Snapshot.Node.Eligible)
			sweeper.Notify(s.Applied, s.Adopted)
			sysctls(s)
		})
	servers, err := d.servers(judge, registry)
	if err != nil {
		return err
	}

	d.log.Info("starting", "version", version(), "node", d.node, "table", d.ruleset.Table)
	sysctls = d.applySysctls()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return api.watch(ctx, watcher) })
	group.Go(func() error {
		return hostaddr.Follow(ctx, d.log, func(addrs []netip.Addr) { watcher.SetHostAddresses(addrs) })
	})
	group.Go(func() error { return loop.Run(ctx, mailbox) })
	group.Go(func() error { return cleaner.Run(ctx) })
	group.Go(func() error { return sweeper.Run(ctx) })
	group.Go(func() error { return d.followOccupancy(ctx, flows, counts) })
	group.Go(func() error { return ports.Run(ctx) })
	for _, server := range servers {
		group.Go(func() error { return server.Run(ctx) })
	}
	err = group.Wait()
	d.log.Info("stopped; the rules stay")
	return err
}

// nodeEligible is what the health server says of the node: the latest that is
// known of it. Manifests say nothing as a rule, and no load balancer asks.
func (d *daemon) nodeEligible(latest *atomic.Bool) func() bool {
	if d.options.manifests != "" {
		return nil
	}
	return latest.Load
}

func (d *daemon) newCleaner(flows *conntrack.Table, counts *metrics.Metrics) *conntrack.Cleaner {
	index := conntrack.NewIndex(conntrack.Options{
		NodePortAddresses: d.ruleset.NodePortAddresses, Established: d.established, Pod: d.ruleset.Pod,
	})
	return conntrack.NewCleaner(flows, index, func(r conntrack.Run) {
		counts.ObserveConntrack(r)
		d.logPass(r)
	})
}

// cleanAfter tells the cleaner how each sync has ended.
func (d *daemon) cleanAfter(cleaner flowCleaner) func(proxy.Sync) {
	return func(s proxy.Sync) {
		if s.Found != nil {
			cleaner.Inherit(func() service.Snapshot { return ruleset.ReadBack(s.Found, d.ruleset.Table, s.Snapshot.Node) })
		}
		unknown := func(f nft.Family) bool { return errors.Is(s.FamilyErr(f), kernel.ErrOutcomeUnknown) }
		switch {
		// One family's trouble is not to leave the other's entries behind.
		// Where the program is not in force yet, an entry too many goes.
		case s.InForce(nft.IPv4) || s.InForce(nft.IPv6):
			cleaner.Notify(s.Snapshot, s.Adopted)
		case !unknown(nft.IPv4) && !unknown(nft.IPv6):
			cleaner.Unchanged()
		}
		// Else it may be in force or not: nothing is removed until the retry.
	}
}

// flowCleaner is what a conntrack.Cleaner hears of syncs.
type flowCleaner interface {
	Inherit(func() service.Snapshot)
	Notify(s service.Snapshot, unknown bool)
	Unchanged()
}

// newSweeper makes a sweeper that tells when it has found something: until then
// the client may have been sent where its endpoint was.
func (d *daemon) newSweeper(conn *kernel.Conn, counts *metrics.Metrics, swept func()) *affinity.Sweeper {
	return affinity.NewSweeper(conn, func(r affinity.Run) {
		counts.ObserveAffinity(r)
		d.logSweep(r)
		if r.Swept > 0 {
			swept()
		}
	})
}

func (d *daemon) newHealthPorts(judge *health.Health, counts *metrics.Metrics) *healthport.Server {
	return healthport.New(healthport.Config{
		NodePortAddresses: d.ruleset.NodePortAddresses,
		Healthy:           func() bool { return judge.Status().Healthy },
		Observe:           counts.ObserveHealthPorts,
		Log:               d.log,
	})
}

// newWatcher makes a watcher that has the node's addresses from the start. They
// are followed later, but the first program needs them: a restart would else
// take --nodeport-addresses away for a moment.
func (d *daemon) newWatcher(out *service.Mailbox, counts *metrics.Metrics, synced func()) (*watch.Watcher, error) {
	addrs, err := hostaddr.List()
	if err != nil {
		return nil, err
	}
	w := watch.NewWatcher(watch.Options{
		Node:          d.node,
		AwaitPodCIDRs: d.ruleset.NodeCIDR,
		Synced:        synced,
		Report:        func(p watch.Problem) { d.logProblem(p, counts) },
		Answers:       func() { d.log.Info("the API server answers again") },
	}, out)
	w.SetHostAddresses(addrs)
	return w, nil
}

// servers answer probes and Prometheus.
func (d *daemon) servers(judge *health.Health, registry *prometheus.Registry) ([]*health.Server, error) {
	probes, err := health.NewServer("health", d.options.healthAddress, judge.Handler(), d.log)
	if err != nil {
		return nil, fmt.Errorf("--healthz-bind-address: %w", err)
	}
	scrapes, err := health.NewServer("metrics", d.options.metricsAddress, health.MetricsHandler(registry), d.log)
	if err != nil {
		return nil, fmt.Errorf("--metrics-bind-address: %w", err)
	}
	return []*health.Server{probes, scrapes}, nil
}

// loopConfig takes an unset or zero period for our own default: kube-proxy's
// second, or kubeadm's 0s, were made for another kind of write.
func (d *daemon) loopConfig() proxy.Config {
	c := proxy.DefaultConfig()
	if p := d.options.minSyncPeriod; p > 0 {
		c.MinSyncPeriod = p
	}
	return c
}
