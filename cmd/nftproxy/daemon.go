package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/health"
	"nftproxy/daemon/healthport"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/daemon/refusals"
	"nftproxy/look/basechain"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// run runs the proxy until the context ends. The rules stay in the kernel.
func (d *daemon) run(ctx context.Context) error {
	process.SetOOMScoreAdj(d.options.oomScoreAdj, d.log)
	process.LimitPrivileges(d.log)
	registry := metrics.NewRegistry()
	metrics.FollowRequests(registry)
	api, err := d.newAPI(ctx)
	if err != nil {
		return err
	}
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	inForce, err := d.rulesThere(conn)
	if err != nil {
		return err
	}
	defer d.keepTable()()
	flows, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return err
	}
	defer flows.Close()

	d.record = api.record
	counts, slis := metrics.New(registry), metrics.NewSLIs()
	mailbox := service.NewMailbox()
	load := process.NewFirstLoad()
	defer load.Stop()
	networks := &hostaddr.Networks{}
	watcher, err := d.newWatcher(ctx, d.formerServices(conn, inForce), networks, mailbox, counts, load.Begin)
	if err != nil {
		return err
	}
	counts.CountChanges(watcher)
	counts.CountRetained(func() int { return watcher.Retained().Services })
	counts.CountBehind(func() time.Time { return watcher.Behind().Since })
	var loop *proxy.Loop
	var eligible atomic.Bool
	var oldServer atomic.Value // words
	oldServer.Store("")
	rewriters := d.newRewriters(conn)
	judge := health.New(health.Config{
		Busy: func() time.Time { return loop.Busy() }, NodeEligible: d.nodeEligible(&eligible),
		Answered: func(path string, code int) {
			counts.CountHealth(path, code)
			slis.Observe("proxy", strings.TrimPrefix(path, "/"), code == http.StatusOK)
		},
		Awaiting: watcher.Awaiting, Note: func() string {
			return joinNotes(watcher.Behind().String(), watcher.Retained().String(), oldServer.Load().(string), rewriters.note())
		},
	})
	page := d.newStatusPage(judge)
	servers, err := d.servers(judge, registry, slis, page)
	if err != nil {
		return err
	}

	d.log.Info("starting", "version", version(), "node", d.node, "table", d.ruleset.Table)
	d.logNotes()
	d.record(watch.Event{Object: watch.NodeObject(d.node), Reason: watch.ReasonStarting})
	group, ctx := errgroup.WithContext(ctx)
	// The API server prepares its lists meanwhile. A trial of counters takes 15 to 20 ms, and the processor has
	// nothing to do in most of them.
	group.Go(func() error { return api.watch(ctx, watcher) })
	d.tryCounters(conn)
	d.tryLabels(conn)
	cleaner := d.newCleaner(ctx, conn, flows, counts)
	sweeper := d.newSweeper(conn, counts, cleaner.CheckAll)
	refused := refusals.NewWatcher(conn, refusals.Period, d.observeRefusals(watcher, counts))
	ports := d.newHealthPorts(judge, counts)
	ready := make(chan struct{})
	announce := sync.OnceFunc(func() { close(ready) })
	var sysctls func(proxy.Sync)
	connections := d.countConnections(conn, registry)
	kubeProxy := d.newKubeProxyFollower(counts)
	config := d.loopConfig()
	config.Begin = func() {
		load.BeforeRead(func() bool { return d.tablesThere(conn) })
		cleaner.SyncBegins()
	}
	// The cleaner comes first: it removes nothing until it knows the outcome of a sync.
	loop = proxy.New(config, conn, ruleset.NewCompiler(d.ruleset).Compile, d.cleanAfter(cleaner),
		func(proxy.Sync) { load.Synced() }, judge.Observe, page.Observe, d.syncLogger(watcher), d.newBusiest(watcher).observe, counts.Observe, ports.Notify, d.newFormerTables(conn).observe, kubeProxy.observe, func(s proxy.Sync) {
			eligible.Store(s.Snapshot.Node.Eligible)
			rewriters.observe(ctx, s)
			sweeper.Notify(s.Applied, s.Adopted)
			refused.Notify(s.Applied)
			connections(s)
			sysctls(s)
			if len(judge.Waiting()) == 0 {
				announce()
			}
		})

	// The servers begin to listen before the loop, which may have all lists already.
	for _, server := range servers {
		group.Go(func() error { return server.Run(ctx) })
	}
	d.removeTraces()
	sysctls = d.applySysctls()
	group.Go(func() error {
		api.reconnectAfterSleep(ctx, d.log)
		return nil
	})
	group.Go(func() error {
		return hostaddr.Follow(ctx, d.log, func(a hostaddr.Addresses) { watcher.SetHostAddresses(a.Own, a.Broadcast...) })
	})
	group.Go(func() error { return hostaddr.FollowLocalRoutes(ctx, d.log, cleaner.LocalRoutes) })
	group.Go(func() error { return networks.Follow(ctx, d.log, watcher.RoutesChanged) })
	group.Go(func() error { return loop.Run(ctx, mailbox) })
	group.Go(func() error { return cleaner.Run(ctx) })
	group.Go(func() error { return sweeper.Run(ctx) })
	group.Go(func() error { return refused.Run(ctx) })
	group.Go(func() error { return d.followOccupancy(ctx, flows, counts) })
	group.Go(func() error { return d.followServerVersion(ctx, api.client, counts, &oldServer) })
	group.Go(func() error {
		d.followBehind(ctx, watcher.Behind)
		return nil
	})
	group.Go(func() error { return ports.Run(ctx) })
	group.Go(func() error {
		d.removeStartupTaint(ctx, api, ready)
		return nil
	})
	group.Go(func() error { return kubeProxy.run(ctx) })
	if file := d.options.config.file; file != "" {
		follower := &configFollower{started: d, now: d, text: d.options.config.text, follow: watch.FollowFile, watcher: watcher, loop: loop, counts: metrics.NewConfigFile(registry)}
		group.Go(func() error {
			follower.run(ctx)
			return nil
		})
	}
	err = group.Wait()
	d.log.Info("stopped; the rules stay")
	return err
}

