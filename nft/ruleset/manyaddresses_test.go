package ruleset_test

import (
	"fmt"
	"net/netip"
	"testing"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// manyAddresses has n external IPs or load balancer's addresses, behind source ranges that contain the node.
func manyAddresses(n int, balanced bool) *service.Service {
	s := gen.UniformService(0, 1)
	list := make([]netip.Addr, n)
	for i := range list {
		list[i] = netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
	}
	s.Options.SourceRanges = service.NewSources([]netip.Prefix{netip.MustParsePrefix("192.168.0.0/16")})
	if balanced {
		s.LoadBalancerIPs, s.Sources = list, s.Options.SourceRanges
	} else {
		s.ExternalIPs = list
	}
	return s
}

// TestElementsOfManyAddresses: a Service has no more elements than the bound says, however many addresses it has, and
// whichever of them may reach the others.
func TestElementsOfManyAddresses(t *testing.T) {
	for _, balanced := range []bool{true, false} {
		b := snapshots.NewBuilder(gen.PlainNode())
		s := manyAddresses(4000, balanced)
		b.Set(s)
		n := 0
		for _, part := range ruleset.Compile(benchConfig(), b.Snapshot()).Table(nft.IPv4).Parts.All() {
			n += part.Len()
		}
		if n < 8000 || n > service.DefaultMaxElements+100 {
			t.Errorf("balanced %t: %d elements", balanced, n)
		}
	}
}

// BenchmarkManyAddresses compiles a Service with n external IPs behind source ranges. Ten times as many addresses take
// ten times as long.
func BenchmarkManyAddresses(b *testing.B) {
	config := benchConfig()
	config.AnswerPing = true
	for _, n := range []int{1500, 15_000} {
		builder := snapshots.NewBuilder(gen.PlainNode())
		builder.Set(manyAddresses(n, false))
		snapshot := builder.Snapshot()
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				ruleset.Compile(config, snapshot)
			}
		})
	}
}
