package snapshots_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// TestExpectForgetsNothing: a history comes out the same wherever room is made
// in between, with changes that no snapshot has yet.
func TestExpectForgetsNothing(t *testing.T) {
	seeds(t, 50, func(t *testing.T, rng *rand.Rand) {
		plain, roomy := snapshots.NewBuilder(gen.PlainNode()), snapshots.NewBuilder(gen.PlainNode())
		for i, c := range gen.Changes(rng, 200, everything) {
			c.Apply(plain)
			c.Apply(roomy)
			if rng.IntN(3) == 0 {
				roomy.Expect(rng.IntN(200))
			}
			if rng.IntN(20) > 0 {
				continue
			}
			if diff := difference(contentsOf(plain.Snapshot()), contentsOf(roomy.Snapshot()), byValue); diff != "" {
				t.Fatalf("after change %d (-without room +with):\n%s", i, diff)
			}
		}
	})
}

// TestExpectKeepsDeletions: a service that was deleted since the last snapshot stays
// deleted, and its claim has another owner.
func TestExpectKeepsDeletions(t *testing.T) {
	named := func(name service.Name, age int) *service.Service {
		return &service.Service{
			Name: name, Created: time.Date(2026, 1, 1, 0, 0, -age, 0, time.UTC),
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:      []service.Port{{Protocol: service.TCP, Port: 80}},
		}
	}
	b := snapshots.NewBuilder(gen.PlainNode())
	b.Set(named("a/oldest", 3))
	b.Set(named("a/middle", 2))
	b.Set(named("a/youngest", 1))
	b.Snapshot()
	b.Delete("a/oldest")
	b.Expect(1000)
	if s := b.Service("a/oldest"); s != nil {
		t.Errorf("it came back:\n%s", s)
	}
	s := b.Snapshot()
	if s.Services.Len() != 2 || s.Services.At("a/oldest") != nil {
		t.Errorf("the snapshot is\n%s", s)
	}
	claim := service.Claim{Addr: netip.MustParseAddr("10.96.0.1"), Protocol: service.TCP, Port: 80}
	if conflicts := s.Conflicts.At("a/youngest"); s.Conflicts.Len() != 1 || !conflicts.Has(claim) ||
		s.Owners.Of(claim) != "a/middle" {
		t.Errorf("who has what is\n%s", s)
	}
	b.Delete("a/middle")
	b.Expect(5000)
	if s = b.Snapshot(); s.Conflicts.Len() != 0 || s.Services.Len() != 1 {
		t.Errorf("of the youngest alone the snapshot is\n%s", s)
	}
}

// BenchmarkFirst makes a builder's first snapshot.
func BenchmarkFirst(b *testing.B) {
	var services []*service.Service
	for i := range 10_000 {
		services = append(services, gen.UniformService(i, 10))
	}
	for name, expected := range map[string]int{"expected": len(services), "not expected": 0} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				builder := snapshots.NewBuilder(gen.PlainNode())
				builder.Expect(expected)
				for _, s := range services {
					builder.Set(s)
				}
				builder.Snapshot()
			}
		})
	}
}
