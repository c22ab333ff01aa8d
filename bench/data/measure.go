package data

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"nftproxy/bench/result"
	"nftproxy/test/lib/nftcmd"
)

// measure asks all questions.
func (r *run) measure(ctx context.Context) error {
	nft, err := nftcmd.Find()
	if err != nil {
		return err
	}
	// The collector's work, and its signals, stay out of what is measured: it has
	// its time between rounds.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, t := range r.Effort.targets() {
		r.setups(ctx, nft, t)
		if !t.first {
			r.rates(ctx, nft, t)
		}
	}
	for _, ask := range []func(context.Context, nftcmd.Command){r.streams, r.refusals} {
		if ctx.Err() == nil {
			ask(ctx, nft)
		}
	}
	return ctx.Err()
}

// begin gets all sites ready for a target; those that cannot are out.
func (r *run) begin(nft nftcmd.Command, t target) *series {
	s := newSeries()
	for _, at := range r.sites {
		err := at.failed
		if err == nil {
			err = at.aim(nft, t)
		}
		if err == nil && !t.refused {
			err = at.check(t)
		}
		s.failed[at] = err
	}
	return s
}

// rounds has each site that is not out take its turn, in each round.
func (r *run) rounds(ctx context.Context, s *series, count, least int, budget time.Duration, turn func(*site) error) {
	start := time.Now()
	for round := range count {
		if ctx.Err() != nil || round >= least && time.Since(start) > budget {
			return
		}
		runtime.GC()
		for _, at := range rotated(r.sites, round) {
			if s.failed[at] == nil {
				s.failed[at] = turn(at)
			}
		}
	}
}

// setups asks how long connections to a target take.
func (r *run) setups(ctx context.Context, nft nftcmd.Command, t target) {
	question := t.question(result.ConnectionSetup, true)
	r.Doing("data plane: " + question)
	s := r.begin(nft, t)
	e := r.Effort
	samples := make([]time.Duration, 0, e.Burst)
	r.rounds(ctx, s, e.Rounds, e.LeastRounds, e.Budget, func(at *site) error {
		// In each turn connections are new to a table that is empty.
		if err := at.topology.Node.FlushConntrack(); err != nil {
			return err
		}
		took, err := burst(at.from(t.way), at.to(t), samples, e.LeastBurst, e.Turn)
		if err != nil {
			return err
		}
		s.add(at, len(took), latency(took))
		return at.arrived(len(took))
	})
	r.answer(ctx, question, "us", s)
}

// arrived tells whether the server got so many connections.
func (s *site) arrived(count int) error {
	n, err := s.server.drain()
	if err == nil && n < count {
		err = fmt.Errorf("of %d connections the server saw %d", count, n)
	}
	return err
}

// rates asks how many connections to a target there can be.
func (r *run) rates(ctx context.Context, nft nftcmd.Command, t target) {
	question := t.question(result.ConnectionRate, false)
	r.Doing("data plane: " + question)
	s := r.begin(nft, t)
	e := r.Effort
	r.rounds(ctx, s, e.RateRounds, e.RateRounds, e.Budget, func(at *site) error {
		if err := at.topology.Node.FlushConntrack(); err != nil {
			return err
		}
		perSecond, err := rate(at.from(t.way), at.to(t), e.Slice)
		if err != nil {
			return err
		}
		s.add(at, 1, map[string]float64{result.Value: perSecond})
		return at.arrived(1)
	})
	r.answer(ctx, question, "1/s", s)
}

