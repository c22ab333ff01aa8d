package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"nftproxy/bench/result"
)

// firstPrograms starts the proxy on an empty kernel, several times if that is quick. It
// leaves the proxy running.
func (s *subject) firstPrograms(ctx context.Context) error {
	var took, whole, cpu []float64
	parts := map[string][]float64{}
	began := time.Now()
	for n := range s.Samples.Starts {
		if n > 0 && time.Since(began) > s.Samples.Budget/3 {
			break
		}
		if n > 0 {
			if err := errors.Join(s.end(ctx), s.Clear(s.node)); err != nil {
				return fmt.Errorf("make the node empty again: %w", err)
			}
		}
		limit, note := s.failures.limit(s.Limit, s.Name, s.size)
		limited, cancel := context.WithTimeout(ctx, limit)
		start := time.Now()
		first, err := s.start(limited)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return s.noProgram(tooSlow{limit, note})
		}
		if err != nil {
			return err
		}
		used, err := s.meter.settledCPU(ctx)
		if err != nil {
			return err
		}
		took, whole, cpu = append(took, first.Took.Seconds()), append(whole, first.At.Sub(start).Seconds()),
			append(cpu, used.Seconds())
		for part, v := range partsOf(first.Line, time.Second) {
			parts[part] = append(parts[part], v)
		}
	}
	for _, a := range []struct {
		question string
		samples  []float64
		parts    map[string][]float64
	}{{result.FirstProgram, took, parts}, {result.StartToProgram, whole, nil}, {result.FirstProgramCPU, cpu, nil}} {
		s.answer(medianCell(s.cell(a.question, s.Name, "s"), a.samples, a.parts))
	}
	return nil
}

// noProgram answers that there was no program within the limit.
func (s *subject) noProgram(err tooSlow) error {
	for _, q := range []string{result.FirstProgram, result.StartToProgram} {
		c := s.over(q, s.Name, "s")
		c.Values[result.Value], c.Note = err.limit.Seconds(), err.note
		s.answer(c)
	}
	if err.limit == s.Limit {
		s.failures[s.Name] = append(s.failures[s.Name], s.size)
	}
	return err
}

// medianCell returns a cell with the median as its value, and the medians of the parts.
func medianCell(c result.Cell, samples []float64, parts map[string][]float64) result.Cell {
	q := result.Quantiles(samples)
	c.Values = map[string]float64{
		result.Value: q[result.P50], result.Min: q[result.Min], result.Max: q[result.Max], result.Samples: q[result.Samples],
	}
	for part, list := range parts {
		c.Values[part] = result.Median(list)
	}
	return c
}

// restart starts the proxy again while the kernel has the whole program.
func (s *subject) restart(ctx context.Context) error {
	if err := s.end(ctx); err != nil {
		return fmt.Errorf("stop it: %w", err)
	}
	if s.monitor != nil {
		if err := s.monitor.Close(); err != nil {
			return err
		}
		s.monitor = nil
	}
	limited, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	first, err := s.start(limited)
	if errors.Is(err, context.DeadlineExceeded) {
		s.answer(s.over(result.Restart, s.Name, "s"))
		return nil
	}
	if err != nil {
		return err
	}
	c := s.cell(result.Restart, s.Name, "s")
	c.Values = map[string]float64{result.Value: first.Took.Seconds()}
	for part, v := range partsOf(first.Line, time.Second) {
		c.Values[part] = v
	}
	s.answer(c)
	return nil
}
