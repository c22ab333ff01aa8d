package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"nftproxy/nft"
)

func scaleUp(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	const asked = 500
	tell("two more pods")
	if err := w.addBackends(podsScaledTo - podsAtFirst); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("scale %d -> %d", podsAtFirst, podsScaledTo)
	if err := w.change(ctx, what, endpointsOf(w.ready)); err != nil {
		return nil, err
	}
	tell("connections")
	y := ways()[0]
	bars, err := w.spread(ctx, y, asked)
	if err != nil {
		return nil, err
	}
	return []block{
		textf("%d endpoints instead of %d, in the kernel %s after the manifest was replaced",
			podsScaledTo, podsAtFirst, ms(w.updates[len(w.updates)-1].total)),
		chart{groups: []group{{fmt.Sprintf("%s, %d connections", y.name, asked), bars}}},
	}, nil
}

// rollout replaces pods while connections are made.
type rollout struct {
	w       *world
	traffic *traffic
	// open are connections that shall live through it.
	open []*session
	// draining are replaced pods that have open connections.
	draining []*backend
}

// connectionsEach is how many connections each stage of the rollout has to see
// at least.
const connectionsEach = 100

func replaceAll(ctx context.Context, w *world, tell tellFunc) (result []block, err error) {
	r := &rollout{w: w}
	defer func() {
		for _, s := range r.open {
			err = errors.Join(err, s.close())
		}
	}()
	targets := []netip.AddrPort{
		netip.AddrPortFrom(webAddrs().V4(), servicePort),
		netip.AddrPortFrom(webAddrs().V6(), servicePort),
	}
	for _, to := range targets {
		s, err := openSession(ctx, w.client.NS, to)
		if err != nil {
			return nil, fmt.Errorf("open a connection to %v: %w", to, err)
		}
		r.open = append(r.open, s)
	}
	r.traffic = startTraffic(ctx, w.client.NS, targets...)
	defer r.traffic.stop()
	if err := r.traffic.settle(ctx, connectionsEach); err != nil {
		return nil, err
	}
	old := w.ready
	for i, b := range old {
		tell("%d of %d: %s", i+1, len(old), b.name())
		if err := r.replace(ctx, b); err != nil {
			return nil, err
		}
	}
	result, err = r.conclude(ctx, old)
	return result, err
}

// replace does what a Deployment does for one pod: a new one, then the old one
// is terminating and finishes what it has, then it is gone.
func (r *rollout) replace(ctx context.Context, old *backend) error {
	w := r.w
	fresh, err := w.addBackend()
	if err != nil {
		return err
	}
	ready := []*backend{}
	for _, b := range w.ready {
		if b != old {
			ready = append(ready, b)
		}
	}
	w.ready = append(ready, fresh)
	listed := append(endpointsOf(w.ready), old.endpoint(true))
	if err := w.change(ctx, old.name()+" -> "+fresh.name(), listed); err != nil {
		return err
	}
	r.traffic.leave(old.name())
	if err := r.traffic.settle(ctx, connectionsEach); err != nil {
		return err
	}
	if err := r.echo(); err != nil {
		return err
	}
	if r.used(old) {
		r.draining = append(r.draining, old)
		return nil
	}
	return w.net.RemovePod(old.name())
}

// used says whether an open connection ends at the pod.
func (r *rollout) used(b *backend) bool {
	for _, s := range r.open {
		if s.server == b.name() {
			return true
		}
	}
	return false
}

// echo uses the open connections.
func (r *rollout) echo() error {
	for _, s := range r.open {
		err := s.echo()
		if err := r.w.expect(err == nil, "open connection to "+s.server, "that it lives on", fmt.Sprint(err)); err != nil {
			return err
		}
	}
	return nil
}

// conclude ends the traffic and says what became of it.
func (r *rollout) conclude(ctx context.Context, old []*backend) ([]block, error) {
	w := r.w
	total := r.traffic.stop()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	first := ""
	if len(total.failures) > 0 {
		first = ", the first: " + total.failures[0]
	}
	what := fmt.Sprintf("failed connections of %d during the replacement", total.connections)
	if err := w.expect(len(total.failures) == 0, what, "0", fmt.Sprint(len(total.failures))+first); err != nil {
		return nil, err
	}
	var servers []string
	echoes := 0
	for _, s := range r.open {
		servers = append(servers, s.server)
		echoes += s.echoes
		if err := s.close(); err != nil {
			return nil, fmt.Errorf("close the connection to %s: %w", s.server, err)
		}
	}
	r.open = nil
	for _, b := range r.draining {
		if err := w.net.RemovePod(b.name()); err != nil {
			return nil, err
		}
	}
	if err := w.forgetTerminating(ctx); err != nil {
		return nil, err
	}
	return []block{
		textf("%s gave way to %s, one after the other", strings.Join(names(old), " "), strings.Join(names(w.ready), " ")),
		textf("%d new connections over IPv4 and IPv6 meanwhile, %.0f a second: %d failed; the slowest took %s",
			total.connections, float64(total.connections)/total.took.Seconds(), len(total.failures), ms(total.slowest)),
		textf("%d connections opened before (to %s) lived through all of it: %d echoes", len(servers), strings.Join(servers, " and "), echoes),
	}, nil
}

