package snapshots_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// crowded is the i-th of many services that all ask for the same ports of one
// external address. The later ones are older: each of them takes all of it.
func crowded(i, ports int) *service.Service {
	s := &service.Service{
		Name:        service.NewName("tenant", fmt.Sprintf("svc-%05d", i)),
		Created:     time.Date(2026, 1, 1, 0, 0, -i, 0, time.UTC),
		ClusterIPs:  []netip.Addr{netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)})},
		ExternalIPs: addrs("198.51.100.1"),
	}
	for p := range ports {
		s.Ports = append(s.Ports, service.Port{Name: fmt.Sprint("p", p), Protocol: service.TCP, Port: uint16(80 + p)})
	}
	return s
}

// wide asks for many addresses.
func wide(name string, created, n, ports int) *service.Service {
	s := crowded(0, ports)
	s.Name, s.Created, s.ExternalIPs = service.NewName("tenant", name), time.Date(2026, 1, 1, 0, 0, created, 0, time.UTC),
		nil
	s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 101, 0, byte(created)})}
	for i := range n {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}))
	}
	return s
}

// beside is the i-th of many services that each have ten ports of their own of one external address.
func beside(i int) *service.Service {
	s := crowded(i, 10)
	for p := range s.Ports {
		s.Ports[p].Protocol = []service.Protocol{service.TCP, service.UDP}[i%2]
		s.Ports[p].Port = uint16(1 + i/2*10 + p)
	}
	return s
}

func alike(i int) *service.Service { return crowded(i, 10) }

func crowd(n int, of func(i int) *service.Service) *snapshots.Builder {
	b := snapshots.NewBuilder(gen.PlainNode())
	b.Expect(n)
	for i := range n {
		b.Set(of(i))
	}
	b.Snapshot()
	return b
}

// allocations counts what a call allocates, which depends on no clock.
func allocations(do func()) float64 { return testing.AllocsPerRun(1, do) }

// TestContestedClaimsScale: the cost of services that all make the same claims grows
// with their number. The cost of a change does not.
func TestContestedClaimsScale(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 50
	}
	small, large := allocations(func() { crowd(n, alike) }), allocations(func() { crowd(4*n, alike) })
	if ratio := large / small; ratio > 8 {
		t.Errorf("%.0f allocations for %d services, %.0f for %d: %.1f times as many", small, n, large, 4*n, ratio)
	}
	// The claims change hands, stay with their owner, or go to the next claimant.
	for what, change := range map[string]func(b *snapshots.Builder, n int){
		"the oldest goes and comes": func(b *snapshots.Builder, n int) {
			b.Delete(crowded(n-1, 10).Name)
			b.Snapshot()
			b.Set(crowded(n-1, 10))
		},
		"another goes and comes": func(b *snapshots.Builder, n int) {
			b.Delete(crowded(n/2, 10).Name)
			b.Snapshot()
			b.Set(crowded(n/2, 10))
		},
		"one has other endpoints": func(b *snapshots.Builder, n int) {
			b.Set(withEndpoints(crowded(n/2, 10), 1))
			b.Snapshot()
			b.Set(crowded(n/2, 10))
		},
		"one asks for one port less": func(b *snapshots.Builder, n int) {
			b.Set(crowded(n/2, 9))
			b.Snapshot()
			b.Set(crowded(n/2, 10))
		},
	} {
		few, many := crowd(n, alike), crowd(8*n, alike)
		a := allocations(func() { change(few, n); few.Snapshot() })
		b := allocations(func() { change(many, 8*n); many.Snapshot() })
		if b > 3*a {
			t.Errorf("%s: %.0f allocations with %d services, %.0f with %d", what, a, n, b, 8*n)
		}
	}
}

// TestChangeBesideManyScales: what a service costs that comes to an address and goes does not depend on the ports that
// others have there.
func TestChangeBesideManyScales(t *testing.T) {
	cost := func(n int) float64 {
		b := crowd(n, beside)
		return allocations(func() {
			b.Set(beside(n))
			b.Snapshot()
			b.Delete(beside(n).Name)
			b.Snapshot()
		})
	}
	if few, many := cost(50), cost(1000); many > 2*few {
		t.Errorf("%.0f allocations beside 50 services, %.0f beside 1000", few, many)
	}
}

