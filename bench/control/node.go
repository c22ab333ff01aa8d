package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
)

// nodeSteps are what a node pays: its start, its memory, and the CPU time of changes that
// come at several rates.
func (s *subject) nodeSteps() []step {
	steps := []step{
		{"first program", []string{result.FirstProgram, result.StartToProgram, result.FirstProgramCPU}, false, s.firstPrograms},
		{"at rest", []string{result.NodeMemory, result.NodeCPU(0)}, false, s.atRest},
	}
	for _, rate := range result.NodeRates() {
		question := result.NodeCPU(rate)
		steps = append(steps, step{question, []string{question}, true, func(ctx context.Context) error { return s.nodeCPU(ctx, rate, s.drain(s.Ours)) }})
	}
	return steps
}

// afterStart is how long the work of a start may go on behind the first program: what a
// proxy looks at once, and the memory that it gives back.
const afterStart = 5 * time.Second

// atRest leaves the proxy alone after its start.
func (s *subject) atRest(ctx context.Context) error {
	if err := pause(ctx, min(afterStart, s.Samples.Node)); err != nil {
		return err
	}
	peak := s.meter.peakMB() // that of the start
	before, err := s.meter.settledCPU(ctx)
	if err != nil {
		return err
	}
	if err := pause(ctx, s.Samples.Node); err != nil {
		return err
	}
	after, err := s.meter.settledCPU(ctx)
	if err != nil {
		return err
	}
	rest := s.meter.residentMB()
	if rest == 0 {
		return errors.New("the process has no resident memory: it has ended")
	}
	memory := s.cell(result.NodeMemory, s.Name, "MB")
	memory.Values = map[string]float64{result.Value: rest, "peak of the start": peak}
	s.answer(memory)
	s.answer(s.nodeCell(0, after-before))
	return nil
}

// nodeCell is the cell of CPU time at a rate of changes.
func (s *subject) nodeCell(rate int, cpu time.Duration) result.Cell {
	c := s.cell(result.NodeCPU(rate), s.Name, "s")
	c.Values = map[string]float64{result.Value: cpu.Seconds()}
	if s.Samples.Node != result.NodeTime {
		c.Note = fmt.Sprintf("%v instead of %v", s.Samples.Node, result.NodeTime)
	}
	return c
}

// nodeCPU measures the CPU time of changes at a rate, and waits for outstanding ones with patience.
func (s *subject) nodeCPU(ctx context.Context, rate int, patience time.Duration) error {
	f, err := s.flow(ctx, float64(rate), s.Samples.Node, patience, s.world.update)
	if err != nil {
		return err
	}
	c := s.nodeCell(rate, f.cpu)
	c.Over = f.missing > 0
	for name, v := range f.values() {
		switch name {
		case result.P50, result.P99:
			c.Values["lag in ms, "+name] = v
		case result.WritesASecond, "batches a second":
			c.Values[name] = v
		}
	}
	s.answer(c)
	return nil
}

// startFloor measures what a start cannot do without: fetching both lists, and the
// kernel's commit of the program.
func (r *run) startFloor(ctx context.Context, p *programs, a *answers) error {
	whole, err := encode(load(p.whole))
	if err != nil {
		return err
	}
	var fetches []float64
	var size int64
	for range bareStarts {
		start := time.Now()
		if size, err = r.world.fetch(ctx); err != nil {
			return err
		}
		fetches = append(fetches, time.Since(start).Seconds())
	}
	node, commits, err := loadsBare(whole)
	if err != nil {
		return err
	}
	fetch, commit := result.Median(fetches), result.Median(commits)
	c := r.cell(result.NodeFloor, result.BareNetlink, "s")
	c.Values = map[string]float64{
		result.Value: fetch + commit, "fetch": fetch, "commit": commit,
		"MB fetched": float64(size) / 1e6, "MB committed": float64(len(whole[0])) / 1e6,
	}
	a.answer(c)
	return node.close()
}

// changeFloor measures what a change cannot do without: client-go's watch, and the kernel's
// commit of the elements that differ.
func (r *run) changeFloor(ctx context.Context, _ *programs, a *answers) (err error) {
	s := &subject{run: r, backend: backend{Proxy: proxies.Floor(r.Floor)}, answers: a}
	if s.node, err = proxies.NewNode(ctx, r.world.plane); err != nil {
		return err
	}
	defer s.close()
	limited, cancel := context.WithTimeout(ctx, r.Limit)
	defer cancel()
	if _, err := s.start(limited); err != nil {
		return err
	}
	for _, rate := range result.NodeRates() {
		r.doing(s.Name, result.NodeCPU(rate))
		if err := pause(ctx, min(afterStart, s.Samples.Node)); err != nil {
			return err
		}
		if err := s.nodeCPU(ctx, rate, r.Limit); err != nil {
			return err
		}
	}
	return nil
}

// fetch gets both lists at once, as protobuf, and leaves them undecoded. It returns their
// size in bytes.
func (w *world) fetch(ctx context.Context) (int64, error) {
	group, ctx := errgroup.WithContext(ctx)
	var sizes [2]int64
	for i, list := range []struct {
		client   rest.Interface
		resource string
	}{{w.client.CoreV1().RESTClient(), "services"}, {w.client.DiscoveryV1().RESTClient(), "endpointslices"}} {
		group.Go(func() error {
			// Version 0 is what the server's cache has, as for a proxy's list.
			options := &metav1.ListOptions{ResourceVersion: "0"}
			body, err := list.client.Get().Namespace(metav1.NamespaceDefault).Resource(list.resource).
				VersionedParams(options, metav1.ParameterCodec).DoRaw(ctx)
			if err != nil {
				return fmt.Errorf("fetch %s: %w", list.resource, err)
			}
			sizes[i] = int64(len(body))
			return nil
		})
	}
	err := group.Wait()
	return sizes[0] + sizes[1], err
}
