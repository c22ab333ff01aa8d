package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/controlplane"
)

// Tenants says how to measure what the worst object of one tenant costs the others. For each option of a Service, that
// is the largest object that the limits of docs/tenants.md admit, which changes again and again.
type Tenants struct {
	proxies.Setup
	Size Size
	// Options names those to measure; empty for all.
	Options []string
	// Part is how long the others change endpoints, Rate a second: once beside the object at rest, and once while it
	// changes each Period. Then it changes for as long alone.
	Part, Period time.Duration
	Rate         float64
}

// Run measures, and writes a row of a table for each option. Times are from the request at the API server to the
// kernel's notice. The kernel writes a notice for each element, also of the tenant's, so times are rather too long: the
// table has the longest sync with notices beside the longest one without.
func (t Tenants) Run(ctx context.Context, out io.Writer) (err error) {
	list, err := t.All(ctx, quiet{})
	objects, unknown := controlplane.WorstObjects(t.Options...)
	if err := errors.Join(err, unknown); err != nil {
		return err
	}
	r := &run{Config: Config{Setup: t.Setup}, size: t.Size}
	if r.world, err = newWorld(ctx, t.Size, t.Log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.world.stop()) }()
	if _, err := r.world.writes.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: controlplane.TenantNamespace}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	fmt.Fprintf(out, "| Option | Others beside it at rest: median, p99, max | while it changes | its changes | longest "+
		"sync with notices | without | CPU | load |\n|%s\n", "---|---|---|---|---|---|---|---|")
	for _, w := range objects {
		s := &subject{run: r, backend: newBackend(list[0])}
		if err := t.measure(ctx, s, w, out); err != nil {
			return fmt.Errorf("%s: %w", w.Option, err)
		}
	}
	return nil
}

// quiet is a sink for those who take no cells.
type quiet struct{ result.Sink }

func (quiet) Doing(string) {}

// measure has a proxy of its own for the option.
func (t Tenants) measure(ctx context.Context, s *subject, w controlplane.Worst, out io.Writer) (err error) {
	object, err := s.world.plane.Cluster.NewTenant(ctx, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, object.Remove(context.WithoutCancel(ctx))) }()
	if s.node, err = proxies.NewNode(ctx, s.world.plane); err != nil {
		return err
	}
	defer s.close()
	if _, err := s.start(ctx); err != nil {
		return err
	}
	alone, err := s.flow(ctx, t.Rate, t.Part, t.Limit, s.world.update)
	if err != nil {
		return err
	}
	mark := s.process.Mark()
	changing, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- object.Change(changing, t.Period) }()
	beside, err := s.flow(ctx, t.Rate, t.Part, t.Limit, s.world.update)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	if n := s.monitor.Lost(); n > 0 {
		return fmt.Errorf("the kernel's notices did not fit into the buffer %d times", n)
	}
	version, noticed := object.Version, s.longestSync(mark)
	if err := s.monitor.Close(); err != nil {
		return err
	}
	s.monitor = nil
	mark = s.process.Mark()
	changing, stop = context.WithTimeout(ctx, t.Part)
	defer stop()
	if err := object.Change(changing, t.Period); err != nil {
		return err
	}
	facts, err := result.Machine()
	fmt.Fprintf(out, "| %s | %s | %s | %d in %v | %.0f ms | %.0f ms | %.2f cores | %s |\n", w.Option,
		quantiles(alone), quantiles(beside), version, beside.wrote.Round(time.Second), noticed, s.longestSync(mark),
		beside.cpu.Seconds()/beside.wrote.Seconds(), facts.Load)
	return err
}

// quantiles are those of a flow in ms, with what has not arrived.
func quantiles(f flow) string {
	q := result.Quantiles(f.lags)
	text := fmt.Sprintf("%.1f, %.1f, %.1f ms", q[result.P50], q[result.P99], q[result.Max])
	if f.missing > 0 {
		text += " (" + strconv.Itoa(f.missing) + " have not arrived)"
	}
	return text
}

// longestSync is the longest turn of the loop since a mark in the log, in ms.
func (s *subject) longestSync(mark int) (longest float64) {
	lines, _ := s.process.Logged(mark)
	for _, l := range lines {
		if l.Synced() {
			longest = max(longest, ms(time.Duration(l.Compile+l.Read+l.Plan+l.Apply)))
		}
	}
	return longest
}