// streams asks what an established connection carries.
func (r *run) streams(ctx context.Context, nft nftcmd.Command) {
	r.Doing("data plane: " + result.Throughput)
	t := target{way: plainWay()}
	throughput, cpu := r.begin(nft, t), newSeries()
	open := map[*site]*stream{}
	for _, at := range r.sites {
		if throughput.failed[at] == nil {
			open[at], throughput.failed[at] = newStream(at.from(t.way), at.to(t), at.server)
		}
	}
	e := r.Effort
	r.rounds(ctx, throughput, e.StreamRounds, e.StreamRounds, e.Budget, func(at *site) error {
		f, err := open[at].send(at.from(t.way), e.Slice)
		if err != nil {
			return err
		}
		throughput.add(at, 1, map[string]float64{result.Value: f.gigabits()})
		cpu.add(at, 1, map[string]float64{result.Value: f.cpuPerGigabyte()})
		return nil
	})
	for at, s := range open {
		if s == nil {
			continue
		}
		if err := s.close(); err != nil && throughput.failed[at] == nil {
			throughput.failed[at] = err
		}
	}
	cpu.failed = throughput.failed
	r.answer(ctx, result.Throughput, "Gbit/s", throughput)
	r.answer(ctx, result.ThroughputCPU, "s/GB", cpu)
}

// slow is from when on a refusal is asked for less often.
const slow = 100 * time.Millisecond

// refusals asks how soon a connection to a service without endpoints is refused.
func (r *run) refusals(ctx context.Context, nft nftcmd.Command) {
	r.Doing("data plane: " + result.Refusal)
	t := target{way: refusedWay()}
	s := r.begin(nft, t)
	took := map[*site][]float64{}
	calm := map[*site]bool{}
	r.rounds(ctx, s, r.Effort.Refusals, r.Effort.Refusals, r.Effort.Budget, func(at *site) error {
		if len(took[at]) >= r.Effort.SlowRefusals && !calm[at] && len(took[at]) > 0 {
			return nil
		}
		d, err := refusal(at.from(t.way), at.to(t))
		if err != nil {
			return err
		}
		took[at] = append(took[at], float64(d)/float64(time.Millisecond))
		calm[at] = d < slow
		return nil
	})
	r.put(ctx, result.Refusal, "ms", s, func(at *site) map[string]float64 { return result.Quantiles(took[at]) })
}

// answer puts the cells of a question.
func (r *run) answer(ctx context.Context, question, unit string, s *series) {
	r.put(ctx, question, unit, s, nil)
}

// put puts the cells of a question, at each size. Who has no size has the same
// values at all.
func (r *run) put(ctx context.Context, question, unit string, s *series, values func(*site) map[string]float64) {
	if ctx.Err() != nil {
		return
	}
	for _, services := range r.Sizes {
		present := r.at(services)
		for _, at := range present {
			c := result.Cell{Question: question, Backend: at.backend, Size: result.Count(services), Services: services, Unit: unit}
			c.Note = noteOn(at, question)
			switch err := s.failed[at]; {
			case err != nil:
				c.Fail(err)
			case values != nil:
				c.Values = values(at)
			case at.backend == result.NFTProxy:
				c.Values = s.summary(at, present)
			case at.backend == result.OneStaticRule:
				c.Values = s.summary(at, r.second())
			default:
				c.Values = s.summary(at, nil)
			}
			r.Put(c)
		}
	}
}

// noteOn is what a reader has to know of a site's figures.
func noteOn(at *site, question string) string {
	switch {
	case (at.backend == result.KubeProxyIPTables || at.backend == result.KubeProxyLegacy) && at.services > 1 && strings.HasPrefix(question, "connection"):
		return "it writes services in random order, and a packet passes those before its own: where the measured one is, is chance"
	case at.services == 0:
		return "measured once: it knows no number of services"
	}
	return ""
}

// at lists the sites that are compared at a size, in the order of backends.
func (r *run) at(services int) []*site {
	var list []*site
	for _, backend := range r.backends() {
		for _, s := range r.sites {
			if s.backend == backend && (s.services == services || s.services == 0) {
				list = append(list, s)
			}
		}
	}
	return list
}

// second is the second node with the static rule, if there is one.
func (r *run) second() []*site {
	return slices.DeleteFunc(slices.Clone(r.sites), func(s *site) bool { return s.backend != again })
}
