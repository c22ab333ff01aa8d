package ruleset_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// BenchmarkScale commits changes of one service's number of endpoints, beside many services. It
// also takes the service away and adds it again. least-first-us is the change when no service had the new
// number in the last ten seconds: then its chain is new.
func BenchmarkScale(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10_000, 10}, {44_000, 1}} {
		builder := snapshots.NewBuilder(gen.PlainNode())
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

// BenchmarkAllElements changes every element of the largest Service: each of its endpoints gets another port.
func BenchmarkAllElements(b *testing.B) {
	const ports, endpoints = 256, 1022
	builder := snapshots.NewBuilder(gen.PlainNode())
	builder.SetMaxElements(service.DefaultMaxElements)
	large := func(port uint16) *service.Service {
		s := gen.UniformService(1, 0)
		p := s.Ports[0]
		s.Ports = nil
		for i := range ports {
			p.Name, p.Port = fmt.Sprint("p", i), uint16(80+i)
			list := make([]service.Endpoint, endpoints)
			for n := range list {
				addr := netip.AddrFrom4([4]byte{10, 240, byte(n >> 8), byte(n)})
				list[n] = service.Endpoint{Addr: netip.AddrPortFrom(addr, port+uint16(2*i)), Ready: true, Serving: true}
			}
			p.Endpoints = service.MergeEndpoints(list)
			s.Ports = append(s.Ports, p)
		}
		return s
	}
	var snapshots [2]service.Snapshot
	for i := range snapshots {
		builder.Set(large(uint16(8000 + i)))
		snapshots[i] = builder.Snapshot()
	}
	compiler := ruleset.NewCompiler(benchConfig())
	_, state := nft.State{}.Plan(compiler.Compile(snapshots[0]), time.Time{})
	var compile, plan time.Duration
	for i := 1; b.Loop(); i++ {
		start := time.Now()
		program := compiler.Compile(snapshots[i%2])
		compiled := time.Now()
		var batch nft.Batch
		batch, state = state.Plan(program, time.Time{})
		if n := batch.Size(); n < 2*ports*endpoints {
			b.Fatalf("%d elements", n)
		}
		compile, plan = compile+compiled.Sub(start), plan+time.Since(compiled)
	}
	b.ReportMetric(float64(compile.Milliseconds())/float64(b.N), "compile-ms")
	b.ReportMetric(float64(plan.Milliseconds())/float64(b.N), "plan-ms")
}
