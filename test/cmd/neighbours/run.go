package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// result is what a run showed of one neighbour.
type result struct {
	Name, What string
	// Versions are the packages with their versions.
	Versions []string
	Setting  string `json:",omitempty"`
	// Opens is that of the neighbour if flows were open by it.
	Opens string `json:",omitempty"`
	// Silences is that of the neighbour if it dropped refusals.
	Silences string `json:",omitempty"`
	Kernel   string
	Date     string
	Events   []outcome
	// Check has what "nftproxy check" found after the start and not before, Explain the lines of "nftproxy explain" about
	// chains of the neighbour for a flow that it closes.
	Check   []string `json:",omitempty"`
	Explain []string `json:",omitempty"`
	Notes   []string `json:",omitempty"`
	// Record is what the program saw beside nftproxy that followed no connections, and all; nil if it has no record.
	Record *record `json:",omitempty"`
}

// outcome is what came of one event.
type outcome struct {
	event
	like  string // the event of the neighbour alone to compare with
	Table table
	// Alone and Beside are the load that began after the event, with the neighbour alone and beside nftproxy, on the ways
	// that the neighbour does not close by its start.
	Alone, Beside tally
	// Lost are the ways on which Beside lost connections of a protocol of which Alone lost none.
	Lost []string `json:",omitempty"`
	// Excuse is why that is the neighbour's doing, if it is.
	Excuse string `json:",omitempty"`
}

// Events that are nftproxy's.
const (
	proxyRestarts = "nftproxy restarts"
	proxyStarts   = "nftproxy starts after it"
)

// try runs one neighbour alone, and then beside nftproxy.
func try(ctx context.Context, n neighbour, s trialSetup) (r result, err error) {
	if n.tool != "" {
		path, err := controlplane.Tool(ctx, n.tool)
		if err != nil {
			return result{}, err
		}
		s.tree = filepath.Dir(path) + ":" + s.tree
	}
	if n.calico != "" {
		folder, version, err := buildFelix(ctx, s.calico)
		if err != nil {
			return result{}, err
		}
		s.tree, n.programs = folder+":"+s.tree, append(n.programs, version)
	}
	if n.record != nil {
		s.share = followAll
	}
	alone, err := tryAlone(ctx, n, s)
	if err != nil {
		return result{}, fmt.Errorf("%s alone: %w", n.name, err)
	}
	if r, err = tryBeside(ctx, n, s, alone); err != nil {
		return result{}, fmt.Errorf("%s beside nftproxy: %w", n.name, err)
	}
	if n.record != nil {
		seen, err := tryRecorded(ctx, n, s)
		if err != nil {
			return result{}, fmt.Errorf("the record of %s: %w", n.name, err)
		}
		r.Record = &seen
	}
	return r, nil
}

// solitude is what the neighbour alone lets pass after an event, and what it loses.
type solitude struct {
	open map[string]string
	// load is by the number of the stream, and settled the part of it that counts.
	load, settled []tally
}

// settled is the event of a load whose connections begin when an event of the neighbour is over; the event itself,
// unless it drops all packets.
func (n neighbour) settled(event string) string {
	if slices.Contains(n.drops, event) {
		return event + " (over)"
	}
	return event
}

func tryAlone(ctx context.Context, n neighbour, s trialSetup) (all map[string]solitude, err error) {
	w, err := newWorld(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	direct := w.direct()
	got, err := w.ask(ctx, direct, nil)
	if err != nil {
		return nil, err
	}
	if err := unexpected(direct, got); err != nil {
		return nil, fmt.Errorf("without any program: %w", err)
	}
	if err := w.prepare(ctx, n); err != nil {
		return nil, err
	}
	all = map[string]solitude{}
	l := w.startLoad(ctx, w.streams(true))
	defer l.stop()
	for _, e := range append(n.events[:len(n.events):len(n.events)], n.stop) {
		l.after(e.Name)
		if err := w.event(ctx, n, e); err != nil {
			return nil, err
		}
		l.settle(n, e.Name)
		open, err := w.ask(ctx, append(w.own(n), direct...), nil)
		if err != nil {
			return nil, err
		}
		for _, f := range w.own(n) {
			if e.Name == nameStart && !isOpen(open[f.key()]) {
				return nil, fmt.Errorf("after its start, %s: %s", f.key(), open[f.key()])
			}
		}
		all[e.Name] = solitude{open: open}
		if err := l.await(ctx); err != nil {
			return nil, err
		}
	}
	l.stop()
	for name, open := range all {
		open.load, open.settled = l.tallies[name], l.tallies[n.settled(name)]
		all[name] = open
	}
	return all, nil
}

// prepare has everything there that the program needs.
func (w *world) prepare(ctx context.Context, n neighbour) error {
	if n.policies != "" {
		if err := w.startPlane(ctx, n.policies); err != nil {
			return err
		}
	}
	if n.calico != "" {
		if err := w.startStore(ctx); err != nil {
			return err
		}
		if err := w.store(ctx, n.calico); err != nil {
			return err
		}
	}
	if _, err := w.system.run(ctx, n.prepare); err != nil {
		return err
	}
	for i, p := range n.peers {
		at := w.net.Remote
		if p.at != "" {
			at = w.places[p.at]
		}
		work := filepath.Join(w.dir, fmt.Sprint("peer", i))
		if err := os.Mkdir(work, 0o755); err != nil {
			return err
		}
		s, err := startSystem(ctx, at, w.tree, work)
		if err != nil {
			return err
		}
		w.peers = append(w.peers, s)
		if _, err := s.run(ctx, p.start); err != nil {
			return err
		}
	}
	if then := n.beside[namePrepared]; w.proxy != nil && then != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return then(ctx, w)
	}
	return nil
}

