package ruleset_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check/kernelmodel"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestDeleteUnderTraffic deletes the tables again and again while clients connect and another
// table serves the same address. No connection may fail.
func TestDeleteUnderTraffic(t *testing.T) {
	const clients, deletions = 8, 100
	world := testnet.NewForTest(t, testnet.Config{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	server, err := world.AddPod("server")
	must(err)
	client, err := world.AddPod("client")
	must(err)
	endpoint, frontend := netip.AddrPortFrom(server.Addrs.V4(), 8080), netip.MustParseAddrPort("10.96.0.1:80")
	_, err = server.NS.Serve(testnet.TCP, endpoint, "server")
	must(err)
	must(netfilter.NFTForTest(t).Load(world.Node, fmt.Sprintf(`table ip other { chain nat { type nat hook prerouting priority -99;
		ip daddr %v tcp dport %d dnat to %v; }; }`, frontend.Addr(), frontend.Port(), endpoint)))
	snapshot, err := gen.ReadSnapshot(strings.NewReader(fmt.Sprintf("node n\nservice a/b created 2026-01-01T00:00:00Z\n"+
		"cluster-ip %v\nport a tcp %d\nendpoint %v - ready serving\n", frontend.Addr(), frontend.Port(), endpoint)))
	must(err)
	batch, _ := nft.State{}.Plan(ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, snapshot), time.Time{})
	conn, err := kernel.Open(kernelmodel.Config(t, kernel.Config{NetNS: world.Node.Fd()}))
	must(err)
	defer conn.Close()

	var asked atomic.Int64
	var running sync.WaitGroup
	done := make(chan struct{})
	for range clients {
		running.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				answer, err := client.NS.Ask(t.Context(), testnet.TCP, frontend, time.Minute)
				if err != nil || answer.Outcome != testnet.Answered {
					t.Errorf("connection %d: %s, %v", asked.Load(), answer.Outcome, err)
				}
				asked.Add(1)
			}
		})
	}
	for range deletions {
		must(conn.Apply(batch))
		for before := asked.Load(); asked.Load() < before+2*clients; {
			time.Sleep(time.Millisecond) // the clients need the processor
		}
		must(conn.DeleteTables(ruleset.DefaultTable))
	}
	close(done)
	running.Wait()
	t.Logf("%d connections, %d deletions", asked.Load(), deletions)
}
