package conntrack

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/lib/testnet"
)

// BenchmarkTranslated is a count of connections to the endpoints of a Service, as least connections need it: a dump of
// all connections with DNAT, and a look for the Service of each.
func BenchmarkTranslated(b *testing.B) {
	for _, flows := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) {
			ns := testnet.NamespaceForTest(b, "node")
			table, index := open(b, ns), NewIndex(Options{})
			builder := snapshots.NewBuilder(service.Node{Name: "n"})
			builder.Set(&service.Service{Name: "a/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
				Ports: []service.Port{{Protocol: service.TCP, Port: 80}}})
			index.Update(builder.Snapshot())
			fill(b, ns, 0, flows, func(i int) Flow { return unansweredFlow(service.TCP, i, "10.244.1.5:8080") })
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var counted map[netip.AddrPort]int
			b.ResetTimer()
			start := ThreadTime()
			for range b.N {
				counted = map[netip.AddrPort]int{}
				if err := table.Flows(b.Context(), Filter{Status: DstNAT, Mask: DstNAT}, func(f Flow) error {
					if _, _, ok := index.Owner(f); ok {
						counted[f.Reply.Src]++
					}
					return nil
				}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(ThreadTime()-start)/float64(b.N)/float64(time.Millisecond), "cpu-ms/op")
			if n := counted[netip.MustParseAddrPort("10.244.1.5:8080")]; n != flows {
				b.Fatalf("%d flows, want %d", n, flows)
			}
		})
	}
}