// event lets an event happen to the program, with what its peers do.
func (w *world) event(ctx context.Context, n neighbour, e event) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("event %q: %w", e.Name, err)
		}
	}()
	for i, p := range n.peers {
		if _, err := w.peers[i].run(ctx, p.before[e.Name]); err != nil {
			return err
		}
	}
	if err := w.store(ctx, n.changes[e.Name]); err != nil {
		return err
	}
	if _, err := w.system.run(ctx, e.Script); err != nil {
		return err
	}
	if then := n.beside[e.Name]; w.proxy != nil && then != nil {
		if err := then(ctx, w); err != nil {
			return err
		}
	}
	for i, p := range n.peers {
		if _, err := w.peers[i].run(ctx, p.after[e.Name]); err != nil {
			return err
		}
	}
	return nil
}

// trial is a run beside nftproxy.
type trial struct {
	*world
	n      neighbour
	alone  map[string]solitude
	flows  []flow
	load   *load
	result result
}

func tryBeside(ctx context.Context, n neighbour, s trialSetup, alone map[string]solitude) (r result, err error) {
	w, err := newWorld(ctx, s)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	t := &trial{world: w, n: n, alone: alone, flows: w.services()}
	if err := t.describe(ctx); err != nil {
		return r, err
	}
	streams := w.streams(false)
	if n.cache != noCache {
		if err := w.startDNS(ctx); err != nil {
			return r, err
		}
		streams = append(streams, w.dnsStreams()...)
	}
	if n.moving {
		if err := w.startMoving(ctx, n.routed); err != nil {
			return r, err
		}
		streams = append(streams, w.movingStreams()...)
	}
	if err := w.startProxy(ctx); err != nil {
		return r, err
	}
	got, err := w.ask(ctx, t.flows, nil)
	if err != nil {
		return r, err
	}
	if err := unexpected(t.flows, got); err != nil {
		return r, fmt.Errorf("nftproxy alone: %w", err)
	}
	if err := w.prepare(ctx, n); err != nil {
		return r, err
	}
	for i, s := range streams {
		streams[i].unused = !s.strict && n.opens == "" && !isOpen(alone[nameStart].open[s.like])
	}
	t.load = w.startLoad(ctx, streams)
	defer t.load.stop()
	if err := t.underLoad(ctx); err != nil {
		return r, err
	}
	t.load.stop()
	for i := range t.result.Events {
		t.weigh(&t.result.Events[i])
	}
	err = t.startAfter(ctx)
	if err == nil && t.result.verdict().good {
		t.result.Notes = n.notes
	}
	return t.result, err
}

// weigh compares the load after an event with that of the neighbour alone. What an event loses is a matter of moments,
// so that single ways are not compared, but all ways of a protocol.
func (t *trial) weigh(o *outcome) {
	alone, beside := map[string]tally{}, map[string]tally{}
	over := t.n.settled(o.Name)
	for i, s := range t.load.streams {
		if s.unused {
			continue
		}
		beside[s.protocol] = beside[s.protocol].plus(t.load.tallies[over][i])
		o.Beside = o.Beside.plus(t.load.tallies[o.Name][i])
		if over != o.Name {
			o.Beside = o.Beside.plus(t.load.tallies[over][i])
		}
		// Where the neighbour closes the direct way, what it loses there alone is no measure.
		if !s.strict && isOpen(t.alone[nameStart].open[s.like]) {
			alone[s.protocol] = alone[s.protocol].plus(t.alone[o.like].settled[i])
			o.Alone = o.Alone.plus(t.alone[o.like].load[i])
			if t.n.settled(o.like) != o.like {
				o.Alone = o.Alone.plus(t.alone[o.like].settled[i])
			}
		}
	}
	defer func() {
		if own := o.Name == nameStart || o.Name == "restarts" || o.Name == t.n.stop.Name; own && len(o.Lost) > 0 {
			o.Excuse = t.n.loses
		}
	}()
	for _, protocol := range slices.Sorted(maps.Keys(beside)) {
		if beside[protocol].Lost == 0 || alone[protocol].Lost > 0 {
			continue
		}
		for i, s := range t.load.streams {
			if tally := t.load.tallies[over][i]; s.protocol == protocol && tally.Lost > 0 {
				o.Lost = append(o.Lost, fmt.Sprintf("%s: %d of %d", s.text(), tally.Lost, tally.Made))
			}
		}
	}
}

