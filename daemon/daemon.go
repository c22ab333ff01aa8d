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

	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/balance"
	"nftproxy/daemon/eject"
	"nftproxy/daemon/flows"
	"nftproxy/daemon/health"
	"nftproxy/daemon/listen"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/process"
	"nftproxy/daemon/proxy"
	"nftproxy/daemon/statuspage"
	"nftproxy/daemon/takeover"
	"nftproxy/look/traffic"
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

// New makes the parts. The context is that of the tasks.
func New(ctx context.Context, c Config) (_ *Daemon, err error) {
	d := &Daemon{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	p := &parts{
		registry: metrics.NewRegistry(), slis: metrics.NewSLIs(), mailbox: service.NewMailbox(),
		load: process.NewFirstLoad(), networks: &hostaddr.Networks{},
		started: newEvent("start"), served: newEvent("in force"),
	}
	d.close = append(d.close, p.load.Stop)
	metrics.FollowRequests(p.registry)
	if p.outside, err = d.open(ctx, c); err != nil {
		return nil, err
	}
	p.counts = metrics.New(p.registry)
	if err := p.addServing(ctx, c); err != nil {
		return nil, err
	}
	if err := p.addTelling(c); err != nil {
		return nil, err
	}
	p.addBeside(c)
	d.addTasks(ctx, c, p)
	return d, nil
}

type parts struct {
	outside
	registry *prometheus.Registry
	counts   *metrics.Metrics
	slis     *metrics.SLIs

	// What serves: from objects to rules, and without stale connections.
	mailbox  *service.Mailbox
	load     *process.FirstLoad
	networks *hostaddr.Networks
	watcher  *watch.Watcher
	rules    func() ruleset.Config // asks the kernel what it can do, once
	cleaner  *conntrack.Cleaner
	loop     *proxy.Loop

	// What tells about it, and takes changes of the configuration.
	rewriters *takeover.Rewriters
	others    *takeover.OtherTables
	server    *serverVersion
	eligible  atomic.Bool // by the newest snapshot
	judge     *health.Health
	page      *statuspage.Page
	settings  *Sysctls
	follower  *ConfigFollower
	servers   []*health.Server

	// What works beside it.
	ejector     *eject.Ejector
	balancer    *balance.Balancer
	flowing     *flows.Follower // of connections; nil without --nftproxy-flows
	sweeper     *affinity.Sweeper
	refused     *traffic.RefusalWatcher
	ports       *listen.HealthPorts
	local       *listen.LocalPorts
	kubeProxy   *takeover.KubeProxy
	connections func() func(proxy.Sync)

	// started is after the start's short work, served when the program has been in force in each family that needs it.
	started, served *Event
}

func (p *parts) addServing(ctx context.Context, c Config) (err error) {
	accounts := proxy.NewAccounts()
	c.Objects.Accounts = accounts
	p.watcher, err = newWatcher(ctx, c, p.reporter, former(c, p.conn, p.inForce), p.conn.TryTimeouts, p.networks,
		p.mailbox, p.counts, p.load.Begin)
	if err != nil {
		return err
	}
	if p.inForce {
		restoreSlots(p.conn, c, p.watcher)
	}
	p.counts.CountChanges(p.watcher)
	p.counts.CountRetained(func() int { return p.watcher.Retained().Services })
	p.counts.CountBehind(func() time.Time { return p.watcher.Behind().Since })
	p.rules = sync.OnceValue(func() ruleset.Config { return tried(c.Rules, p.conn, c.Log) })
	p.cleaner = newCleaner(c, p.reporter, p.conn, p.flows, p.counts)
	loop := c.loop()
	loop.CPU, loop.Accounts, loop.Begin = process.CPUTime, accounts, func() { p.beforeWrite(c) }
	compile := sync.OnceValue(func() *ruleset.Compiler { return ruleset.NewCompiler(p.rules()) })
	p.loop = proxy.New(loop, p.conn, func(s service.Snapshot) *nft.Program { return compile().Compile(s) })
	return nil
}

// addTelling makes what tells about the serving, and what takes changes of the configuration.
func (p *parts) addTelling(c Config) (err error) {
	r := p.reporter
	p.rewriters = takeover.NewRewriters(p.conn, c.Rules.Table, p.keeper, func(who, text string) {
		r.log.Warn("another program changes our tables again and again; we repair them at a bounded rate", "table",
			c.Rules.Table, "who", who)
		r.aboutNode(watch.ReasonTablesRewritten, text)
	})
	p.others = takeover.NewOtherTables(c.Rules.Table, c.Log, func(note string) {
		r.aboutNode(watch.ReasonOtherTable, note)
	})
	p.server = &serverVersion{reporter: r, client: p.source.Client, counts: p.counts}
	judge := health.Config{
		Busy: p.loop.Busy,
		Answered: func(path string, code int) {
			p.counts.CountHealth(path, code)
			p.slis.Observe("proxy", strings.TrimPrefix(path, "/"), code == http.StatusOK)
		},
		Awaiting: p.watcher.Awaiting, Note: func() string {
			return joinNotes(p.watcher.Behind().String(), p.watcher.Retained().String(), p.server.note(), p.rewriters.Note(),
				p.others.Note())
		},
	}
	if c.Source.Manifests == "" { // These seldom say whether the node is eligible, and no load balancer asks then.
		judge.NodeEligible = p.eligible.Load
	}
	p.judge = health.New(judge)
	p.flowing = newFollower(c, p.outside, p.registry)
	p.page = newStatusPage(c, p.judge, p.watcher.Problems, p.heldWords, p.besideTheSyncs, p.flowing)
	p.settings = NewSysctls(c, r.record)
	p.follower = NewConfigFollower(c, r.record, p.settings, p.watcher, p.loop)
	if c.File != "" {
		p.follower.Counts = metrics.NewConfigFile(p.registry)
	}
	p.servers, err = newServers(c, r, p.judge, metricsHandler(c, p.follower.Flags, p.registry, p.slis, p.page, p.flowing))
	return err
}

// addBeside makes what works beside the serving.
func (p *parts) addBeside(c Config) {
	r := p.reporter
	p.ejector = newEjector(c, p.outside, p.watcher, p.counts)
	p.balancer = newBalancer(c, p.outside, p.watcher, p.counts)
	p.sweeper = newSweeper(r, p.conn, p.counts, p.cleaner.CheckAll)
	p.refused = traffic.NewRefusalWatcher(p.conn, r.refusalObserver(p.watcher, p.counts))
	p.ports = listen.NewHealthPorts(listen.Config{
		NodePortAddresses: c.Rules.NodePortAddresses, Observe: p.counts.ObserveHealthPorts, Log: c.Log,
	}, func() bool { return p.judge.Status().Healthy })
	p.local = listen.NewLocalPorts(listen.Config{NodePortAddresses: c.Rules.NodePortAddresses, Log: c.Log})
	metrics.FollowLocalPorts(p.registry, p.local.Counts)
	p.kubeProxy = takeover.NewKubeProxy(c.Log, func(note string) { r.aboutNode(watch.ReasonKubeProxy, note) },
		p.counts.ObserveKubeProxy, c.beside(), c.ExcludeIPVS)
	p.connections = sync.OnceValue(func() func(proxy.Sync) { return countConnections(c, p.rules(), p.conn, p.registry) })
}

// outside is what a run has open.
type outside struct {
	reporter reporter
	source   *watch.Connection
	conn     *kernel.Conn
	// waiting and counted are flows with sockets of their own: a clean-up, a look for connections without an answer and a
	// count for least connections do not wait for each other.
	flows, waiting, counted *conntrack.Table
	// asked is the same for the entries of single connections; nil without --nftproxy-flows.
	asked    *conntrack.Table
	adjusted *ejecttable.Table
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
	tables := []**conntrack.Table{&o.flows, &o.waiting, &o.counted}
	if c.Rules.Flows.Rate() > 0 {
		tables = append(tables, &o.asked)
	}
	for _, table := range tables {
		if *table, err = conntrack.Open(conntrack.Config{}); err != nil {
			return o, err
		}
		d.close = append(d.close, func() { _ = (*table).Close() })
	}
	if o.adjusted, err = ejecttable.Open(c.Rules.Table, 0, c.Eject == service.EjectOn); err != nil {
		return o, err
	}
	d.close = append(d.close, func() { _ = o.adjusted.Close() })
	return o, nil
}