// rulesThere says whether an earlier run left rules. The kernel answers no process
// without the capability CAP_NET_ADMIN. So its lack shows here, and ends the process:
// a further try would not help.
func (d *daemon) rulesThere(conn *kernel.Conn) (bool, error) {
	tables, err := conn.Tables(d.ruleset.Table)
	if errors.Is(err, syscall.EPERM) {
		return false, errors.New("the kernel refuses access to nftables: run needs CAP_NET_ADMIN in its network namespace (be root, or give the container the capability NET_ADMIN)")
	}
	if err != nil {
		return false, fmt.Errorf("look for rules of an earlier run: %w", err)
	}
	return len(tables) > 0, nil
}

// nodeEligible returns the function by which the health server knows whether the node
// is eligible for traffic. It is nil with manifests, which seldom say so; no load
// balancer asks then.
func (d *daemon) nodeEligible(latest *atomic.Bool) func() bool {
	if d.options.manifests != "" {
		return nil
	}
	return latest.Load
}

// newCleaner makes a cleaner that has the local routes from the start. Later, run follows their changes,
// and logs why they cannot be listed.
func (d *daemon) newCleaner(ctx context.Context, conn *kernel.Conn, flows *conntrack.Table, counts *metrics.Metrics) *conntrack.Cleaner {
	index := conntrack.NewIndex(conntrack.Options{
		NodePortAddresses: d.ruleset.NodePortAddresses, Established: d.established, Pod: d.ruleset.Pod,
	})
	cleaner := conntrack.NewCleaner(flows, index, func(r conntrack.Run) {
		counts.ObserveConntrack(r)
		d.logPass(r)
	})
	soon, cancel := context.WithTimeout(ctx, addressPatience)
	defer cancel()
	if routes, err := hostaddr.LocalRoutes(soon); err == nil {
		cleaner.LocalRoutes(routes)
	}
	cleaner.Alone(func() bool {
		others, err := basechain.OthersTranslate(d.ruleset.Table)
		return !others && err == nil
	})
	cleaner.NotedBy(func(c service.Claim) (bool, error) {
		_, noted, err := conn.LearnedBy(ruleset.Recent(d.ruleset.Table, c))
		return noted, err
	}, ruleset.RecentFor, ruleset.MostRecent)
	return cleaner
}

// cleanAfter returns an observer that tells the cleaner the outcome of each sync.
func (d *daemon) cleanAfter(cleaner flowCleaner) func(proxy.Sync) {
	return func(s proxy.Sync) {
		if s.Found != nil {
			cleaner.ServedBefore(func() service.Snapshot { return ruleset.ReadBack(s.Found, d.ruleset.Table, s.Snapshot.Node) })
		}
		unknown := func(f nft.Family) bool { return errors.Is(s.FamilyErr(f), kernel.ErrOutcomeUnknown) }
		switch {
		// A failure in one family must not keep the other's stale entries. In the
		// family that failed, the cleaner may remove an entry that is not stale yet.
		case s.InForce(nft.IPv4) || s.InForce(nft.IPv6):
			cleaner.SyncDone(s.Snapshot, s.Adopted)
		case !unknown(nft.IPv4) && !unknown(nft.IPv6):
			cleaner.SyncChangedNothing()
		}
		// Otherwise it is unknown whether the rules are in force. The cleaner removes
		// nothing until the retry.
	}
}