// describe notes what the row is about.
func (t *trial) describe(ctx context.Context) error {
	versions, err := t.system.run(ctx, "dpkg-query -W -f '${Package} ${Version}\\n' "+strings.Join(t.n.packages, " "))
	if err != nil {
		return err
	}
	modules, err := moduleVersions(ctx, t.n.modules)
	if err != nil {
		return err
	}
	release, err := kernel()
	if err != nil {
		return err
	}
	t.result = result{
		Name: t.n.name, What: t.n.what, Setting: t.n.setting,
		Versions: slices.Concat(strings.Split(strings.TrimSpace(versions), "\n"), t.n.programs, modules),
		Kernel:   release, Date: time.Now().UTC().Format(time.DateOnly),
	}
	return nil
}

// underLoad lets each event happen, and nftproxy's restart before the last.
func (t *trial) underLoad(ctx context.Context) error {
	before, err := t.findings(ctx)
	if err != nil {
		return err
	}
	last := ""
	for _, e := range t.n.events {
		last = e.Name
		t.load.after(e.Name)
		if err := t.event(ctx, t.n, e); err != nil {
			return err
		}
		t.load.settle(t.n, e.Name)
		if err := t.look(ctx, e, e.Name); err != nil {
			return err
		}
		if e.Name == nameStart {
			if err := t.diagnose(ctx, before); err != nil {
				return err
			}
		}
	}
	t.load.after(proxyRestarts)
	if err := errors.Join(t.stopProxy(ctx), t.startProxy(ctx)); err != nil {
		return err
	}
	if err := t.look(ctx, event{Name: proxyRestarts}, last); err != nil {
		return err
	}
	t.load.after(t.n.stop.Name)
	if err := t.event(ctx, t.n, t.n.stop); err != nil {
		return err
	}
	t.load.settle(t.n, t.n.stop.Name)
	return t.look(ctx, t.n.stop, t.n.stop.Name)
}

// look asks all flows, and compares them with what the neighbour alone lets pass after the event like.
func (t *trial) look(ctx context.Context, e event, like string) error {
	flows := t.own(t.n)
	for i, f := range flows {
		flows[i].want = t.alone[like].open[f.key()]
		if t.n.cache != noCache {
			flows[i].want = t.n.cache.want(f, flows[i].want)
		}
	}
	if t.n.moving {
		flows = append(flows, t.movingFlows()...)
	}
	for _, f := range t.flows {
		if f.want == refused && f.protocol == testnet.TCP && e.Name != t.n.stop.Name && slices.Contains(t.n.accepts, f.from) {
			f.want = brokenOff
		}
		flows = append(flows, f)
	}
	got, err := t.ask(ctx, flows, t.alone[like].open)
	if err != nil {
		return err
	}
	o := outcome{event: e, like: like, Table: judge(flows, got, t.alone[like].open, t.n.silences != "")}
	if len(o.Table.Opened) > 0 {
		t.result.Opens = t.n.opens
	}
	if len(o.Table.Silent) > 0 {
		t.result.Silences = t.n.silences
	}
	t.result.Events = append(t.result.Events, o)
	return t.load.await(ctx)
}

// startAfter starts the neighbour first, and then nftproxy on a node without its rules.
func (t *trial) startAfter(ctx context.Context) error {
	if err := t.stopProxy(ctx); err != nil {
		return err
	}
	if out, err := t.command(ctx, "cleanup"); err != nil {
		return fmt.Errorf("cleanup: %w: %s", err, out)
	}
	if err := t.event(ctx, t.n, t.n.events[0]); err != nil {
		return err
	}
	if err := t.startProxy(ctx); err != nil {
		return err
	}
	return t.look(ctx, event{Name: proxyStarts}, nameStart)
}
