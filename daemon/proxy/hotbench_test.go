package proxy_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// BenchmarkHotService gives one Service of 10,000 x 10 a number of endpoints every 25 ms that it did not have lately,
// and changes an endpoint of another one once a second. It reports the share of a core that
// the process takes, and how long the changes of the other one wait, in the first 10 s and
// in 20 s after two more minutes.
func BenchmarkHotService(b *testing.B) {
	ns := testnet.NamespaceForTest(b, "hot")
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	cpu := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	builder, mailbox := snapshots.NewBuilder(gen.PlainNode()), service.NewMailbox()
	for i := range 10_000 {
		builder.Set(gen.UniformService(i, 10))
	}
	c := proxy.DefaultConfig()
	c.CPU = cpu
	syncs := make(chan proxy.Sync, 10_000)
	loop := proxy.New(c, conn, ruleset.NewCompiler(rulesetConfig()).Compile, func(s proxy.Sync) { syncs <- s })
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error)
	go func() { done <- loop.Run(ctx, mailbox) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	}()
	put := func() { mailbox.Put(service.Update{Snapshot: builder.Snapshot(), Since: time.Now()}) }
	put()
	<-syncs
	n := 0
	during := func(d time.Duration) (share float64, p50, most time.Duration) {
		start, before := time.Now(), cpu()
		var waits []time.Duration
		for time.Since(start) < d {
			n++
			builder.Set(gen.UniformService(7, 1+n%500))
			if n%40 == 0 {
				builder.Set(gen.UniformService(8, 10+n/40%2))
			}
			put()
			time.Sleep(25 * time.Millisecond)
		}
		share = float64(cpu()-before) / float64(time.Since(start))
		for len(syncs) > 0 {
			s := <-syncs
			waits = append(waits, s.Latency())
		}
		slices.Sort(waits)
		return share, waits[len(waits)/2], waits[len(waits)-1]
	}
	for b.Loop() {
		share, p50, most := during(10 * time.Second)
		b.ReportMetric(100*share, "first-%core")
		b.ReportMetric(float64(p50.Milliseconds()), "first-p50-ms")
		b.ReportMetric(float64(most.Milliseconds()), "first-most-ms")
		during(2 * time.Minute)
		share, p50, most = during(20 * time.Second)
		b.ReportMetric(100*share, "later-%core")
		b.ReportMetric(float64(p50.Milliseconds()), "later-p50-ms")
		b.ReportMetric(float64(most.Milliseconds()), "later-most-ms")
	}
}
