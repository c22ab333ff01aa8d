package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nftproxy/look/verify"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/watch"
)

// settle waits until the kernel's tables equal a fresh compile of what the API server
// holds and until open flows have followed, and then lets some traffic pass that nothing
// excuses. Without a proxy there is nothing to wait for. A proxy that has started while
// the API server is away keeps what it finds until it knows the objects.
func (w *world) settle() error {
	if w.proxy == nil {
		w.count.add("settles left out, for no proxy ran")
		return nil
	}
	if w.blind {
		w.count.add("settles left out, for the proxy had not met the API server yet")
		return nil
	}
	began := time.Now()
	if err := w.awaitTables(began); err != nil {
		return err
	}
	settled := time.Now()
	w.count.settled(settled.Sub(began))
	w.book.Settled(settled)
	w.silentStill(settled)
	w.unsettled = []objects{w.objects.clone()}
	if err := w.traffic.awaitFlows(settled, patience); err != nil {
		return err
	}
	now := time.Now()
	w.count.followed(now.Sub(settled))
	const memory = 5 * time.Minute // longer than any question takes
	w.book.FlowsSettled(now, memory)
	if err := w.traffic.calm(patience); err != nil {
		return err
	}
	if w.opts.verbose {
		fmt.Fprintf(w.out, "%s settled: tables after %v, open flows after %v more, clients after %v more\n",
			now.Format("15:04:05.000"),
			settled.Sub(began).Round(time.Millisecond), now.Sub(settled).Round(time.Millisecond),
			time.Since(now).Round(time.Millisecond))
	}
	w.count.observe(w.proxy.PID())
	return errors.Join(w.alive(), w.othersStay())
}

// awaitTables returns once the tables are right.
func (w *world) awaitTables(began time.Time) error {
	pause := 5 * time.Millisecond
	for {
		differences, err := w.differences()
		if err == nil && differences == "" {
			return nil
		}
		if err != nil && w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		if time.Since(began) > patience {
			return failed("after %v the tables still differ from what the API server holds (error: %v):\n%s", patience, err,
				differences)
		}
		if err := w.alive(); err != nil {
			return err
		}
		select {
		case <-w.ctx.Done():
			return w.ctx.Err()
		case <-w.traffic.failed:
			return w.traffic.failure
		case <-time.After(pause):
		}
		pause = min(2*pause, 300*time.Millisecond)
	}
}

// differences compares the tables with a fresh compile, and then looks for clients that are remembered for an endpoint
// that their Service no longer uses: the rules send them there until the sweep after the transaction.
func (w *world) differences() (string, error) {
	if w.apiUp {
		if err := w.list(); err != nil {
			return "", fmt.Errorf("list objects: %w", err)
		}
	}
	want, err := w.want()
	if err != nil {
		return "", err
	}
	have, err := w.conn.Read(want)
	if err != nil {
		return "", err
	}
	found := verify.Compare(want, have)
	if found.Len() == 0 {
		return w.remembered(want)
	}
	var text strings.Builder
	const most = 20
	report := found.Report(most)
	err = report.WriteText(&text)
	return text.String(), err
}

// remembered names the maps that remember clients for endpoints that the program does not use.
func (w *world) remembered(want *nft.Program) (string, error) {
	var text strings.Builder
	for _, m := range ruleset.AffinityMaps(want) {
		entries, err := w.conn.Learned(m.Table, m.Set)
		if err != nil {
			return "", err
		}
		if i := slices.IndexFunc(entries, func(e kernel.Entry) bool { return !m.Keep(e.Key, e.Data) }); i >= 0 {
			fmt.Fprintf(&text, "%s remembers client %s for an endpoint that has gone\n", m.Name.Map,
				m.Set.Key.Format(m.Name.Family, entries[i].Key))
		}
	}
	return text.String(), nil
}

// want is the program that should be in the kernel.
func (w *world) want() (*nft.Program, error) {
	var addrs hostaddr.Addresses
	err := w.Node.Do(func() (err error) {
		addrs, err = hostaddr.List(w.ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	snapshot, err := w.snapshot(addrs)
	if err != nil {
		return nil, err
	}
	config, err := w.config()
	if err != nil {
		return nil, err
	}
	return ruleset.Compile(config, snapshot), nil
}

// config is the proxy's configuration, by its flags.
func (w *world) config() (ruleset.Config, error) {
	c := ruleset.Config{Table: ruleset.DefaultTable, Counters: w.choice.Get("counters") != "none"}
	c.MasqueradeAll = w.choice.Get("masquerade-all") == "yes"
	var list []string
	if addresses := w.choice.Get("node-ports"); addresses != "" {
		list = []string{addresses}
	}
	var err error
	if c.NodePortAddresses, err = service.ParseNodePortAddresses(list); err != nil {
		return c, err
	}
	if w.choice.Get("local") == "InterfaceNamePrefix" {
		c.PodInterface = service.Interface{Name: "veth", Prefix: true}
		return c, nil
	}
	c.ClusterCIDRs = slices.Clone(w.ClusterCIDRs)
	return c, nil
}

// snapshot is what the proxy should serve: the objects, read again as manifests.
func (w *world) snapshot(addrs hostaddr.Addresses) (service.Snapshot, error) {
	file := filepath.Join(w.opts.dir, fmt.Sprintf("objects-%d.json", os.Getpid()))
	if err := os.WriteFile(file, w.objects.all, 0o644); err != nil {
		return service.Snapshot{}, err
	}
	defer os.Remove(file)
	mailbox := service.NewMailbox()
	var problems []error
	watcher := watch.NewWatcher(watch.Options{
		Node: nodeName, OwnPorts: []watch.OwnPort{{Port: 22, Whose: "the node"}},
		Report: func(p watch.Problem) { problems = append(problems, p) },
	}, mailbox)
	watcher.SetHostAddresses(addrs.Own, addrs.Shared, addrs.Broadcast...)
	adjustments, err := w.adjustments()
	if err != nil {
		return service.Snapshot{}, err
	}
	watcher.SetAdjustments(adjustments)
	ctx, cancel := context.WithCancel(w.ctx)
	ended := make(chan error, 1)
	go func() { ended <- watcher.RunManifests(ctx, file) }()
	select {
	case <-mailbox.C():
	case err = <-ended:
		cancel()
		return service.Snapshot{}, errors.Join(err, w.ctx.Err())
	}
	update, _ := mailbox.Take()
	cancel()
	err = <-ended
	return update.Snapshot, err
}
