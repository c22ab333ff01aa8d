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
	"nftproxy/test/lib/netfilter"
)

// measure asks all questions.
func (r *run) measure(ctx context.Context) error {
	nft, err := netfilter.FindNFT()
	if err != nil {
		return err
	}
	// The collector's work, and its signals, stay out of what is measured: it has
	// its time between rounds.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for _, t := range r.Effort.targets() {
		r.setups(ctx, nft, t)
	}
	return ctx.Err()
}

// begin gets all sites ready for a target; those that cannot are out.
func (r *run) begin(nft netfilter.NFT, t target) *series {
	s := newSeries()
	for _, at := range r.sites {
		err := at.failed
		if err == nil {
			err = at.aim(nft, t)
		}
		if err == nil {
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
func (r *run) setups(ctx context.Context, nft netfilter.NFT, t target) {
	question := t.question()
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

// answer puts the cells of a question, at each size. Who has no size has the same
// values at all.
func (r *run) answer(ctx context.Context, question, unit string, s *series) {
	if ctx.Err() != nil {
		return
	}
	for _, services := range r.Sizes {
		present := r.at(services)
		for _, at := range present {
			c := result.Cell{Question: question, Backend: at.backend, Size: result.Count(services), Services: services,
				Unit: unit}
			c.Note = noteOn(at, question)
			switch err := s.failed[at]; {
			case err != nil:
				c.Fail(err)
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
	case (at.backend == result.KubeProxyIPTables || at.backend == result.KubeProxyLegacy) && at.services > 1 &&
		strings.HasPrefix(question, "connection"):
		return "it writes services in random order, and a packet passes those before its own: where the measured one is, " +
			"is chance"
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
