package daemon

import (
	"context"
	"strings"
	"time"

	"nftproxy/daemon/process"
	"nftproxy/daemon/takeover"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// addTasks adds what the process does.
func (d *Daemon) addTasks(ctx context.Context, c Config, p *parts) {
	observers := p.observers(ctx, c)
	// The API server prepares its lists while the start's short work is done: a trial of counters takes 15 to 20 ms, and
	// the processor has nothing to do in most of them.
	d.Tasks = []Task{
		{Name: "objects", Touches: []string{"API server or files"}, Run: func(ctx context.Context) error {
			return p.source.Run(ctx, p.watcher)
		}},
		{Name: "start", Touches: []string{"events", "nftables", "routes", "sysctls"}, Ends: p.started,
			Run: func(ctx context.Context) error {
				p.reporter.aboutNode(watch.ReasonStarting, "")
				p.connections()
				firstRoutes(ctx, p.cleaner)
				takeover.RemoveTraces(c.Log)
				removeEjectTable(c)
				removeInvalidTable(c)
				removeFlowTable(c)
				p.settings.atStart()
				return nil
			}},
	}
	then := func(name, touches string, run func(context.Context) error) { d.add(p.started, name, touches, run) }
	// The servers begin to listen before the loop, which may have all lists already.
	for i, name := range []string{"health server", "metrics server", "probe server"} {
		then(name, "sockets", p.servers[i].Run)
	}
	d.addCertificates(c, p.started, p.servers)
	then("loop", "nftables", func(ctx context.Context) error { return p.loop.Run(ctx, p.mailbox, observers...) })
	then("cleaner", "conntrack", p.cleaner.Run)
	then("sweeper", "nftables", p.sweeper.Run)
	then("refusals", "nftables", p.refused.Run)
	then("ejections", "conntrack, endpoints, nodes, API server, nftables", p.ejector.Run)
	then("balance", "conntrack", p.balancer.Run)
	if p.flowing != nil {
		then("flows", "conntrack, nftables, nfnetlink_log", flowTask(p))
	}
	then("health check node ports", "sockets", p.ports.Run)
	then("node ports on localhost", "sockets", p.local.Run)
	d.addNetwork(c, p)
	then("occupancy", "conntrack", func(ctx context.Context) error {
		return followOccupancy(ctx, p.reporter, p.flows, p.counts)
	})
	then("behind", "log", func(ctx context.Context) error { return p.reporter.followBehind(ctx, p.watcher.Behind) })
	then("kube-proxy", "nftables, iptables, processes, sockets", p.kubeProxy.Run)
	then("other tables", "nftables", p.others.Run)
	if c.DropInvalid {
		then("invalid packets", "nftables, sysctls", invalidDropper(c, p.registry))
	}
	if c.File != "" {
		then("configuration file", "files", p.follower.Run)
	}
	if p.source.Client != nil {
		d.addAPIServer(c, p)
	}
}

// add adds a task that waits for an event. touches is a list separated by commas.
func (d *Daemon) add(after *Event, name, touches string, run func(context.Context) error) {
	d.Tasks = append(d.Tasks, Task{Name: name, After: []*Event{after}, Touches: strings.Split(touches, ", "), Run: run})
}

func (d *Daemon) addNetwork(c Config, p *parts) {
	d.add(p.started, "addresses", "addresses", func(ctx context.Context) error {
		return hostaddr.Follow(ctx, c.Log, func(a hostaddr.Addresses) {
			p.watcher.SetHostAddresses(a.Own, a.Shared, a.Broadcast...)
		})
	})
	d.add(p.started, "local routes", "routes", func(ctx context.Context) error {
		return hostaddr.FollowLocalRoutes(ctx, c.Log, p.cleaner.LocalRoutes)
	})
	d.add(p.started, "networks", "routes", func(ctx context.Context) error {
		return p.networks.Follow(ctx, c.Log, p.watcher.RoutesChanged)
	})
}

// addAPIServer adds what there is to do with an API server besides following its objects.
func (d *Daemon) addAPIServer(c Config, p *parts) {
	d.add(p.started, "sleep", "API server", func(ctx context.Context) error {
		process.FollowSleep(ctx, func(slept time.Duration) {
			c.Log.Info("the machine has slept, or its clock was set ahead; connecting to the API server again", "ahead",
				slept.Round(time.Second).String())
			p.source.Renew()
		})
		return nil
	})
	d.add(p.started, "server version", "API server", p.server.follow)
	if c.StartupTaint != "" {
		d.add(p.served, "start-up taint", "API server", func(ctx context.Context) error {
			p.reporter.removeStartupTaint(ctx, p.source.Client, c.StartupTaint)
			return nil
		})
	}
}
