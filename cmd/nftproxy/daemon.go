package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"nftproxy/conntrack"
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

	registry := metrics.NewRegistry()
	counts := metrics.New(registry)
	mailbox := service.NewMailbox()
	watcher, err := d.newWatcher(mailbox, counts)
	if err != nil {
		return err
	}
	cleaner := conntrack.NewCleaner(flows, conntrack.NewIndex(d.ruleset.NodePortAddresses), func(r conntrack.Run) {
		counts.ObserveConntrack(r)
		d.logPass(r)
	})
	var loop *proxy.Loop
	judge := health.New(health.Config{Busy: func() time.Time { return loop.Busy() }, Answered: counts.CountHealth})
	ports := healthport.New(healthport.Config{
		NodePortAddresses: d.ruleset.NodePortAddresses,
		Healthy:           func() bool { return judge.Status().Healthy },
		Observe:           counts.ObserveHealthPorts,
		Log:               d.log,
	})
	loop = proxy.New(d.loopConfig(), conn, ruleset.NewCompiler(d.ruleset).Compile,
		d.syncLogger(), counts.Observe, judge.Observe, ports.Notify, func(s proxy.Sync) {
			// One family's trouble is not to leave the other's entries behind.
			// Where the program is not in force yet, an entry too many goes.
			if s.InForce(nft.IPv4) || s.InForce(nft.IPv6) {
				cleaner.Notify(s.Snapshot)
			}
		})
	servers, err := d.servers(judge, registry)
	if err != nil {
		return err
	}

	d.log.Info("starting", "version", version(), "node", d.node, "table", d.ruleset.Table)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.watch(ctx, watcher) })
	group.Go(func() error {
		return hostaddr.Follow(ctx, d.log, func(addrs []netip.Addr) { watcher.SetHostAddresses(addrs) })
	})
	group.Go(func() error { return loop.Run(ctx, mailbox) })
	group.Go(func() error { return cleaner.Run(ctx) })
	group.Go(func() error { return ports.Run(ctx) })
	for _, server := range servers {
		group.Go(func() error { return server.Run(ctx) })
	}
	err = group.Wait()
	d.log.Info("stopped; the rules stay")
	return err
}

// newWatcher makes a watcher that has the node's addresses from the start. They
// are followed later, but the first program needs them: a restart would else
// take --nodeport-addresses away for a moment.
func (d *daemon) newWatcher(out *service.Mailbox, counts *metrics.Metrics) (*watch.Watcher, error) {
	addrs, err := hostaddr.List()
	if err != nil {
		return nil, err
	}
	w := watch.NewWatcher(watch.Options{
		Node:          d.node,
		AwaitPodCIDRs: d.ruleset.NodeCIDR,
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

func (d *daemon) watch(ctx context.Context, w *watch.Watcher) error {
	if path := d.options.manifests; path != "" {
		return w.RunManifests(ctx, path)
	}
	config, err := watch.ClientConfig(d.options.kubeconfig, d.options.master)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	return w.RunKubernetes(ctx, client)
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

func (d *daemon) logProblem(p watch.Problem, counts *metrics.Metrics) {
	if request := (*watch.RequestError)(nil); errors.As(p, &request) {
		d.log.Warn("the API server does not answer as it should", "err", p)
		return
	}
	if errors.Is(p, watch.ErrIgnoredKind) {
		d.log.Debug("not for a service proxy", "err", p)
		return
	}
	counts.CountProblem(p.Object.Kind)
	d.log.Warn("cannot use as it stands", "err", p)
}

func (d *daemon) logPass(r conntrack.Run) {
	removed := 0
	for _, n := range r.Removed {
		removed += n
	}
	switch {
	case r.Err != nil && !r.Repeated:
		d.log.Warn("cleaning conntrack", "err", r.Err)
	case removed > 0:
		d.log.Info("removed conntrack entries that missed their service", "entries", removed, "scanned", r.Scanned, "took", r.Duration)
	}
}

// syncLogger logs the first sync, each failure once until it changes, and the
// others for those who ask for it.
func (d *daemon) syncLogger() func(proxy.Sync) {
	first, failure := true, ""
	quarantined := map[string]string{}
	return func(s proxy.Sync) {
		text := ""
		if s.Err != nil {
			text = s.Err.Error()
		}
		switch {
		case text != "" && text != failure:
			d.log.Error("the program is not in force", "err", s.Err)
		case text == "" && failure != "":
			d.log.Info("the program is in force again")
		}
		failure = text
		d.logQuarantine(quarantined, s.Quarantined)
		if s.Err != nil {
			return
		}
		if s.Check && s.Written > 0 {
			d.log.Warn("somebody else had changed our tables; repaired", "written", s.Written)
		}
		level := slog.LevelDebug
		if first {
			level, first = slog.LevelInfo, false
		}
		d.log.Log(context.Background(), level, "synced",
			"services", s.Snapshot.Services.Len(), "written", s.Written, "latency", s.Latency(),
			"compile", s.Compile, "read", s.Read, "plan", s.Plan, "apply", s.Apply)
	}
}

// logQuarantine tells what the kernel refuses, and when it no longer does.
func (d *daemon) logQuarantine(known map[string]string, now map[string]error) {
	for name := range known {
		if _, still := now[name]; !still {
			d.log.Info("no longer refused by the kernel", "service", name)
			delete(known, name)
		}
	}
	for name, err := range now {
		if known[name] != err.Error() {
			known[name] = err.Error()
			d.log.Error("refused by the kernel and left out", "service", name, "err", err)
		}
	}
}
