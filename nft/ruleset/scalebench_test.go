package ruleset_test

import (
	"fmt"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// BenchmarkScale commits changes of one service's number of endpoints, beside many services. It
// also takes the service away and adds it again. least-first-us is the change when no service had the new
// number in the last ten seconds: then its chain is new.
func BenchmarkScale(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10_000, 10}, {44_000, 1}} {
		builder := service.NewBuilder(gen.PlainNode())
		for i := range size.services {
			builder.Set(gen.UniformService(i, size.endpoints))
		}
		scaled := gen.UniformService(77, 1).Name
		program := func(endpoints int) *nft.Program {
			if endpoints < 0 {
				builder.Delete(scaled)
			} else {
				builder.Set(gen.UniformService(77, endpoints))
			}
			return ruleset.Compile(benchConfig(), builder.Snapshot())
		}
		n := size.endpoints
		for _, step := range []struct {
			name string
			to   int
		}{{"one more", n + 1}, {"twice", 2 * n}, {"none", 0}, {"gone", -1}} {
			pair := [2]*nft.Program{program(n), program(step.to)}
			b.Run(fmt.Sprintf("%dx%d/%s", size.services, n, step.name), func(b *testing.B) { scale(b, pair) })
		}
	}
}

// scale goes from the first program to the second and back. It lets idle chains go before
// every second round.
func scale(b *testing.B, pair [2]*nft.Program) {
	_, c := open(b)
	now := time.Time{}
	first, state := nft.State{}.Plan(pair[0], now)
	must(b, c.Apply(first))
	apply := func(p *nft.Program) time.Duration {
		var batch nft.Batch
		batch, state = state.Plan(p, now)
		start := time.Now()
		for _, t := range batch.Transactions() {
			must(b, c.Apply(t))
		}
		return time.Since(start)
	}
	there, fresh, back := time.Hour, time.Hour, time.Hour
	for i := 0; b.Loop(); i++ {
		if took := apply(pair[1]); i%2 == 0 {
			fresh = min(fresh, took)
		} else {
			there = min(there, took)
		}
		back = min(back, apply(pair[0]))
		if i%2 == 1 {
			now = now.Add(nft.IdleLife)
			apply(pair[0])
		}
	}
	for name, least := range map[string]time.Duration{"least-us": there, "least-first-us": fresh, "least-back-us": back} {
		b.ReportMetric(float64(least.Nanoseconds())/1000, name)
	}
}
