package ruleset_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// seeds runs the test with n sources of randomness, always the same. With -short it
// takes every twentieth of them.
func seeds(t *testing.T, n int, test func(t *testing.T, rng *rand.Rand)) {
	if testing.Short() {
		n = (n + 19) / 20
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 3))) })
	}
}

// script is a source of randomness that a fuzzer can steer: its bytes come first, and
// after them the same numbers each time.
type script struct {
	bytes []byte
	rest  *rand.PCG
}

func newScript(b []byte) *rand.Rand { return rand.New(&script{b, rand.NewPCG(0, 0)}) }

func (s *script) Uint64() uint64 {
	if len(s.bytes) < 8 {
		return s.rest.Uint64()
	}
	n := binary.LittleEndian.Uint64(s.bytes)
	s.bytes = s.bytes[8:]
	return n
}

// build makes a snapshot, in which some endpoints are growing.
func build(node service.Node, services []*service.Service, cidrs ...netip.Prefix) service.Snapshot {
	b := snapshots.NewBuilder(node)
	b.SetServiceCIDRs(cidrs)
	for _, s := range services {
		b.Set(s)
	}
	b.SetGrowing(gen.Growth(rand.New(rand.NewPCG(0, 6)), b.Snapshot()))
	return b.Snapshot()
}

// randomServices returns those of gen.Services. Now and then one has an endpoint
// with an address that is reserved for services, perhaps a cluster IP. No packet can
// reach such an endpoint.
func randomServices(rng *rand.Rand, node *service.Node) []*service.Service {
	list := gen.Services(rng, node)
	for i, s := range list {
		if rng.IntN(8) > 0 {
			continue
		}
		next := *s
		next.Ports = slices.Clone(s.Ports)
		p := &next.Ports[rng.IntN(len(next.Ports))]
		a := s.ClusterIPs[0].AsSlice()
		a[len(a)-1] = byte(4 + rng.IntN(10))
		addr, _ := netip.AddrFromSlice(a)
		p.Endpoints = service.MergeEndpoints(append(slices.Collect(p.Endpoints.All()),
			service.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), Node: "node-2", Ready: true, Serving: true}))
		list[i] = &next
	}
	return list
}
