package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/lib/testnet"
)

// A rolling update of a hundred endpoints with 10,000 flows has a change every 100 ms. The
// Cleaner removes the flows to each endpoint after its change, and no others. The log tells
// how many passes there were and what they cost; TestCleanerKeepsUpWithRollingUpdate says by
// a fake clock that no change waits for a rest.
func TestRollingUpdate(t *testing.T) {
	const endpoints, flowsOfEach, every = 100, 100, 100 * time.Millisecond
	if testing.Short() {
		t.Skip("takes 10 s")
	}
	at := func(generation, i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(generation), 0, byte(i)}), 53)
	}
	dst := netip.MustParseAddrPort("10.96.0.53:53")
	// flow returns client i's flow to an endpoint.
	flow := func(i int, to netip.AddrPort) Flow {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 200, byte(i >> 8), byte(i)}), 40000)
		return Flow{Protocol: service.UDP, Original: Tuple{src, dst}, Reply: Tuple{to, src}}
	}
	builder := snapshots.NewBuilder(service.Node{})
	snapshot := func(replaced int) service.Snapshot {
		text := "node n1\nservice default/other created 2026-01-01T00:00:00Z\n  external-ip 203.0.113.5\n  port dns udp " +
			"53\n    endpoint 10.2.0.0:53 n1 ready serving\n" +
			"service kube-system/dns created 2026-01-01T00:00:00Z\n  cluster-ip 10.96.0.53\n  external-ip 203.0.113.6\n  port " +
			"dns udp 53\n"
		for i := range endpoints {
			text += fmt.Sprintf("    endpoint %v n1 ready serving\n", at(1+min(1, max(0, replaced-i)), i))
		}
		return become(builder, parse(t, text))
	}
	ns := testnet.NamespaceForTest(t, "node")
	fill(t, ns, 0, endpoints*flowsOfEach, func(i int) Flow { return flow(i, at(1, i/flowsOfEach)) })
	const others = 1000
	fill(t, ns, endpoints*flowsOfEach, endpoints*flowsOfEach+others, func(i int) Flow { // to an endpoint that stays
		f := flow(i, at(2, 0))
		f.Original.Dst = netip.MustParseAddrPort("203.0.113.5:53")
		return f
	})

	type pass struct {
		run  Run
		told int // the number of changes that the pass may know of
	}
	told, passes := make(chan int, 1), make(chan pass, 1000)
	told <- 0
	c := NewCleaner(open(t, ns), NewIndex(Options{}), CleanerConfig{Observe: func(r Run) {
		n := <-told
		told <- n
		passes <- pass{r, n}
	}})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- c.Run(ctx)
		close(passes)
	}()
	t.Cleanup(stop)
	c.SyncDone(snapshot(0), true)
	for ticks, i := time.Tick(every), 1; i <= endpoints; i++ {
		<-ticks
		<-told
		c.SyncDone(snapshot(i), false)
		told <- i
	}
	removed, kinds, looks, cpu := 0, map[string]int{}, 0, time.Duration(0)
	for removed < endpoints*flowsOfEach {
		select {
		case p := <-passes:
			if p.run.Err != nil {
				t.Fatal(p.run.Err)
			}
			removed += p.run.Removed[EndpointGone]
			if most := p.told * flowsOfEach; removed > most || len(p.run.Removed) > 1 {
				t.Fatalf("%d flows removed, of %d to endpoints that have gone: %v", removed, most, p.run.Removed)
			}
			kind := "whole"
			if p.run.Walks > 0 {
				kind = fmt.Sprintf("%d filtered walks", p.run.Walks)
			}
			kinds[kind]++
			cpu += p.run.CPU
			if p.run.Lag > 0 {
				looks++
			}
		case <-time.After(patience):
			t.Fatalf("%d flows of %d were removed", removed, endpoints*flowsOfEach)
		}
	}
	stop()
	for range passes { // Run may be about to report a pass.
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if left := flows(t, open(t, ns), Filter{}); len(left) != others {
		t.Errorf("%d flows are left, want the %d that lead to endpoints that stay", len(left), others)
	}
	t.Logf("first looks %d, by kind %v, %v of CPU time", looks, kinds, cpu)
}