// forgetTerminating takes the pods that have gone out of the manifest. The
// program in the kernel may or may not change by that.
func (w *world) forgetTerminating(ctx context.Context) error {
	if err := writeManifest(w.config.manifests, w.dir, endpointsFile, newState(w.net.NodeAddrs, endpointsOf(w.ready))); err != nil {
		return err
	}
	want, err := w.wanted(ctx)
	if err != nil {
		return err
	}
	for {
		if held, err := w.holds(want); held || err != nil {
			return err
		}
		if _, err := w.proxy.next(ctx); err != nil {
			return err
		}
	}
}

func restartProxy(ctx context.Context, w *world, tell tellFunc) ([]block, error) {
	const asked = 100
	tell("stopping it")
	if err := w.proxy.stop(); err != nil {
		return nil, err
	}
	y := ways()[0]
	tell("connections without it")
	if _, err := w.spread(ctx, y, asked); err != nil {
		return nil, err
	}
	tell("starting it")
	start := time.Now()
	if err := w.launch(); err != nil {
		return nil, err
	}
	report, err := w.proxy.next(ctx)
	if err != nil {
		return nil, err
	}
	w.updates = append(w.updates, update{"restart", report, time.Since(start)})
	if err := expectEqual(&w.checks, "objects that the restarted nftproxy wrote, with nothing changed", 0, report.Written); err != nil {
		return nil, err
	}
	return []block{
		textf("stopped: the rules stay, %d of %d new connections were answered", asked, asked),
		textf("started again: read the tables back in %s and wrote %d objects", ms(report.Read), report.Written),
	}, nil
}

func showTable(ctx context.Context, w *world, _ tellFunc) ([]block, error) {
	want, err := w.wanted(ctx)
	if err != nil {
		return nil, err
	}
	have, err := w.tables.Read(want)
	if err != nil {
		return nil, fmt.Errorf("read tables: %w", err)
	}
	missing, _ := nft.Adopt(have, want).Plan(want, time.Now())
	if err := w.expect(missing.Empty(), "tables in the kernel", "what the manifests ask for", "a difference:\n"+missing.String()); err != nil {
		return nil, err
	}
	full := have.String()
	unknown := (nft.Unknown{}).Text(nft.IPv4)
	if err := w.expect(!strings.Contains(full, unknown), "rules in the kernel", "only known ones", "one that is not ours"); err != nil {
		return nil, err
	}
	if w.config.FullTable {
		return []block{listing(full)}, nil
	}
	short := shorten(full, "table "+(nft.TableID{Family: nft.IPv4, Name: w.rulesetConfig().Table}).String())
	return []block{
		listing(short),
		textf("Shortened to the IPv4 table; the IPv6 one is its twin. nftproxy demo --full-table prints all %d lines.", strings.Count(full, "\n")),
	}, nil
}

// shorten keeps one table, and of long lists of elements the first few.
func shorten(tables, start string) string {
	const most = 4
	var b strings.Builder
	inTable, elements := false, 0
	for line := range strings.Lines(tables) {
		switch {
		case strings.HasPrefix(line, start+" "):
			inTable = true
		case !inTable:
			continue
		}
		element := strings.HasPrefix(line, "\t\t\t")
		if element {
			elements++
			if elements > most {
				continue
			}
		} else {
			if elements > most {
				fmt.Fprintf(&b, "\t\t\t# ... and %d more\n", elements-most)
			}
			elements = 0
		}
		b.WriteString(line)
		if line == "}\n" {
			break
		}
	}
	return b.String()
}

func showUpdates(_ context.Context, w *world, _ tellFunc) ([]block, error) {
	t := table{head: []string{"change, times in ms", "objects", "compile", "read", "plan", "apply", "in all"}, numbers: 1}
	number := func(d time.Duration) string { return strings.TrimSuffix(ms(d), " ms") }
	for _, u := range w.updates {
		t.rows = append(t.rows, []string{
			u.what, fmt.Sprint(u.Written), number(u.Compile), number(u.Read), number(u.Plan), number(u.Apply), number(u.total),
		})
		if err := w.expect(u.total >= u.Compile+u.Read+u.Plan+u.Apply, "time of "+u.what, "at least its parts", ms(u.total)); err != nil {
			return nil, err
		}
	}
	return []block{
		t,
		text("objects: what the batch touched, mostly map elements. In all: from the manifest's rename, or the start of the process, until its log says that the kernel has it."),
	}, nil
}
