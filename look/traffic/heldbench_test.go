package traffic_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/testnet"
)

// heldServices is how many Services hold in BenchmarkHeld.
const heldServices = 2000

// BenchmarkHeld is one look while so many connections of each family wait, up to as many as the kernel remembers, at
// 2,000 Services that hold.
func BenchmarkHeld(b *testing.B) {
	for _, flows := range []int{0, nft.DynamicLimit / 16, nft.DynamicLimit / 4, nft.DynamicLimit} {
		b.Run(fmt.Sprint(flows), func(b *testing.B) { benchmarkHeld(b, flows) })
	}
}

func benchmarkHeld(b *testing.B, flows int) {
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	conn, err := kernel.Open(kernel.Config{NetNS: testnet.NamespaceForTest(b, "held").Fd()})
	must(err)
	defer conn.Close()
	services := snapshots.NewBuilder(service.Node{Name: "node"})
	for i := range heldServices {
		services.Set(&service.Service{
			Name: service.NewName("ns", fmt.Sprint(i)), ClusterIPs: []netip.Addr{heldIP(nft.IPv4, i), heldIP(nft.IPv6, i)},
			Ports:   []service.Port{{Protocol: service.TCP, Port: 80}},
			Options: service.Options{Hold: 30 * time.Second},
		})
	}
	p := ruleset.Compile(ruleset.Config{Table: "t"}, services.Snapshot())
	batch, _ := nft.State{}.Plan(p, time.Time{})
	must(conn.Apply(batch))
	for _, f := range nft.Families() {
		set := p.Table(f).Set(ruleset.HeldFlows().Name)
		var elements []nft.OwnedElement
		for i := range flows {
			key := nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, heldIP(f, i%heldServices)), uint8(service.TCP)), 80)
			key = nft.AppendPort(nft.AppendAddr(key, heldIP(f, i)), uint16(i))
			elements = append(elements, nft.OwnedElement{Element: nft.Element{Set: set.Name, Key: nft.Value(key)}})
		}
		if flows > 0 {
			must(conn.Apply(nft.Batch{Ops: []nft.Op{nft.AddElements{Table: p.Table(f).ID(), Set: set, Elements: elements}}}))
		}
	}
	var later time.Duration // so that the budget allows each look
	counter := traffic.NewRefusalCounter(conn, func() time.Time { return time.Now().Add(later) }, conntrack.ThreadTime)
	counter.Follow(p)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var cpu time.Duration
	for b.Loop() {
		later += time.Hour
		began := conntrack.ThreadTime()
		look := counter.Look()
		cpu += conntrack.ThreadTime() - began
		must(look.Err)
		sum := 0
		for _, h := range look.Held {
			sum += h.Connections
		}
		if sum != 2*flows {
			b.Fatalf("%d connections wait, want %d", sum, 2*flows)
		}
	}
	b.ReportMetric(cpu.Seconds()*1000/float64(b.N), "cpu-ms/op")
}

// heldIP is an address of a Service or of a client.
func heldIP(f nft.Family, i int) netip.Addr {
	if f == nft.IPv4 {
		return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})
}
