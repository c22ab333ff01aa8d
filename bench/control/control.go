// Package control promises the cost of the control plane at several sizes: how long
// proxies take until an API server's Services are in the kernel, and what CPU time and
// memory that takes. Each proxy sees the same objects of the same API server, one proxy
// after the other, each in network namespaces of its own. Flows asks how long the
// effect of a change on UDP flows takes.
//
// The package returns its measurements cell by cell; it neither prints nor compares them.
// The kernel itself says when a change is in force, to a listener that shares nothing
// with the proxy.
package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
)

// Config says what to measure.
type Config struct {
	proxies.Setup
	Sizes   []Size
	Samples Samples
	// Node asks what a node pays, in place of what a change costs.
	Node bool
	// Rounds is how often each build of nftproxy has its turn where an earlier one is compared.
	Rounds int
}

// Samples says how much to measure of each question.
type Samples struct {
	// Starts is how often the first program is loaded.
	Starts int
	// Changes is the number of one-endpoint changes, SlowChanges that for slow proxies.
	Changes, SlowChanges int
	// Churn is how long changes at a constant rate go on.
	Churn time.Duration
	// SlowChurn is the same for slow proxies. ShortChurn takes its place at the sizes
	// where no target needs the comparison. With 0, slow proxies do not go through these
	// changes.
	SlowChurn, ShortChurn time.Duration
	// Drain is how long slow proxies may work on outstanding changes afterwards. At the
	// sizes of ShortChurn it is half as long.
	Drain time.Duration
	// Budget ends a series of one-endpoint changes. Slow proxies have half of it at the sizes of ShortChurn. After a third
	// of it no more starts are made. At least one change and one start are made, whatever they take.
	Budget time.Duration
	// Node is how long a proxy is at rest, and how long changes come at each rate, where
	// the question is what a node pays.
	Node time.Duration
}

// Full is what a whole run measures.
func Full() Samples {
	return Samples{
		Starts: 3, Changes: 200, SlowChanges: 20,
		Churn: time.Minute, SlowChurn: time.Minute, ShortChurn: 20 * time.Second, Drain: 30 * time.Second,
		Budget: 30 * time.Second,
		Node:   result.NodeTime,
	}
}

// Quick is a run of a minute or two at the smallest size.
func Quick() Samples {
	return Samples{Starts: 1, Changes: 50, SlowChanges: 3, Churn: 10 * time.Second, Budget: 10 * time.Second,
		Node: 10 * time.Second}
}

// LeftOut says what a quick run leaves out.
func LeftOut() []string {
	return []string{
		"control plane: the size " + result.Usual,
		"control plane: the changes at constant rates with kube-proxy; nftproxy goes through 10 s of each " +
			"instead of a minute",
		"control plane: most samples; a p99 of few samples is their maximum",
	}
}

// Cells is the number of cells that Run puts.
func (c Config) Cells() int {
	n := 0
	for range c.Sizes {
		if !c.Node {
			n++ // the bare kernel's
		}
		if c.Earlier != "" {
			n += 2 * c.Rounds * len(c.proxyQuestions(result.NFTProxy))
			continue
		}
		for _, name := range append([]string{result.NFTProxy}, result.KubeProxies()...) {
			if c.Wants(name) {
				n += len(c.proxyQuestions(name))
			}
		}
	}
	return n
}

// Run measures all sizes. A measurement that fails is a cell that says why. An error
// concerns the whole run.
func Run(ctx context.Context, c Config, sink result.Sink) error {
	list, err := c.All(ctx, sink)
	if err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	var backends []backend
	for _, p := range list {
		backends = append(backends, newBackend(p))
	}
	failed := failures{}
	if c.Earlier != "" {
		turns := &turns{Sink: sink}
		sink, backends = turns, turns.order(backends, c.Rounds)
	}
	for _, s := range c.Sizes {
		r := &run{Config: c, Sink: sink, size: s, failures: failed}
		if err := r.all(ctx, backends); err != nil {
			return fmt.Errorf("control plane, %s: %w", s.Name, err)
		}
	}
	return nil
}

// run is the measuring at one size.
type run struct {
	Config
	result.Sink
	size     Size
	world    *world
	failures failures // at the sizes before
}

func (r *run) all(ctx context.Context, backends []backend) (err error) {
	r.Doing(r.size.Name + ": API server and objects")
	if r.world, err = newWorld(ctx, r.size, r.Log); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.world.stop()) }()
	if !r.Node {
		if err := r.bare(ctx); err != nil {
			return err
		}
	}
	for _, b := range backends {
		r.backend(ctx, b)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) doing(who, what string) { r.Doing(r.size.Name + ", " + who + ": " + what) }

// cell returns a cell for a measurement, without values.
func (r *run) cell(question, backend, unit string) result.Cell {
	return r.size.cell(question, backend, unit)
}

// brief says whether a proxy gets less time. Other proxies than nftproxy do, at the sizes
// where no target compares the two.
func (r *run) brief(ours bool) bool {
	return !ours && r.size.Name != result.Small && r.size.Name != result.Usual
}

// churnTime is how long changes at a constant rate go on for a proxy.
func (r *run) churnTime(ours bool) time.Duration {
	switch {
	case ours:
		return r.Samples.Churn
	case r.brief(ours):
		return r.Samples.ShortChurn
	}
	return r.Samples.SlowChurn
}

// budget is how long a series of a proxy's changes may take.
func (r *run) budget(ours bool) time.Duration {
	if r.brief(ours) {
		return r.Samples.Budget / 2
	}
	return r.Samples.Budget
}

// drain is how long a proxy may work on outstanding changes after the last one.
func (r *run) drain(ours bool) time.Duration {
	switch {
	case ours:
		return r.Limit
	case r.brief(ours):
		return min(r.Limit, r.Samples.Drain/2)
	}
	return min(r.Limit, r.Samples.Drain)
}

// over returns a cell for a measurement that was stopped at the limit.
func (r *run) over(question, backend, unit string) result.Cell {
	c := r.cell(question, backend, unit)
	c.Over = true
	limit := r.Limit.Seconds()
	if unit == "ms" {
		limit *= 1000
	}
	c.Values = map[string]float64{result.Value: limit}
	return c
}
