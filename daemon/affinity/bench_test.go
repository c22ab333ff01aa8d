package affinity_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/daemon/affinity"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/testnet"
)

// BenchmarkStaleWindow measures how long a client is stale. A transaction removes one
// of ten endpoints, which has a tenth of the clients; the time from its end to the end
// of the sweep counts. There are 10,000 clients, or as many as there is room for.
func BenchmarkStaleWindow(b *testing.B) {
	for _, clients := range []int{10_000, nft.DynamicLimit} {
		b.Run(fmt.Sprint(clients), func(b *testing.B) { staleWindow(b, clients) })
	}
}

func staleWindow(b *testing.B, clients int) {
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	ns := testnet.NamespaceForTest(b, "window")
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	must(err)
	defer conn.Close()
	all := benchProgram(10)
	batch, state := nft.State{}.Plan(all, time.Now())
	must(conn.Apply(batch))
	set := all.IPv4.Set("affinity-default/web/tcp/80")
	remember := func(from, step int) {
		var entries []nft.OwnedElement
		for i := from; i < clients; i += step {
			client := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
			key := nft.AppendAddr(nil, client)
			data := nft.AppendPort(nft.AppendAddr(nil, benchEndpoint(i%10)), 8080)
			entries = append(entries, nft.OwnedElement{Element: nft.Element{Set: set.Name, Key: nft.Value(key),
				Data: nft.Value(data)}})
		}
		must(conn.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: all.IPv4.ID(), Set: set, Elements: entries}}}))
	}
	remember(0, 1)

	runs := make(chan affinity.Run, 100)
	ctx, cancel := context.WithCancel(b.Context())
	sweeper := affinity.NewSweeper(conn, busy(), func(r affinity.Run) { runs <- r })
	done := make(chan error)
	go func() { done <- sweeper.Run(ctx) }()
	defer func() {
		cancel()
		must(<-done)
	}()
	sweeper.Notify(all, false)
	less := benchProgram(9)
	for b.Loop() {
		b.StopTimer()
		away, next := state.Plan(less, time.Now())
		must(conn.Apply(away))
		b.StartTimer()
		sweeper.Notify(less, false)
		for swept := 0; swept < clients/10; {
			run := <-runs
			must(run.Err)
			swept += run.Swept
		}
		b.StopTimer()
		back, again := next.Plan(all, time.Now())
		must(conn.Apply(back))
		state = again
		sweeper.Notify(all, false)
		remember(9, 10)
		for range 3 { // the late sweeps, so that the next one does not wait
			must((<-runs).Err)
		}
		b.StartTimer()
	}
}

func benchClusterIP() netip.Addr { return netip.MustParseAddr("10.96.0.10") }

func benchEndpoint(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, 0, byte(10 + i)}) }

func benchProgram(endpoints int) *nft.Program {
	var list []service.Endpoint
	for i := range endpoints {
		list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(benchEndpoint(i), 8080), Ready: true, Serving: true})
	}
	p := service.Port{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}
	b := snapshots.NewBuilder(service.Node{Name: "node"})
	b.Set(&service.Service{Name: "default/web", ClusterIPs: []netip.Addr{benchClusterIP()}, AffinityTimeout: 3600e9,
		Ports: []service.Port{p}})
	return ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, b.Snapshot())
}
