package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nftproxy/bench/result"
)

// nodeSteps are what a node pays: its start, its memory, and the CPU time of changes that
// come at several rates.
func (s *subject) nodeSteps() []step {
	steps := []step{
		{"first program", []string{result.FirstProgram, result.StartToProgram, result.FirstProgramCPU}, false,
			s.firstPrograms},
		{"at rest", []string{result.NodeMemory, result.NodeCPU(0)}, false, s.atRest},
	}
	for _, rate := range result.NodeRates() {
		question := result.NodeCPU(rate)
		steps = append(steps, step{question, []string{question}, true, func(ctx context.Context) error {
			return s.nodeCPU(ctx, rate, s.drain(s.Ours))
		}})
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
