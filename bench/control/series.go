package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
)

// series has the results of changes that were made one after the other.
type series struct {
	// seen is the time from the request to the kernel's notice, accepted the time from
	// the API server's answer to the notice, in ms. accepted is negative if the notice
	// came first.
	seen, accepted []float64
	// latency is the time from the event to the committed transaction inside the process,
	// in ms. parts has its stages.
	latency []float64
	parts   map[string][]float64
	// written is the number of changes that were written.
	written int
	// cpu is the CPU time of the process and its children for all changes.
	cpu time.Duration
	// givenUp is how long the last change was awaited in vain.
	givenUp time.Duration
}

// series makes changes until all are made, or the budget is used up, or the limit is
// reached.
func (s *subject) series(ctx context.Context, list []change, budget time.Duration) (out series, err error) {
	out.parts = map[string][]float64{}
	if err := s.listen(); err != nil {
		return out, err
	}
	limited, cancel := context.WithTimeout(ctx, s.Limit)
	defer cancel()
	if err := pause(ctx, s.rest); err != nil {
		return out, err
	}
	before, err := s.meter.settledCPU(limited)
	if err != nil {
		return out, err
	}
	began := time.Now()
	for k, change := range list {
		if k > 0 && time.Since(began) > budget || limited.Err() != nil {
			break
		}
		if err := s.change(limited, change, &out); err != nil {
			return out, err
		}
		if out.givenUp > 0 {
			break
		}
		if pause(limited, s.rest) != nil {
			break
		}
	}
	after, err := s.meter.settledCPU(limited)
	out.cpu = after - before
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// change makes one change and waits for it.
func (s *subject) change(ctx context.Context, c change, out *series) error {
	mark := s.process.Mark()
	noticed := c.seen.IsValid() && !s.Silent
	var arrived <-chan time.Time
	if noticed {
		arrived = s.monitor.Expect(c.seen)
	}
	start := time.Now()
	err := c.write(ctx)
	if ctx.Err() != nil { // the change may have been written or not
		s.monitor.Forget()
		out.givenUp = time.Since(start)
		return nil
	}
	if err != nil {
		return err
	}
	accepted := time.Now()
	out.written++
	if noticed {
		select {
		case at := <-arrived:
			out.seen, out.accepted = append(out.seen, ms(at.Sub(start))), append(out.accepted, ms(at.Sub(accepted)))
		case <-s.process.Exited():
			return fmt.Errorf("%w: %v", child.ErrEnded, s.process.Err())
		case <-ctx.Done():
			s.monitor.Forget()
			out.givenUp = time.Since(start)
			if n := s.monitor.Lost(); n > 0 {
				return fmt.Errorf("the kernel's notices did not fit into the buffer %d times", n)
			}
			return nil
		}
		if !s.Ours {
			return nil
		}
	}
	synced := s.batch
	if s.Silent {
		// A sync that runs already does not have the change.
		synced = func(l child.Line) bool { return s.batch(l) && proxies.SyncBegan(l).After(start) }
	}
	l, _, err := s.process.Await(ctx, mark, synced)
	if errors.Is(err, context.DeadlineExceeded) {
		out.givenUp = time.Since(start)
		return nil
	}
	if err != nil {
		return fmt.Errorf("wait for the log: %w", err)
	}
	if s.Silent && c.seen.IsValid() {
		out.seen, out.accepted = append(out.seen, ms(l.At.Sub(start))), append(out.accepted, ms(l.At.Sub(accepted)))
	}
	if s.Ours {
		out.latency = append(out.latency, ms(time.Duration(l.Latency)))
		for part, v := range partsOf(l, time.Millisecond) {
			out.parts[part] = append(out.parts[part], v)
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// answerSeries puts the cells of a series: the times from outside and, for nftproxy, the
// times inside the process.
func (s *subject) answerSeries(outside, inside string, out series) {
	s.answer(s.seen(outside, out))
	if s.Ours {
		c := s.cell(inside, s.Name, "ms")
		if c.Values = insideValues(out.latency, out.parts); c.Values == nil {
			c = s.over(inside, s.Name, "ms")
		}
		s.answer(c)
	}
}

func insideValues(latency []float64, parts map[string][]float64) map[string]float64 {
	values := result.Quantiles(latency)
	if values == nil {
		return nil
	}
	for part, list := range parts {
		if part != "read" {
			values[part] = result.Median(list)
		}
	}
	return values
}

func (s *subject) seen(question string, out series) result.Cell {
	if len(out.seen) == 0 {
		return s.over(question, s.Name, "ms")
	}
	c := s.cell(question, s.Name, "ms")
	c.Values = maps.Clone(result.Quantiles(out.seen))
	c.Values["after the answer"] = result.Median(out.accepted)
	var notes []string
	if s.Silent {
		notes = append(notes, "to the end of its sync, by its log: the kernel gives no notice")
	}
	if out.givenUp > 0 {
		notes = append(notes, fmt.Sprintf("one more was given up after %v", out.givenUp.Round(time.Second)))
	}
	c.Note = strings.Join(notes, "; ")
	return c
}

// changes is the most changes that are made.
func (s *subject) changes() int {
	if s.Ours {
		return s.Samples.Changes
	}
	return s.Samples.SlowChanges
}

func (s *subject) oneEndpoint(ctx context.Context) error {
	out, err := s.series(ctx, s.world.replacements(s.changes()), s.budget(s.Ours))
	if err != nil {
		return err
	}
	s.answerSeries(result.ChangeSeen, result.ChangeInside, out)
	cpu := s.cell(result.ChangeCPU, s.Name, "ms")
	cpu.Values = map[string]float64{result.Value: ms(out.cpu) / float64(out.written), result.Samples: float64(out.written)}
	if out.written == 0 {
		cpu.NotBegun(fmt.Errorf("the limit of %v was over before the first change", s.Limit))
	}
	s.answer(cpu)
	peak := s.cell(result.PeakMemory, s.Name, "MB")
	peak.Values = map[string]float64{result.Value: s.meter.peakMB()}
	s.answer(peak)
	return nil
}