// flowCleaner is the part of a conntrack.Cleaner that takes the outcome of syncs.
type flowCleaner interface {
	ServedBefore(func() service.Snapshot)
	SyncDone(s service.Snapshot, unknown bool)
	SyncChangedNothing()
}

// newSweeper makes a sweeper. It calls swept after a sweep that removed clients:
// until then, connections of these clients may have gone to the removed endpoint.
func (d *daemon) newSweeper(conn *kernel.Conn, counts *metrics.Metrics, swept func()) *affinity.Sweeper {
	log := d.sweepLogger()
	return affinity.NewSweeper(conn, process.CPUTime, func(r affinity.Run) {
		counts.ObserveAffinity(r)
		log(r)
		if r.Swept > 0 || r.Forgotten {
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

// restartPatience is how long the first program waits for lists that only narrow it,
// while the rules of an earlier run are in force.
const restartPatience = 30 * time.Second

// addressPatience is how long the start waits for a complete list of the node's
// addresses. A change of the addresses interrupts a list.
const addressPatience = 10 * time.Second

// newWatcher makes a watcher that has the node's addresses from the start. The first
// program needs them: without them a restart would take --nodeport-addresses away
// for a moment. Later, run follows their changes.
func (d *daemon) newWatcher(ctx context.Context, former watch.Former, networks *hostaddr.Networks, out *service.Mailbox, counts *metrics.Metrics, synced func()) (*watch.Watcher, error) {
	soon, cancel := context.WithTimeout(ctx, addressPatience)
	defer cancel()
	addrs, err := hostaddr.List(soon)
	switch {
	case err != nil && soon.Err() == nil:
		return nil, err
	case err != nil:
		d.log.Warn("the node's addresses change too fast to be listed; starting without them", "err", err)
	}
	patience := time.Duration(0) // the default
	if former != nil {
		patience = restartPatience
	}
	o := d.options.claims.watchOptions(ownServers(d.options.metricsAddress, d.options.healthAddress, d.options.probeAddress))
	o.Settings = d.ruleset.Settings
	o.Node, o.ListTimeout, o.AwaitPodCIDRs, o.Synced = d.node, patience, d.ruleset.NodeCIDR, synced
	o.Report = func(p watch.Problem) { d.logProblem(p, counts) }
	o.Answers = d.logAnswers
	o.Networks = func(ranges []netip.Prefix) []netip.Prefix {
		list, err := networks.In(ctx, ranges)
		if err != nil && ctx.Err() == nil {
			d.log.Warn("cannot tell the node's networks; packets to ServiceCIDRs are not dropped", "err", err)
		}
		return list
	}
	o.Retain, o.Former = d.options.retainMissing, former
	w := watch.NewWatcher(o, out)
	w.SetHostAddresses(addrs.Own, addrs.Broadcast...)
	return w, nil
}

// servers returns the servers for probes and for Prometheus. Another process, such as
// kube-proxy, may have the addresses of the first two for a while. At the third one,
// no other process may answer.
func (d *daemon) servers(judge *health.Health, registry *prometheus.Registry, slis *metrics.SLIs, page http.Handler) ([]*health.Server, error) {
	probes, err := health.NewServer("health", d.options.healthAddress, judge.Handler(), d.log)
	if err != nil {
		return nil, fmt.Errorf("--healthz-bind-address: %w", err)
	}
	scrapes, err := health.NewServer("metrics", d.options.metricsAddress, d.metricsHandler(registry, slis, page), d.log)
	if err != nil {
		return nil, fmt.Errorf("--metrics-bind-address: %w", err)
	}
	probes.Failed = d.recordFailure(watch.ReasonNoHealthServer, "healthz server failed: ")
	scrapes.Failed = d.recordFailure(watch.ReasonNoMetricsServer, "")
	own, err := health.NewServer("probe", d.options.probeAddress, judge.Handler(), d.log)
	if err != nil {
		return nil, fmt.Errorf("--nftproxy-probe-bind-address: %w", err)
	}
	own.Require()
	if d.options.bindHardFail {
		probes.Require()
		scrapes.Require()
	}
	return []*health.Server{probes, scrapes, own}, nil
}

// loopConfig returns the loop's configuration. A zero --iptables-min-sync-period stands for
// our own default: kube-proxy's second and kubeadm's 0s are for slower writes.
func (d *daemon) loopConfig() proxy.Config {
	c := proxy.DefaultConfig()
	c.CPU = process.CPUTime
	if p := d.options.minSyncPeriod; p > 0 {
		c.MinSyncPeriod = p
	}
	return c
}

// tablesThere says whether an earlier run left tables. If that is unknown, it says
// yes.
func (d *daemon) tablesThere(conn *kernel.Conn) bool {
	tables, err := conn.Tables(d.ruleset.Table)
	return err != nil || len(tables) > 0
}
