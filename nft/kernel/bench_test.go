package kernel_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// The benchmarks have the size of the project's targets: 110,000 elements.
const benchServices, benchEndpoints = 10_000, 10

// BenchmarkApply loads everything into an empty namespace, once with sizes and once
// without.
func BenchmarkApply(b *testing.B) {
	sized := services(benchServices, benchEndpoints)
	for name, p := range map[string]*nft.Program{"sized": sized, "unlimited": unlimited(sized)} {
		b.Run(name, func(b *testing.B) {
			_, c := open(b)
			batch := load(p)
			b.ReportAllocs()
			for b.Loop() {
				must(b, c.Apply(batch))
				b.StopTimer()
				must(b, c.DeleteTables(tableName))
				b.StartTimer()
			}
		})
	}
}

// unlimited is the program with sets that have no MinSize and so no size.
func unlimited(p *nft.Program) *nft.Program {
	t := p.IPv4.Clone()
	for name, s := range p.IPv4.Sets.All() {
		declared := *s
		declared.MinSize = 0
		t.Sets = t.Sets.Set(name, &declared)
	}
	return &nft.Program{IPv4: t, IPv6: p.IPv6}
}

// BenchmarkRead reads everything back, at several sizes: by a dump of each set, and with large sets
// looked up by keys.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{benchServices / 2, benchServices, 3 * benchServices} {
		_, c := open(b)
		p := services(n, benchEndpoints)
		must(b, c.Apply(load(p)))
		for name, from := range map[string]int{"dump": 1 << 30, "by keys": 1} {
			b.Run(fmt.Sprintf("%d services/%s", n, name), func(b *testing.B) {
				c.LookUpFrom(from)
				b.ReportAllocs()
				before := spentCPU(b)
				for b.Loop() {
					_, err := c.Read(p)
					must(b, err)
				}
				b.ReportMetric((spentCPU(b)-before).Seconds()*1000/float64(b.N), "cpu-ms/op")
			})
		}
	}
}

// spentCPU is the CPU time of this process so far: on a busy machine it says more than the time of a clock.
func spentCPU(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	must(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkOneEndpoint replaces one endpoint of one service, with everything loaded. It
// measures with planning and without.
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

// sweeping benchmarks sweeps of a dynamic map with several numbers of entries. A tenth of
// them is stale, or none.
func sweeping(b *testing.B, stale bool) {
	const f = nft.IPv4
	for _, n := range []int{10_000, 100_000, 262_144} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, c := open(b)
			p := everything()
			must(b, c.Apply(load(p)))
			set, entries := p.Table(f).Set("affinity"), rememberedBy(f, 0, n)
			var again []kernel.Entry
			for i := 3; i < n; i += 10 {
				again = append(again, entries[i])
			}
			keep, want := unlessEndpoint(f), 0
			if stale {
				keep, want = unlessEndpoint(f, 3), len(again)
			}
			must(b, c.Remember(table(f), set, entries))
			b.ReportAllocs()
			for b.Loop() {
				left, swept, err := c.Sweep(b.Context(), table(f), set, keep)
				must(b, err)
				if left+swept < n || swept != want {
					b.Fatalf("%d left and %d swept of %d", left, swept, n)
				}
				if stale {
					b.StopTimer()
					must(b, c.Remember(table(f), set, again))
					b.StartTimer()
				}
			}
		})
	}
}

// BenchmarkSweep sweeps a map without stale entries: 7 ms for 10,000 entries, 0.5 s for
// 100,000 and 3.8 to 4.9 s for 262,144, on two cores with Linux 6.18. It takes up to twice
// as long beside a lot of other work.
func BenchmarkSweep(b *testing.B) { sweeping(b, false) }

// BenchmarkSweepStale deletes a tenth of a map's entries, as if one of a service's ten
// endpoints had gone: 16 ms (with a second dump), 0.7 s and 4.6 s. If the kernel resizes
// its hash meanwhile, a second dump is due, and the last takes 9 s.
func BenchmarkSweepStale(b *testing.B) { sweeping(b, true) }
