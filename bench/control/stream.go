package control

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"

	"nftproxy/bench/result"
	"nftproxy/test/lib/child"
)

// replacement is one endpoint that gets another address, as one of a stream.
type replacement struct {
	at spot
	to netip.Addr
	// sent is when the replacement was written.
	sent time.Time
	// seen yields the time when the kernel had it; nil if it was not written.
	seen <-chan time.Time
}

// replacementsAt makes a replacement for each place, with an address of its own.
func (w *world) replacementsAt(spots []spot) []*replacement {
	var list []*replacement
	for _, at := range spots {
		list = append(list, &replacement{at: at, to: w.nextIP()})
	}
	return list
}

// scattered lists the places of count endpoints. Neighbours in the list are far from each
// other, and all endpoints have their turn before one comes again.
func (w *world) scattered(count int) []spot {
	const prime = 104_729
	total := w.size.total()
	var list []spot
	for k := range count {
		n := (k % total) * prime % total
		service := sort.SearchInts(w.first, n+1) - 1
		j := n - w.first[service]
		list = append(list, spot{service, j / maxSlice, j % maxSlice})
	}
	return list
}

// update writes a slice.
type update func(context.Context, *discoveryv1.EndpointSlice) error

// stream writes replacements at a constant rate, or with rate 0 as fast as the server
// takes them. Replacements in one slice are written in their order.
func (s *subject) stream(ctx context.Context, list []*replacement, rate float64, write update) error {
	group, ctx := errgroup.WithContext(ctx)
	var queues []chan *replacement
	for range writers {
		queue := make(chan *replacement, len(list))
		queues = append(queues, queue)
		group.Go(func() error {
			for r := range queue {
				if err := s.send(ctx, r, write); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		defer func() {
			for _, q := range queues {
				close(q)
			}
		}()
		start := time.Now()
		for k, r := range list {
			if rate > 0 {
				due := start.Add(time.Duration(float64(k) / rate * float64(time.Second)))
				if err := pause(ctx, time.Until(due)); err != nil {
					return err
				}
			}
			queues[writerOf(r.at)] <- r
		}
		return nil
	})
	return group.Wait()
}

// writerOf returns the writer of a slice: the same one each time.
func writerOf(at spot) int {
	h := fnv.New32a()
	fmt.Fprint(h, at.service, at.slice)
	return int(h.Sum32() % writers)
}

func (s *subject) send(ctx context.Context, r *replacement, write update) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	wanted := s.world.replace(r.at, r.to)
	seen := s.monitor.Expect(r.to)
	r.sent = time.Now()
	if err := write(ctx, wanted); err != nil {
		return err
	}
	r.seen = seen
	return nil
}

// outcome is the result of a stream.
type outcome struct {
	// lags are times in ms from the request to the kernel's notice. A replacement that
	// has not arrived has the time until it was given up.
	lags []float64
	// last is when the last replacement arrived. missing is how many did not arrive.
	last    time.Time
	missing int
}

// collect waits for the kernel's notices until the context ends. If an endpoint was
// replaced again before the kernel had it, it arrives together with its successor.
func (s *subject) collect(ctx context.Context, list []*replacement) outcome {
	var out outcome
	successor := map[spot]time.Time{}
	for _, r := range slices.Backward(list) {
		if r.seen == nil {
			continue
		}
		next, replaced := successor[r.at]
		at := s.arrival(ctx, r, replaced)
		if at.IsZero() || replaced && next.Before(at) {
			at = next
		}
		if at.IsZero() {
			out.missing++
			out.lags = append(out.lags, ms(time.Since(r.sent)))
			continue
		}
		successor[r.at] = at
		if at.After(out.last) {
			out.last = at
		}
		out.lags = append(out.lags, ms(at.Sub(r.sent)))
	}
	return out
}

// arrival returns when the kernel announced a replacement; zero if it has not. It does
// not wait for a replacement that was itself replaced.
func (s *subject) arrival(ctx context.Context, r *replacement, replaced bool) time.Time {
	if replaced {
		select {
		case at := <-r.seen:
			return at
		default:
			return time.Time{}
		}
	}
	select {
	case at := <-r.seen:
		return at
	case <-s.process.Exited():
	case <-ctx.Done():
	}
	select { // it may have come at the same time
	case at := <-r.seen:
		return at
	default:
		return time.Time{}
	}
}

// batches counts the writes to the kernel since a mark in the log.
func (s *subject) batches(mark int) int {
	if s.batch == nil {
		return 0
	}
	lines, _ := s.process.Logged(mark)
	n := 0
	for _, l := range lines {
		if s.batch(l) {
			n++
		}
	}
	return n
}

func (s *subject) churn100(ctx context.Context) error {
	return s.churn(ctx, 100, s.world.update, result.Churn100, result.Churn100CPU)
}

// churn1000 writes past the API server, whose own work would use up the machine.
func (s *subject) churn1000(ctx context.Context) error {
	return s.churn(ctx, 1000, s.world.updatePast, result.Churn1000, result.Churn1000CPU)
}

// churn replaces endpoints at a constant rate.
func (s *subject) churn(ctx context.Context, rate float64, write update, lagQuestion, cpuQuestion string) error {
	going, patience := s.churnTime(s.Ours), s.drain(s.Ours)
	f, err := s.flow(ctx, rate, going, patience, write)
	if err != nil {
		return err
	}
	lag := s.cell(lagQuestion, s.Name, "ms")
	lag.Values, lag.Over = f.values(), f.missing > 0
	share := s.cell(cpuQuestion, s.Name, "cores")
	// The divisor is the time in which changes were made: later work was caused in that
	// time.
	share.Values = map[string]float64{result.Value: f.cpu.Seconds() / f.wrote.Seconds()}
	var notes []string
	if going < s.Samples.Churn {
		notes = append(notes, fmt.Sprintf("%v of changes", going))
	}
	if f.missing > 0 {
		notes = append(notes, fmt.Sprintf("%d of %d had not arrived %v after the last one was written", f.missing,
			len(f.lags), patience))
	}
	lag.Note = strings.Join(notes, "; ")
	share.Note = lag.Note
	s.answer(lag)
	s.answer(share)
	return nil
}

// flow is what became of a stream at a constant rate.
type flow struct {
	outcome
	// wrote is how long the writing took, cpu the CPU time of the proxy until the last
	// change had arrived, or was given up, and batches its writes to the kernel.
	wrote, cpu time.Duration
	batches    int
}

// flow replaces endpoints at a constant rate for as long as going, and then waits for
// outstanding ones with patience.
func (s *subject) flow(ctx context.Context, rate float64, going, patience time.Duration,
	write update) (f flow, err error) {
	if err := s.listen(); err != nil {
		return f, err
	}
	if err := pause(ctx, s.rest); err != nil {
		return f, err
	}
	list := s.world.replacementsAt(s.world.scattered(int(rate * going.Seconds())))
	mark := s.process.Mark()
	before, err := s.meter.settledCPU(ctx)
	if err != nil {
		return f, err
	}
	start := time.Now()
	// If the rate cannot be kept, the writes have somewhat longer.
	limited, cancel := context.WithTimeout(ctx, going+min(going, patience))
	err = s.stream(limited, list, rate, write)
	cancel()
	if err != nil && (ctx.Err() != nil || limited.Err() == nil) {
		return f, err
	}
	f.wrote = time.Since(start)
	limited, cancel = context.WithTimeout(ctx, patience)
	f.outcome = s.collect(limited, list)
	cancel()
	s.monitor.Forget()
	if s.process.Ended() {
		return f, fmt.Errorf("%w: %v", child.ErrEnded, s.process.Err())
	}
	after, err := s.meter.settledCPU(ctx)
	f.cpu, f.batches = after-before, s.batches(mark)
	return f, err
}

// values are the values of the cell about lag.
func (f flow) values() map[string]float64 {
	values := result.Quantiles(f.lags)
	if values == nil {
		values = map[string]float64{}
	}
	values[result.WritesASecond] = float64(len(f.lags)) / f.wrote.Seconds()
	if f.batches > 0 {
		values["batches a second"] = float64(f.batches) / f.wrote.Seconds()
	}
	return values
}
