package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/controlplane"
)

// Flows says how to measure the time that UDP flows stay with endpoints that have gone, in a rolling update. The time
// begins when the kernel has the rules without an endpoint. It ends when the kernel deletes the last conntrack entry
// that led to that endpoint.
//
// The flows are datagrams of many clients, which go on sending all the time. All times come from the kernel's notices
// of rules and of entries that end.
type Flows struct {
	proxies.Setup
	// Sizes are numbers of flows.
	Sizes []int
	// Endpoints is the number of replaced endpoints. One is replaced in every Period.
	Endpoints int
	Period    time.Duration
}

// FullFlows is the update of a whole run.
func FullFlows(setup proxies.Setup) Flows {
	return Flows{Setup: setup, Sizes: []int{10_000, 200_000}, Endpoints: maxReplaced, Period: 100 * time.Millisecond}
}

// maxReplaced and maxFlows are the most for which there are addresses and ports.
const (
	maxReplaced = 100
	maxFlows    = portsOfClient * clientCount
)

// Validate returns an error for sizes that cannot be measured.
func (c Flows) Validate() error {
	for _, n := range c.Sizes {
		if n < 1 || n > maxFlows {
			return fmt.Errorf("%d flows: want 1 to %d", n, maxFlows)
		}
	}
	if c.Endpoints < 1 || c.Endpoints > maxReplaced {
		return fmt.Errorf("%d endpoints: want 1 to %d", c.Endpoints, maxReplaced)
	}
	return nil
}

func flowQuestions() []string {
	return []string{result.StaleFlows, result.StaleFlowsSeen, result.StaleFlowsCPU}
}

// backends lists the proxies that write nftables. For these the kernel's notices show the
// end of each sync.
func (c Flows) backends() []string {
	return slices.DeleteFunc([]string{result.NFTProxy, result.KubeProxyNFTables}, func(name string) bool {
		return !c.Wants(name)
	})
}

// Cells is the number of cells that Run puts.
func (c Flows) Cells() int { return len(c.Sizes) * len(c.backends()) * len(flowQuestions()) }

// Run measures all sizes. A measurement that fails is a cell that says why. An error
// concerns the whole run.
func (c Flows) Run(ctx context.Context, sink result.Sink) (err error) {
	if err := c.Validate(); err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	list, err := c.All(ctx, sink)
	if err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	sink.Doing("flows: API server")
	plane, err := proxies.StartPlane(ctx, c.Log)
	if err != nil {
		return fmt.Errorf("flows: %w", err)
	}
	defer func() { err = errors.Join(err, plane.Stop()) }()
	for _, size := range c.Sizes {
		for _, p := range list {
			if !slices.Contains(c.backends(), p.Name) {
				continue
			}
			sink.Doing(fmt.Sprintf("flows: %s, %s", sizeName(size), p.Name))
			c.put(sink, size, p, c.measure(ctx, plane, size, p))
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	return nil
}

func sizeName(flows int) string { return result.Count(flows) + " flows" }

// flowFigures are the results of one update.
type flowFigures struct {
	// fromSync and fromWrite are times in ms, one for each endpoint that had flows.
	fromSync, fromWrite []float64
	// cpu is the process's CPU time, in s.
	cpu float64
	err error
}

func (c Flows) put(sink result.Sink, size int, p proxies.Proxy, f flowFigures) {
	for _, cell := range []result.Cell{
		{Question: result.StaleFlows, Unit: "ms", Values: result.Quantiles(f.fromSync)},
		{Question: result.StaleFlowsSeen, Unit: "ms", Values: result.Quantiles(f.fromWrite)},
		{Question: result.StaleFlowsCPU, Unit: "s", Values: map[string]float64{result.Value: f.cpu}},
	} {
		cell.Backend, cell.Size, cell.Services, cell.Endpoints = p.Name, sizeName(size), 1, c.Endpoints
		if f.err != nil {
			cell.Fail(f.err)
		}
		sink.Put(cell)
	}
}

// measure takes one proxy through one update, on a node of its own.
func (c Flows) measure(ctx context.Context, plane *controlplane.Plane, size int, p proxies.Proxy) (f flowFigures) {
	if p.Missing != nil {
		return flowFigures{err: p.Missing}
	}
	u, err := c.newUpdate(ctx, plane, size)
	if err != nil {
		return flowFigures{err: err}
	}
	defer func() { f.err = errors.Join(f.err, u.close()) }()
	process, err := p.Start(u.node)
	if err != nil {
		return flowFigures{err: err}
	}
	limited, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	if _, err := p.First(limited, process); err != nil {
		return flowFigures{err: errors.Join(fmt.Errorf("%w\n%s", err, process.Tail(20)), process.Kill())}
	}
	f = u.run(limited, process.PID())
	f.err = errors.Join(f.err, p.Stop(context.WithoutCancel(ctx), process))
	return f
}
