package snapshots_test

import (
	"fmt"
	"net/netip"
	"testing"

	"nftproxy/model/claims"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// BenchmarkResidents: a change of one endpoint among 10,000 services of ten, and the first
// snapshot of them, without external IPs and with one, and other addresses that are
// reserved.
func BenchmarkResidents(b *testing.B) {
	build := func(external bool) *snapshots.Builder {
		builder := snapshots.NewBuilder(gen.PlainNode())
		builder.Expect(10_000)
		for i := range 10_000 {
			s := gen.UniformService(i, 10)
			if external && i == 0 {
				s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
			}
			builder.Set(s)
		}
		return builder
	}
	for _, external := range []bool{false, true} {
		b.Run(fmt.Sprintf("first/external=%t", external), func(b *testing.B) {
			for b.Loop() {
				build(external).Snapshot()
			}
		})
		builder := build(external)
		builder.Snapshot()
		variants := []*service.Service{gen.UniformService(5000, 10), gen.UniformService(5000, 9)}
		b.Run(fmt.Sprintf("change/external=%t", external), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				builder.Set(variants[i%2])
				builder.Snapshot()
			}
		})
		b.Run(fmt.Sprintf("reserved/external=%t", external), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				builder.SetReserved(claims.Reserved{KubeletPort: uint16(1 + i%2)})
				builder.Snapshot()
			}
		})
	}
}
