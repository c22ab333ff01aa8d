package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/eject"
	"nftproxy/daemon/health"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/look/basechain"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// rulesThere says whether an earlier run left rules. The kernel answers no process without the capability
// CAP_NET_ADMIN. So its lack shows here, and ends the process: a further try would not help.
func rulesThere(conn *kernel.Conn, table string) (bool, error) {
	tables, err := conn.Tables(table)
	if errors.Is(err, syscall.EPERM) {
		return false, errors.New("the kernel refuses access to nftables: run needs CAP_NET_ADMIN in its network namespace " +
			"(be root, or give the container the capability NET_ADMIN; some container runtimes give it to root only)")
	}
	if err != nil {
		return false, fmt.Errorf("look for rules of an earlier run: %w", err)
	}
	return len(tables) > 0, nil
}

func newCleaner(c Config, r reporter, conn *kernel.Conn, flows *conntrack.Table,
	counts *metrics.Metrics) *conntrack.Cleaner {
	index := conntrack.NewIndex(conntrack.Options{
		NodePortAddresses: c.Rules.NodePortAddresses, Established: c.Established, Pod: c.Rules.Pod,
	})
	noted := func(claim service.Claim) (bool, error) {
		_, noted, err := conn.LearnedBy(ruleset.Recent(c.Rules.Table, claim))
		return noted, err
	}
	return conntrack.NewCleaner(flows, index, conntrack.CleanerConfig{
		Observe: func(run conntrack.Run) {
			counts.ObserveConntrack(run)
			r.logPass(run)
		},
		Alone: func() bool {
			others, err := basechain.OthersTranslate(c.Rules.Table)
			return !others && err == nil
		},
		Dead:   eject.Dead,
		Record: &conntrack.Record{Noted: noted, Lasting: ruleset.RecentFor, Most: ruleset.MostRecent},
	})
}

// firstRoutes gives the cleaner the local routes before the first sync. Later, a task follows their changes,
// and logs why they cannot be listed.
func firstRoutes(ctx context.Context, cleaner *conntrack.Cleaner) {
	soon, cancel := context.WithTimeout(ctx, addressPatience)
	defer cancel()
	if routes, err := hostaddr.LocalRoutes(soon); err == nil {
		cleaner.LocalRoutes(routes)
	}
}

// cleanAfter returns an observer that tells the cleaner the outcome of each sync.
func cleanAfter(cleaner flowCleaner, table string) func(proxy.Sync) {
	return func(s proxy.Sync) {
		if s.Found != nil {
			cleaner.ServedBefore(func() service.Snapshot { return ruleset.ReadBack(s.Found, table, s.Snapshot.Node) })
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
		// Otherwise it is unknown whether the rules are in force. The cleaner removes nothing until the retry.
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
func newSweeper(r reporter, conn *kernel.Conn, counts *metrics.Metrics, swept func()) *affinity.Sweeper {
	log := r.sweepLogger()
	return affinity.NewSweeper(conn, process.CPUTime, func(run affinity.Run) {
		counts.ObserveAffinity(run)
		log(run)
		if run.Swept > 0 || run.Forgotten {
			swept()
		}
	})
}

// restartPatience is how long the first program waits for lists that only narrow it,
// while the rules of an earlier run are in force.
const restartPatience = 30 * time.Second

// addressPatience is how long the start waits for a complete list of the node's
// addresses. A change of the addresses interrupts a list.
const addressPatience = 10 * time.Second

// newWatcher makes a watcher that has the node's addresses from the start. The first program needs them: without them a
// restart would take --nodeport-addresses away for a moment. Later, a task follows their changes.
func newWatcher(ctx context.Context, c Config, r reporter, former watch.Former, tryTimeouts func() error,
	networks *hostaddr.Networks, out *service.Mailbox, counts *metrics.Metrics, synced func()) (*watch.Watcher, error) {
	soon, cancel := context.WithTimeout(ctx, addressPatience)
	defer cancel()
	addrs, err := hostaddr.List(soon)
	switch {
	case err != nil && soon.Err() == nil:
		return nil, err
	case err != nil:
		r.log.Warn("the node's addresses change too fast to be listed; starting without them", "err", err)
	}
	patience := time.Duration(0) // the default
	if former != nil {
		patience = restartPatience
	}
	o := c.Objects
	o.Settings, o.Node, o.ListTimeout, o.AwaitPodCIDRs, o.Synced = c.Rules.Settings, c.Node, patience, c.Rules.NodeCIDR,
		synced
	o.Report = func(p watch.Problem) { r.logProblem(p, counts) }
	o.Answers = r.logAnswers
	o.Networks = func(ranges []netip.Prefix) []netip.Prefix {
		list, err := networks.In(ctx, ranges)
		if err != nil && ctx.Err() == nil {
			r.log.Warn("cannot tell the node's networks; packets to ServiceCIDRs are not dropped", "err", err)
		}
		return list
	}
	o.Retain, o.Former, o.TryTimeouts, o.SlowStart = c.RetainMissing, former, remembered(tryTimeouts, time.Now), true
	w := watch.NewWatcher(o, out)
	w.SetHostAddresses(addrs.Own, addrs.Shared, addrs.Broadcast...)
	return w, nil
}

// newServers returns the servers for probes and for Prometheus. Another process, such as kube-proxy, may have the
// addresses of the first two for a while. At the third one, no other process may answer.
func newServers(c Config, r reporter, judge *health.Health, metrics http.Handler) ([]*health.Server, error) {
	probes, err := health.NewServer("health", c.HealthAddress, judge.Handler(), c.Log)
	if err != nil {
		return nil, fmt.Errorf("--healthz-bind-address: %w", err)
	}
	scrapes, err := health.NewServer("metrics", c.MetricsAddress, metrics, c.Log)
	if err != nil {
		return nil, fmt.Errorf("--metrics-bind-address: %w", err)
	}
	probes.Failed = r.serverFailed(watch.ReasonNoHealthServer, "healthz server failed: ")
	scrapes.Failed = r.serverFailed(watch.ReasonNoMetricsServer, "")
	own, err := health.NewServer("probe", c.ProbeAddress, judge.Handler(), c.Log)
	if err != nil {
		return nil, fmt.Errorf("--nftproxy-probe-bind-address: %w", err)
	}
	own.Require()
	if c.BindHardFail {
		probes.Require()
		scrapes.Require()
	}
	return []*health.Server{probes, scrapes, own}, nil
}

// addCertificates gives servers their certificates, and adds the tasks that load renewed ones.
func (d *Daemon) addCertificates(c Config, after *Event, servers []*health.Server) {
	for i, files := range []health.Files{c.HealthTLS, c.MetricsTLS} {
		if files == (health.Files{}) {
			continue
		}
		name := []string{"health", "metrics"}[i]
		certificate := health.NewCertificate(name, files, c.Log)
		servers[i].ServeTLS(certificate)
		for _, f := range [][2]string{{"certificate", files.Certificate}, {"key", files.Key}} {
			d.add(after, name+" server's "+f[0], "files", func(ctx context.Context) error {
				watch.FollowFile(ctx, f[1], func([]byte, error) { certificate.Load() })
				return nil
			})
		}
	}
}
