// Package daemon is the process that serves a node: its parts, joined, as a list of tasks that says what each waits
// for and touches. What one part tells another, the log, events and metrics is here.
//
// The work is in the parts (daemon/proxy is the loop). The package reads no flags.
package daemon

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/health"
	"nftproxy/daemon/listen"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/daemon/takeover"
	"nftproxy/look/traffic"
	"nftproxy/model/ejection"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ejecttable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/node/tablekeeper"
	"nftproxy/watch"
)

// Daemon is a process whose parts are there and do nothing yet.
type Daemon struct {
	// Tasks is what it does.
	Tasks []Task
	close []func()
}

// Run runs the proxy until the context ends. The rules stay in the kernel.
func Run(ctx context.Context, c Config) error {
	process.SetOOMScoreAdj(c.OOMScoreAdj, c.Log)
	process.LimitPrivileges(c.Log)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d, err := New(ctx, c)
	if err != nil {
		return err
	}
	defer d.Close()
	c.Log.Info("starting", "version", c.Version, "node", c.Node, "table", c.Rules.Table)
	c.logNotes()
	err = run(ctx, d.Tasks)
	c.Log.Info("stopped; the rules stay")
	return err
}

// Close gives back what New has opened.
func (d *Daemon) Close() {
	for _, end := range slices.Backward(d.close) {
		end()
	}
}

