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

func benchConfig() ruleset.Config {
	return ruleset.Config{Table: ruleset.DefaultTable,
		Settings: service.Settings{ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}}
}

// BenchmarkFirst makes the first program of a process, and its batch.
func BenchmarkFirst(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1_000, 10}, {10_000, 10}, {44_000, 1}} {
		snapshot := gen.Uniform(size.services, size.endpoints)
		name := fmt.Sprintf("%dx%d", size.services, size.endpoints)
		b.Run("compile/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				ruleset.Compile(benchConfig(), snapshot)
			}
		})
		program := ruleset.Compile(benchConfig(), snapshot)
		b.Run("plan/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				nft.State{}.Plan(program, time.Time{})
			}
		})
	}
}

// BenchmarkRestart does the work of a restart, except for reading the tables.
func BenchmarkRestart(b *testing.B) {
	program := ruleset.Compile(benchConfig(), gen.Uniform(10_000, 10))
	m := program.Model()
	b.Run("adopt+plan/10000x10", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if batch, _ := nft.Adopt(m, program).Plan(program, time.Time{}); !batch.Empty() {
				b.Fatal("something to write")
			}
		}
	})
}

// BenchmarkOneEndpoint replaces one endpoint of one service. It measures from the
// service's new value to the batch for the kernel.
func BenchmarkOneEndpoint(b *testing.B) {
	for _, n := range []int{1_000, 30_000} {
		b.Run(fmt.Sprintf("%dx10", n), func(b *testing.B) {
			builder := snapshots.NewBuilder(gen.PlainNode())
			for i := range n {
				builder.Set(gen.UniformService(i, 10))
			}
			c := ruleset.NewCompiler(benchConfig())
			_, state := nft.State{}.Plan(c.Compile(builder.Snapshot()), time.Time{})
			versions := [2]*service.Service{
				withEndpoint(gen.UniformService(77, 10), 4, "10.200.0.1:8080"), gen.UniformService(77, 10),
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				builder.Set(versions[i%2])
				var batch nft.Batch
				batch, state = state.Plan(c.Compile(builder.Snapshot()), time.Time{})
				if batch.Size() != 2 {
					b.Fatalf("batch of %d:\n%s", batch.Size(), batch)
				}
			}
		})
	}
}

// BenchmarkAffinity measures the cost of session affinity beside the program, with
// affinity for every service: it finds out whether a change calls for a sweep, and which
// clients the sweep may keep.
func BenchmarkAffinity(b *testing.B) {
	builder := snapshots.NewBuilder(gen.PlainNode())
	builder.SetMaxAffinityPorts(1 << 20)
	set := func(s *service.Service) {
		s.AffinityTimeout = 3 * time.Hour
		builder.Set(s)
	}
	for i := range 10_000 {
		set(gen.UniformService(i, 10))
	}
	c := ruleset.NewCompiler(benchConfig())
	old := c.Compile(builder.Snapshot())
	set(withEndpoint(gen.UniformService(77, 10), 4, "10.200.0.1:8080"))
	fresh := c.Compile(builder.Snapshot())
	b.Run("shrunk/10000x10", func(b *testing.B) {
		for b.Loop() {
			if len(ruleset.AffinityShrunk(old, fresh)) == 0 {
				b.Fatal("nothing went")
			}
		}
	})
	b.Run("maps/10000x10", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, m := range ruleset.AffinityMaps(fresh) {
				m.Keep(nft.Value(make([]byte, 64)), "")
			}
		}
	})
}

// BenchmarkReadBack measures the look-up that a start makes once, beside the first sync.
func BenchmarkReadBack(b *testing.B) {
	s := gen.Uniform(10_000, 10)
	m := ruleset.Compile(benchConfig(), s).Model()
	b.ReportAllocs()
	for b.Loop() {
		if got := ruleset.ReadBack(m, ruleset.DefaultTable, s.Node); got.Services.Len() != 10_000 {
			b.Fatalf("%d services", got.Services.Len())
		}
	}
}
