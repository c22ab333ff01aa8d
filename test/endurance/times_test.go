package endurance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

const endpoints = 10

// BenchmarkRestart measures a start on tables that hold everything already: from the snapshot to the
// end of the first sync.
func BenchmarkRestart(b *testing.B) {
	for _, n := range []int{1000, 10_000, 30_000} {
		b.Run(fmt.Sprintf("%dx%d", n, endpoints), func(b *testing.B) {
			ns := testnet.NamespaceForTest(b, "restart")
			snapshot := gen.Uniform(n, endpoints)
			l := startLoop(b, ns)
			l.publish(snapshot)
			l.next(b)
			l.close(b)
			var total proxy.Sync
			before := spentCPU(b, unix.RUSAGE_SELF)
			for b.Loop() {
				l := startLoop(b, ns)
				l.publish(snapshot)
				s := l.next(b)
				if s.Written != 0 {
					b.Fatalf("the restart wrote %d objects", s.Written)
				}
				total.Compile, total.Read, total.Plan = total.Compile+s.Compile, total.Read+s.Read, total.Plan+s.Plan
				l.close(b)
			}
			for unit, d := range map[string]time.Duration{
				"compile-ms/op": total.Compile, "read-ms/op": total.Read, "plan-ms/op": total.Plan,
				"cpu-ms/op": spentCPU(b, unix.RUSAGE_SELF) - before,
			} {
				b.ReportMetric(d.Seconds()*1000/float64(b.N), unit)
			}
		})
	}
}

// spentCPU is the CPU time so far of this process (RUSAGE_SELF) or thread (RUSAGE_THREAD).
func spentCPU(t testing.TB, who int) time.Duration {
	t.Helper()
	var u unix.Rusage
	must(t, unix.Getrusage(who, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkRepair measures the time from another program's change to the end of the sync that
// repairs it. No kernel protects these tables.
func BenchmarkRepair(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		for what, change := range map[string]func(p *nft.Program) nft.Op{
			"element": func(p *nft.Program) nft.Op { return deleteOneEndpoint(p.IPv4) },
			"rules":   func(p *nft.Program) nft.Op { return nft.FlushTable{Table: p.IPv4.ID()} },
		} {
			b.Run(fmt.Sprintf("%dx%d/%s", n, endpoints, what), func(b *testing.B) {
				ns := testnet.NamespaceForTest(b, "repair")
				makeUnowned(b, ns)
				foreign, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
				must(b, err)
				defer func() { must(b, foreign.Close()) }()
				snapshot := gen.Uniform(n, endpoints)
				l := startLoop(b, ns)
				l.publish(snapshot)
				first := l.next(b)
				l.close(b)
				var took []time.Duration
				for b.Loop() {
					// Each change comes after a rest: the loop's budget for repairs is full.
					l := startLoop(b, ns)
					l.publish(snapshot)
					l.next(b)
					time.Sleep(time.Duration(rand.IntN(int(time.Second)))) // at any moment between two checks
					must(b, foreign.Apply(nft.Batch{Ops: []nft.Op{change(first.Program)}}))
					start := time.Now()
					for s := l.next(b); ; s = l.next(b) {
						if s.Written > 0 {
							took = append(took, s.End().Sub(start))
							break
						}
					}
					l.close(b)
				}
				slices.Sort(took)
				b.ReportMetric(took[len(took)/2].Seconds()*1000, "p50-ms")
				b.ReportMetric(took[len(took)*99/100].Seconds()*1000, "p99-ms")
			})
		}
	}
}

// deleteOneEndpoint deletes the last element of some pool.
func deleteOneEndpoint(t *nft.Table) nft.Op {
	for _, part := range t.Parts.All() {
		for _, p := range part.Pools {
			key := p.Prefix.WithIndex(p.Targets.Len() - 1)
			return nft.DeleteElements{Table: t.ID(), Set: t.Set(p.Map),
				Elements: []nft.OwnedElement{{Element: nft.Element{Set: p.Map, Key: key}}}}
		}
	}
	return nil
}

// BenchmarkBusyRuleset measures the CPU time that another program's 100 transactions a second cost,
// in parts of a core: without the loop, and with it, after a minute in which it may spend more.
func BenchmarkBusyRuleset(b *testing.B) {
	const burst, measured = 60 * time.Second, 60 * time.Second
	for _, n := range []int{0, 100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%dx%d", n, endpoints), func(b *testing.B) {
			ns := testnet.NamespaceForTest(b, "busy")
			ctx, cancel := context.WithCancel(b.Context())
			reads := 0
			read := make(chan struct{})
			if n > 0 {
				makeUnowned(b, ns)
				l := startLoop(b, ns)
				defer l.close(b)
				l.publish(gen.Uniform(n, endpoints))
				l.next(b)
				go func() {
					defer close(read)
					for {
						select {
						case <-l.syncs:
							reads++
						case <-ctx.Done():
							return
						}
					}
				}()
			} else {
				close(read)
			}
			foreign := startBusy(b, ns, ctx)
			time.Sleep(burst)
			before, theirs := spentCPU(b, unix.RUSAGE_SELF), foreign.spent()
			time.Sleep(measured)
			cost := spentCPU(b, unix.RUSAGE_SELF) - before - (foreign.spent() - theirs)
			cancel()
			<-read
			b.ReportMetric(cost.Seconds()/measured.Seconds()*100, "%core")
			b.ReportMetric(float64(reads), "reads")
		})
	}
}

// busy is another program that changes the ruleset 100 times a second.
type busy struct{ ask chan chan time.Duration }

// spent is the CPU time that the other program has spent.
func (f *busy) spent() time.Duration {
	answer := make(chan time.Duration)
	f.ask <- answer
	return <-answer
}

func startBusy(t testing.TB, ns *testnet.Namespace, ctx context.Context) *busy {
	t.Helper()
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	must(t, err)
	f := &busy{make(chan chan time.Duration)}
	go func() {
		runtime.LockOSThread() // so that its CPU time can be told from the loop's
		defer func() { _ = conn.Close() }()
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		id := nft.TableID{Family: nft.IPv4, Name: "foreign"}
		for add := true; ; {
			select {
			case <-ctx.Done():
				return
			case answer := <-f.ask:
				answer <- spentCPU(t, unix.RUSAGE_THREAD)
			case <-tick.C:
				op := nft.Op(nft.DeleteTable{Table: id})
				if add {
					op = nft.AddTable{Table: id}
				}
				add = !add
				if err := conn.Apply(nft.Batch{Ops: []nft.Op{op}}); err != nil {
					panic(err) // the benchmark waits for answers
				}
			}
		}
	}()
	return f
}
