// Package control promises what the control plane costs: how long proxies take
// until Services that an API server has are in the kernel, at several sizes, and
// what it costs beside time. Each proxy sees the same objects of the same API
// server, one after the other, in network namespaces of their own.
//
// What it measures it hands over cell by cell; it neither prints nor judges.
// Whether a change is in the kernel says the kernel itself, to a listener that
// shares nothing with the proxy.
package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
)

// Config says what is measured.
type Config struct {
	proxies.Setup
	Sizes   []Size
	Samples Samples
}

// Samples is how much is measured of what.
type Samples struct {
	// Starts is how often the first program is loaded.
	Starts int
	// Changes is the number of one-endpoint changes, Others that of each other
	// kind of change.
	Changes, Others int
	// SlowChanges and SlowOthers are the same for proxies that take their time.
	SlowChanges, SlowOthers int
	// Churn is how long the changes at a constant rate go on.
	Churn time.Duration
	// SlowChurn is the same for proxies that take their time, and ShortChurn at
	// the sizes where it may be shorter. Without, they go through neither those
	// changes nor the rolling replacement.
	SlowChurn, ShortChurn time.Duration
	// Drain is how long proxies that take their time have afterwards for what
	// they have not done yet.
	Drain time.Duration
	// Budget ends a series of changes, and of starts after a third of it; one is
	// made whatever it takes.
	Budget time.Duration
}

// Full is what a whole run measures.
func Full() Samples {
	return Samples{
		Starts: 3, Changes: 200, Others: 100, SlowChanges: 20, SlowOthers: 10,
		Churn: time.Minute, SlowChurn: time.Minute, ShortChurn: 20 * time.Second, Drain: 30 * time.Second, Budget: 30 * time.Second,
	}
}

// Quick is what a run of a minute or two at the smallest size measures.
func Quick() Samples {
	return Samples{Starts: 1, Changes: 50, Others: 20, SlowChanges: 3, SlowOthers: 2, Churn: 10 * time.Second, Budget: 10 * time.Second}
}

// LeftOut says what a quick run does without.
func LeftOut() []string {
	var rest string
	for _, s := range Sizes() {
		if s.Name != result.Small {
			rest += ", " + s.Name
		}
	}
	return []string{
		"control plane: the sizes " + rest[2:],
		"control plane: the rolling replacement and the changes at constant rates with kube-proxy; nftproxy goes through 10 s of each instead of a minute",
		"control plane: most samples; a p99 of few samples is their maximum",
	}
}

// Cells is how many cells Run puts.
func (c Config) Cells() int {
	n := 0
	for _, s := range c.Sizes {
		n += len(nftQuestions()) + len(bareQuestions()) + len(proxyQuestions(true))
		if !s.OursOnly {
			n += 2 * len(proxyQuestions(false))
		}
	}
	return n
}

// Run measures all of it. What cannot be measured is a cell that says why; an
// error is one of the whole run.
func Run(ctx context.Context, c Config, sink result.Sink) error {
	list, err := c.All(ctx, sink)
	if err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	var backends []backend
	for _, p := range list {
		backends = append(backends, newBackend(p))
	}
	for _, s := range c.Sizes {
		if err := c.size(ctx, s, backends, sink); err != nil {
			return fmt.Errorf("control plane, %s: %w", s.Name, err)
		}
	}
	return nil
}

// run is the measuring at one size.
type run struct {
	Config
	result.Sink
	size  Size
	world *world
}

func (c Config) size(ctx context.Context, s Size, backends []backend, sink result.Sink) (err error) {
	sink.Doing(s.Name + ": API server and objects")
	w, err := newWorld(ctx, s, c.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	r := &run{Config: c, Sink: sink, size: s, world: w}
	if err := r.limits(ctx); err != nil {
		return err
	}
	for _, b := range backends {
		if s.OursOnly && !b.Ours {
			continue
		}
		r.backend(ctx, b)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) doing(who, what string) { r.Doing(r.size.Name + ", " + who + ": " + what) }

// cell is the frame of a measurement.
func (r *run) cell(question, backend, unit string) result.Cell {
	return r.size.cell(question, backend, unit)
}

// churnTime is how long changes at a constant rate go on for a proxy. At the sizes
// that targets do not name, slow ones show within less what they can.
func (r *run) churnTime(ours bool) time.Duration {
	switch {
	case ours:
		return r.Samples.Churn
	case r.size.Name == result.Small || r.size.Name == result.Usual:
		return r.Samples.SlowChurn
	}
	return r.Samples.ShortChurn
}

// over is a cell that was stopped at the limit.
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
