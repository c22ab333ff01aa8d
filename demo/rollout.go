package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nftproxy/test/lib/child"
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
			podsScaledTo, podsAtFirst, ms(w.updates[len(w.updates)-1].total())),
		chart{groups: []group{{fmt.Sprintf("%s, %d connections", y.name, asked), bars}}},
	}, nil
}

// rollout replaces pods while clients connect.
type rollout struct {
	w       *world
	traffic *traffic
	// open are connections that must survive the rollout.
	open []*session
	// draining are replaced pods that have open connections.
	draining []*backend
}

// connectionsEach is the least number of connections during each stage of the rollout.
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
		if err := r.openAnother(ctx, to); err != nil {
			return nil, err
		}
	}
	r.traffic = startTraffic(ctx, w.client.NS, targets...)
	defer r.traffic.stop()
	if err := r.traffic.awaitMore(ctx, connectionsEach); err != nil {
		return nil, err
	}
	old := w.ready
	for i, b := range old {
		tell("%d of %d: %s", i+1, len(old), b.name())
		if err := r.replace(ctx, b); err != nil {
			return nil, err
		}
		if r.traffic.failing() {
			break
		}
	}
	return r.conclude(ctx, old)
}

// openAnother opens a connection to a pod that has none yet.
func (r *rollout) openAnother(ctx context.Context, to netip.AddrPort) error {
	const tries = 200
	for range tries {
		s, err := openSession(ctx, r.w.client.NS, to)
		if err != nil {
			return fmt.Errorf("open a connection to %v: %w", to, err)
		}
		if !r.used(s.server) {
			r.open = append(r.open, s)
			return nil
		}
		if err := s.close(); err != nil {
			return fmt.Errorf("close a connection to %v: %w", to, err)
		}
	}
	return &mismatch{fmt.Sprintf("%d connections to %v", tries, to), "one that goes to another pod than " +
		r.open[0].server, "none"}
}

// replace acts as a Deployment does for one pod. It adds a new pod and marks the old one
// as terminating. It removes the old pod once that pod's connections have ended.
func (r *rollout) replace(ctx context.Context, old *backend) error {
	w := r.w
	fresh, err := w.addBackend()
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(slices.Clone(w.ready), func(b *backend) bool { return b == old })
	w.ready = append(others, fresh)
	listed := append(endpointsOf(w.ready), old.endpoint(true))
	if err := w.change(ctx, old.name()+" -> "+fresh.name(), listed); err != nil {
		return err
	}
	r.traffic.leave(old.name())
	if err := r.traffic.awaitMore(ctx, connectionsEach); err != nil {
		return err
	}
	if err := r.echo(); err != nil {
		return err
	}
	if r.used(old.name()) {
		r.draining = append(r.draining, old)
		return nil
	}
	return w.net.RemovePod(old.name())
}

// used says whether an open connection leads to the pod.
func (r *rollout) used(server string) bool {
	return slices.ContainsFunc(r.open, func(s *session) bool { return s.server == server })
}

// echo sends a line through each open connection and expects it back.
func (r *rollout) echo() error {
	for _, s := range r.open {
		err := s.echo()
		if err := r.w.expect(err == nil, "open connection to "+s.server, "that it lives on", fmt.Sprint(err)); err != nil {
			return err
		}
	}
	return nil
}

// conclude ends the traffic and reports its result.
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
		textf("%d connections opened before (to %s) lived through all of it: %d echoes", len(servers),
			strings.Join(servers, " and "), echoes),
	}, nil
}

// forgetTerminating removes the pods that have gone from the manifest. This need not
// change the program in the kernel.
func (w *world) forgetTerminating(ctx context.Context) error {
	if err := writeManifest(w.config.manifests, w.dir, endpointsFile, state{nodeAddrs: w.net.NodeAddrs,
		endpoints: endpointsOf(w.ready)}); err != nil {
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
	w.updates = append(w.updates, update{"restart", report, start})
	if err := expectEqual(&w.checks, "objects that the restarted nftproxy wrote, with nothing changed", 0,
		report.Written); err != nil {
		return nil, err
	}
	return []block{
		textf("stopped: the rules stay, %d of %d new connections were answered", asked, asked),
		textf("started again: read the tables back in %s and wrote %d objects", ms(time.Duration(report.Read)),
			report.Written),
	}, nil
}

func showUpdates(_ context.Context, w *world, _ tellFunc) ([]block, error) {
	t := table{head: []string{"change, times in ms", "objects", "compile", "read", "plan", "apply", "in all"}, numbers: 1}
	number := func(d child.Duration) string { return strings.TrimSuffix(ms(time.Duration(d)), " ms") }
	for _, u := range w.updates {
		t.rows = append(t.rows, []string{
			u.what, fmt.Sprint(u.Written), number(u.Compile), number(u.Read), number(u.Plan), number(u.Apply),
			number(child.Duration(u.total())),
		})
		if err := w.expect(u.total() >= u.parts(), "time of "+u.what, "at least its parts", ms(u.total())); err != nil {
			return nil, err
		}
	}
	return []block{
		t,
		text("objects: what the batch touched, mostly map elements. In all: from the manifest's rename, or the start of " +
			"the process, until its log says that the kernel has it."),
	}, nil
}
