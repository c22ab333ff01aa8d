package kernel_test

import (
	"fmt"
	"testing"

	"nftproxy/nft"
)

// The benchmarks work on as many services with as many endpoints as the
// project's targets name: 110,000 elements.
const benchServices, benchEndpoints = 10_000, 10

// BenchmarkApply loads everything into an empty namespace.
func BenchmarkApply(b *testing.B) {
	_, c := open(b)
	batch := load(services(benchServices, benchEndpoints))
	b.ReportAllocs()
	for b.Loop() {
		must(b, c.Apply(batch))
		b.StopTimer()
		must(b, c.DeleteTables(tableName))
		b.StartTimer()
	}
}

// BenchmarkRead reads everything back.
func BenchmarkRead(b *testing.B) {
	_, c := open(b)
	p := services(benchServices, benchEndpoints)
	must(b, c.Apply(load(p)))
	b.ReportAllocs()
	for b.Loop() {
		_, err := c.Read(p)
		must(b, err)
	}
}

// BenchmarkOneEndpoint replaces one endpoint of one service by another, with
// everything loaded: planning included, and without.
func BenchmarkOneEndpoint(b *testing.B) {
	chain := fmt.Sprintf("endpoints-%d", benchEndpoints)
	p := services(benchServices, benchEndpoints)
	programs := [2]*nft.Program{p, withPart(p, "ns/svc-7", service(chain, 7, benchEndpoints, 1))}
	_, loaded := nft.State{}.Plan(p, timeZero)

	b.Run("plan+apply", func(b *testing.B) {
		_, c := open(b)
		must(b, c.Apply(load(p)))
		state := loaded
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			i++
			batch, next := state.Plan(programs[i%2], timeZero)
			must(b, c.Apply(batch))
			state = next
		}
	})
	b.Run("apply", func(b *testing.B) {
		_, c := open(b)
		must(b, c.Apply(load(p)))
		there, next := loaded.Plan(programs[1], timeZero)
		back, _ := next.Plan(programs[0], timeZero)
		batches := [2]nft.Batch{there, back}
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			must(b, c.Apply(batches[i%2]))
			i++
		}
	})
}

// BenchmarkSweep looks at a dynamic map in which nothing is stale.
func BenchmarkSweep(b *testing.B) {
	for _, n := range []int{10_000, 100_000, 262_144} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, c := open(b)
			p := everything()
			must(b, c.Apply(load(p)))
			set := p.IPv4.Set("affinity")
			must(b, c.Remember(table(nft.IPv4), set, rememberedBy(nft.IPv4, 0, n)))
			b.ReportAllocs()
			for b.Loop() {
				judged := 0
				_, _, err := c.Sweep(b.Context(), table(nft.IPv4), set, func(_, _ nft.Value) bool {
					judged++
					return true
				})
				must(b, err)
				if judged < n {
					b.Fatalf("judged %d of %d", judged, n)
				}
			}
		})
	}
}