// New makes the parts, each of those before it. The context is that of the tasks.
func New(ctx context.Context, c Config) (_ *Daemon, err error) {
	d := &Daemon{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	registry := metrics.NewRegistry()
	metrics.FollowRequests(registry)
	o, err := d.open(ctx, c)
	if err != nil {
		return nil, err
	}
	r, conn := o.reporter, o.conn
	counts, slis := metrics.New(registry), metrics.NewSLIs()
	mailbox := service.NewMailbox()
	load := process.NewFirstLoad()
	d.close = append(d.close, load.Stop)
	networks := &hostaddr.Networks{}
	accounts := proxy.NewAccounts()
	c.Objects.Accounts = accounts
	watcher, err := newWatcher(ctx, c, r, former(c, conn, o.inForce), conn.TryTimeouts, networks, mailbox, counts,
		load.Begin)
	if err != nil {
		return nil, err
	}
	counts.CountChanges(watcher)
	counts.CountRetained(func() int { return watcher.Retained().Services })
	counts.CountBehind(func() time.Time { return watcher.Behind().Since })

	started, served := newEvent("start"), newEvent("in force")
	rules := sync.OnceValue(func() ruleset.Config { return tried(c.Rules, conn, c.Log) })
	cleaner := newCleaner(c, r, conn, o.flows, counts)
	loopConfig := c.loop()
	loopConfig.CPU, loopConfig.Accounts = process.CPUTime, accounts
	loopConfig.Begin = func() {
		load.BeforeRead(func() bool { return tablesThere(conn, c.Rules.Table) })
		cleaner.SyncBegins()
	}
	compile := sync.OnceValue(func() *ruleset.Compiler { return ruleset.NewCompiler(rules()) })
	loop := proxy.New(loopConfig, conn, func(s service.Snapshot) *nft.Program { return compile().Compile(s) })

	rewriters := takeover.NewRewriters(conn, c.Rules.Table, o.keeper, func(who, text string) {
		r.log.Warn("another program changes our tables again and again; we repair them at a bounded rate", "table",
			c.Rules.Table, "who", who)
		r.aboutNode(watch.ReasonTablesRewritten, text)
	})
	others := takeover.NewOtherTables(c.Rules.Table, c.Log, func(note string) {
		r.aboutNode(watch.ReasonOtherTable, note)
	})
	server := &serverVersion{reporter: r, client: o.source.Client, counts: counts}
	var eligible atomic.Bool // by the newest snapshot
	judge := health.New(health.Config{
		Busy: loop.Busy, NodeEligible: nodeEligible(c.Source, &eligible),
		Answered: func(path string, code int) {
			counts.CountHealth(path, code)
			slis.Observe("proxy", strings.TrimPrefix(path, "/"), code == http.StatusOK)
		},
		Awaiting: watcher.Awaiting, Note: func() string {
			return joinNotes(watcher.Behind().String(), watcher.Retained().String(), server.note(), rewriters.Note(),
				others.Note())
		},
	})
	page := newStatusPage(c, judge, watcher.Problems)
	settings := NewSysctls(c, r.record)
	follower := NewConfigFollower(c, r.record, settings, watcher, loop)
	servers, err := newServers(c, r, judge, metricsHandler(c, follower.Flags, registry, slis, page))
	if err != nil {
		return nil, err
	}
	table := ejecttable.New(c.Rules.Table, 0, c.Eject == ejection.On)
	d.close = append(d.close, func() { _ = table.Close() })
	ejector := newEjector(c, o, table, watcher, counts)
	sweeper := newSweeper(r, conn, counts, cleaner.CheckAll)
	refused := traffic.NewRefusalWatcher(conn, r.refusalObserver(watcher, counts))
	ports := listen.NewHealthPorts(listen.Config{
		NodePortAddresses: c.Rules.NodePortAddresses, Observe: counts.ObserveHealthPorts, Log: c.Log,
	}, func() bool { return judge.Status().Healthy })
	local := listen.NewLocalPorts(listen.Config{NodePortAddresses: c.Rules.NodePortAddresses, Log: c.Log})
	metrics.FollowLocalPorts(registry, local.Counts)
	kubeProxy := takeover.NewKubeProxy(c.Log, func(note string) { r.aboutNode(watch.ReasonKubeProxy, note) },
		counts.ObserveKubeProxy, c.beside(), c.ExcludeIPVS)
	connections := sync.OnceValue(func() func(proxy.Sync) { return countConnections(c, rules(), conn, registry) })
	announce := sync.OnceFunc(func() { close(served.true) })
	// The cleaner comes first: it removes nothing until it knows the outcome of a sync. The next one is before those who
	// say that the sync is over.
	observers := []func(proxy.Sync){
		cleanAfter(cleaner, c.Rules.Table), r.growthObserver(table), func(proxy.Sync) { load.Synced() }, judge.Observe,
		page.Observe, r.syncObserver(watcher),
		newBusiest(r, watcher).observe, counts.Observe, ports.Notify, local.Notify, others.Observe, kubeProxy.Observe,
		func(s proxy.Sync) { eligible.Store(s.Snapshot.Node.Eligible) },
		func(s proxy.Sync) { rewriters.Observe(ctx, s) },
		func(s proxy.Sync) { sweeper.Notify(s.Applied, s.Adopted) },
		func(s proxy.Sync) { refused.Notify(s.Applied) },
		func(s proxy.Sync) { ejector.Notify(s.Snapshot) },
		func(s proxy.Sync) { connections()(s) },
		settings.observe,
		func(proxy.Sync) {
			if len(judge.Waiting()) == 0 {
				announce()
			}
		},
	}

	// The API server prepares its lists while the start's short work is done: a trial of counters takes 15 to 20 ms, and
	// the processor has nothing to do in most of them.
	d.Tasks = []Task{
		{Name: "objects", Touches: []string{"API server or files"}, Run: func(ctx context.Context) error {
			return o.source.Run(ctx, watcher)
		}},
		{Name: "start", Touches: []string{"events", "nftables", "routes", "sysctls"}, Ends: started,
			Run: func(ctx context.Context) error {
				r.aboutNode(watch.ReasonStarting, "")
				connections()
				firstRoutes(ctx, cleaner)
				takeover.RemoveTraces(c.Log)
				removeEjectTable(c)
				removeInvalidTable(c)
				settings.atStart()
				return nil
			}},
	}
	then := func(name, touches string, run func(context.Context) error) { d.add(started, name, touches, run) }
	// The servers begin to listen before the loop, which may have all lists already.
	for i, name := range []string{"health server", "metrics server", "probe server"} {
		then(name, "sockets", servers[i].Run)
	}
	d.addCertificates(c, started, servers)
	then("loop", "nftables", func(ctx context.Context) error { return loop.Run(ctx, mailbox, observers...) })
	then("cleaner", "conntrack", cleaner.Run)
	then("sweeper", "nftables", sweeper.Run)
	then("refusals", "nftables", refused.Run)
	then("ejections", "conntrack, endpoints, nodes, API server, nftables", ejector.Run)
	then("health check node ports", "sockets", ports.Run)
	then("node ports on localhost", "sockets", local.Run)
	d.addNetwork(c, started, watcher, cleaner, networks)
	then("occupancy", "conntrack", func(ctx context.Context) error { return followOccupancy(ctx, r, o.flows, counts) })
	then("behind", "log", func(ctx context.Context) error { return r.followBehind(ctx, watcher.Behind) })
	then("kube-proxy", "nftables, iptables, processes, sockets", kubeProxy.Run)
	then("other tables", "nftables", others.Run)
	if c.DropInvalid {
		then("invalid packets", "nftables, sysctls", invalidDropper(c, registry))
	}
	if c.File != "" {
		follower.Counts = metrics.NewConfigFile(registry)
		then("configuration file", "files", follower.Run)
	}
	if o.source.Client != nil {
		d.addAPIServer(c, o, started, served, server)
	}
	return d, nil
}

// add adds a task that waits for an event. touches is a list separated by commas.
func (d *Daemon) add(after *Event, name, touches string, run func(context.Context) error) {
	d.Tasks = append(d.Tasks, Task{Name: name, After: []*Event{after}, Touches: strings.Split(touches, ", "), Run: run})
}

// addNetwork adds the tasks that follow the node's addresses and routes.
func (d *Daemon) addNetwork(c Config, after *Event, watcher *watch.Watcher, cleaner *conntrack.Cleaner,
	networks *hostaddr.Networks) {
	d.add(after, "addresses", "addresses", func(ctx context.Context) error {
		return hostaddr.Follow(ctx, c.Log, func(a hostaddr.Addresses) {
			watcher.SetHostAddresses(a.Own, a.Shared, a.Broadcast...)
		})
	})
	d.add(after, "local routes", "routes", func(ctx context.Context) error {
		return hostaddr.FollowLocalRoutes(ctx, c.Log, cleaner.LocalRoutes)
	})
	d.add(after, "networks", "routes", func(ctx context.Context) error {
		return networks.Follow(ctx, c.Log, watcher.RoutesChanged)
	})
}

// addAPIServer adds what there is to do with an API server besides following its objects.
func (d *Daemon) addAPIServer(c Config, o outside, started, served *Event, server *serverVersion) {
	d.add(started, "sleep", "API server", func(ctx context.Context) error {
		process.FollowSleep(ctx, func(slept time.Duration) {
			c.Log.Info("the machine has slept, or its clock was set ahead; connecting to the API server again", "ahead",
				slept.Round(time.Second).String())
			o.source.Renew()
		})
		return nil
	})
	d.add(started, "server version", "API server", server.follow)
	if c.StartupTaint != "" {
		d.add(served, "start-up taint", "API server", func(ctx context.Context) error {
			o.reporter.removeStartupTaint(ctx, o.source.Client, c.StartupTaint)
			return nil
		})
	}
}

// outside is what a run has open.
type outside struct {
	reporter reporter
	source   *watch.Connection
	conn     *kernel.Conn
	// waiting is flows with sockets of its own: a clean-up and a look for connections without an answer do not wait for
	// each other.
	flows, waiting *conntrack.Table
	// keeper is the name of the socket by which this process keeps its tables, and inForce says that an earlier run left
	// some.
	keeper  string
	inForce bool
}

// open opens what the parts need. Close closes it.
func (d *Daemon) open(ctx context.Context, c Config) (o outside, err error) {
	if o.source, err = c.Source.Connect(); err != nil {
		return o, err
	}
	o.reporter = reporter{log: c.Log, node: c.Node}
	o.reporter.record, err = o.source.Recorder(ctx, c.Node, func(err error) {
		c.Log.Warn("cannot write events; the log has the same information", "err", err)
	})
	if err != nil {
		return o, err
	}
	if o.conn, err = kernel.Open(kernel.Config{}); err != nil {
		return o, fmt.Errorf("open nftables: %w", err)
	}
	d.close = append(d.close, func() { _ = o.conn.Close() })
	if o.inForce, err = rulesThere(o.conn, c.Rules.Table); err != nil {
		return o, err
	}
	var release func()
	o.keeper, release = tablekeeper.Keep(c.Rules.Table, c.Log)
	d.close = append(d.close, release)
	for _, table := range []**conntrack.Table{&o.flows, &o.waiting} {
		if *table, err = conntrack.Open(conntrack.Config{}); err != nil {
			return o, err
		}
		d.close = append(d.close, func() { _ = (*table).Close() })
	}
	return o, nil
}