func withEndpoints(s *service.Service, n int) *service.Service {
	for i := range s.Ports {
		var list []service.Endpoint
		for e := range n {
			list = append(list, service.Endpoint{
				Addr:  netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(e >> 8), byte(e)}), 8080),
				Ready: true, Serving: true,
			})
		}
		s.Ports[i].Endpoints = service.MergeEndpoints(list)
	}
	return s
}

// TestWideContestsScale: a service has a conflict over each of its claims. Another
// service takes one of these claims and leaves it. That costs no more with thousands of
// claims than with few.
func TestWideContestsScale(t *testing.T) {
	cost := func(n int) float64 {
		b := snapshots.NewBuilder(gen.PlainNode())
		b.Set(wide("older", 1, n, 4))
		b.Set(wide("younger", 2, n, 4))
		one := wide("one", 0, 1, 1)
		b.Snapshot()
		conflicts := b.Snapshot().Conflicts.At("tenant/younger")
		if conflicts.Len() != 4*n {
			t.Fatalf("%d conflicts over %d claims", conflicts.Len(), 4*n)
		}
		return allocations(func() {
			b.Set(one)
			b.Snapshot()
			b.Delete(one.Name)
			b.Snapshot()
		})
	}
	if few, many := cost(10), cost(1000); many > 4*few {
		t.Errorf("%.0f allocations with 10 addresses, %.0f with 1000", few, many)
	}
}

// BenchmarkContested is what services cost that ask for 10 ports of one address, the same ones or each its own: the
// first snapshot, and a change: one of them goes and comes back, which has nothing of what all ask for, or all.
func BenchmarkContested(b *testing.B) {
	for name, of := range map[string]func(i int) *service.Service{"alike": alike, "beside": beside} {
		for _, n := range []int{1000, 10_000} {
			b.Run(fmt.Sprintf("%s/%d/first", name, n), func(b *testing.B) {
				for b.Loop() {
					crowd(n, of)
				}
			})
			builder := crowd(n, of)
			for what, one := range map[string]*service.Service{"one": of(n / 2), "oldest": of(n - 1)} {
				b.Run(fmt.Sprintf("%s/%d/%s", name, n, what), func(b *testing.B) {
					for b.Loop() {
						builder.Delete(one.Name)
						builder.Snapshot()
						builder.Set(one)
						builder.Snapshot()
					}
				})
			}
		}
	}
	b.Run("wide", func(b *testing.B) {
		for b.Loop() {
			builder := snapshots.NewBuilder(gen.PlainNode())
			builder.Set(wide("older", 1, 1000, 4))
			builder.Set(wide("younger", 2, 1000, 4))
			builder.Snapshot()
		}
	})
}

// sharing has n addresses of a load balancer, and source ranges if it is restricted.
func sharing(name string, created, n, ports int, restricted bool) *service.Service {
	s := wide(name, created, n, ports)
	s.LoadBalancerIPs, s.ExternalIPs = s.ExternalIPs, nil
	if restricted {
		s.Sources = service.NewSources([]netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")})
	}
	return s
}

// TestEqualFirewallKeepsRestrictions: what a Service restricts of another one stays, pointer for pointer, when it makes
// other claims with an equal firewall.
func TestEqualFirewallKeepsRestrictions(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	b.Set(sharing("older", 1, 3, 1, false))
	b.Set(sharing("younger", 2, 3, 1, true))
	before := b.Snapshot().Restrictions.At("tenant/older")
	b.Set(sharing("younger", 2, 3, 2, true))
	if after := b.Snapshot().Restrictions.At("tenant/older"); before == nil || after != before {
		t.Errorf("the restrictions are others: %v, %v", before, after)
	}
	b.Set(sharing("younger", 2, 2, 2, true))
	if after := b.Snapshot().Restrictions.At("tenant/older"); after == nil || after == before {
		t.Errorf("the restrictions with an address less: %v, %v", before, after)
	}
}

// BenchmarkSharedFirewall: two Services share all addresses of a load balancer and a port. The one whose source ranges
// restrict the other gets another port, and loses it.
func BenchmarkSharedFirewall(b *testing.B) {
	for _, n := range []int{800, 8000} {
		builder := snapshots.NewBuilder(gen.PlainNode())
		builder.SetMaxElements(1 << 30)
		builder.Set(sharing("older", 1, n, 1, false))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				builder.Set(sharing("younger", 2, n, 1+i%2, true))
				builder.Snapshot()
			}
		})
	}
}
