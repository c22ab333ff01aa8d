package snapshots_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/claims"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// withRanges has the cluster IP 10.104.0.N, a port and the ranges; created is its age in seconds, the less the older.
func withRanges(name service.Name, created int, ranges service.RangesByProtocol) *service.Service {
	s := &service.Service{
		Name: name, Created: time.Date(2026, 1, 1, 0, 0, created, 0, time.UTC),
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 104, byte(created >> 8), byte(created)})},
		Ports:      []service.Port{{Name: "p", Protocol: service.TCP, Port: 80}},
		Options:    service.Options{PortRanges: ranges},
	}
	s.SetRangePorts()
	return s
}

// rangePorts counts the ports of the snapshot's service that are ranges.
func rangePorts(s service.Snapshot, name service.Name) (n int) {
	for _, p := range s.Services.At(name).Ports {
		if p.IsRange() {
			n++
		}
	}
	return n
}

// TestRangeListsAreBounded: one namespace has a quarter of the lists, the oldest Services first, and all others of its
// Services with other lists have their ports only; equal lists are one. Where a list goes, the next oldest comes.
func TestRangeListsAreBounded(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	const room = service.DefaultMaxRangeLists / 4
	list := func(i int) service.RangesByProtocol {
		return service.RangesByProtocol(fmt.Sprintf("%d/UDP", 1000+i))
	}
	name := func(i int) service.Name { return service.NewName("ns", fmt.Sprint("svc-", i)) }
	for i := range room + 2 {
		b.Set(withRanges(name(i), i, list(i)))
	}
	b.Set(withRanges("ns/same", room+2, list(0)))
	b.Set(withRanges("other/one", room+3, list(room+1)))
	quiet := false // svc-1 asks for nothing
	check := func(unserved ...service.Name) {
		t.Helper()
		s := b.Snapshot()
		left := map[service.Name]bool{}
		for _, n := range unserved {
			left[n] = true
		}
		for n := range s.Services.All() {
			why := s.UnservedRanges.At(n)
			asks := n != name(1) || !quiet
			if got := asks && rangePorts(s, n) == 0; got != left[n] || (why != nil) != left[n] ||
				len(s.Services.At(n).Ports) == 0 {
				t.Errorf("%s: without ranges: %t, because of %v", n, got, why)
			}
			if why != nil && !strings.Contains(why.String(),
				fmt.Sprintf("room for %d different lists of port ranges, and for %d by", service.DefaultMaxRangeLists, room)) {
				t.Errorf("%s: %s", n, why)
			}
		}
	}
	// The list of room+1 is another namespace's, too, which brings it in for all.
	check(name(room))
	b.Delete("other/one")
	check(name(room), name(room+1))
	b.Set(withRanges(name(1), 1, ""))
	quiet = true
	check(name(room + 1))
	b.Set(withRanges(name(1), 1, list(1)))
	quiet = false
	check(name(room), name(room+1))
}

// TestRangesOfAnotherTakePorts: who has a port that another Service's ranges have, too, is decided again whenever
// the ranges change, whichever Service changes.
func TestRangesOfAnotherTakePorts(t *testing.T) {
	shared := []netip.Addr{netip.MustParseAddr("198.51.100.7")}
	port := service.Claim{Addr: shared[0], Protocol: service.TCP, Port: 80}
	older := func(ranges service.RangesByProtocol) *service.Service {
		s := withRanges("ns/older", 1, ranges)
		s.LoadBalancerIPs, s.Ports[0].Port = shared, 9
		return s
	}
	younger := withRanges("ns/younger", 2, "")
	younger.LoadBalancerIPs = shared
	b := snapshots.NewBuilder(gen.PlainNode())
	check := func(when string, want bool) {
		t.Helper()
		if got := b.Snapshot().Conflicts.At("ns/younger").Has(port); got != want {
			t.Errorf("%s: the younger lacks its port: %t", when, got)
		}
	}
	b.Set(younger)
	check("alone", false)
	b.Set(older("70-90/TCP"))
	check("ranges with the port", true)
	b.Set(older("70-79/TCP"))
	check("ranges without it", false)
	b.Set(older("70-90/UDP"))
	check("another protocol", false)
	b.Set(older("1-65535/TCP"))
	check("all ports", true)
	b.Delete("ns/older")
	check("no ranges", false)
	b.Set(older("80/TCP"))
	check("the port alone", true)
	b.Delete("ns/younger")
	b.Snapshot()
	b.Set(younger)
	check("the younger again", true)
	b.SetProtected(claims.Protected{port: {Protection: "the node's", FromLoadBalancers: true}})
	check("protected from both", true)
	b.SetProtected(nil)
	b.Set(older(""))
	check("without the annotation", false)
}

// TestRangesKeepExternalIPsOut: an older Service's endpoint keeps its address from external IPs of others at each port
// of a protocol with ranges, since translated packets are on their way to any of them.
func TestRangesKeepExternalIPsOut(t *testing.T) {
	pod := netip.MustParseAddr("10.0.0.5")
	voice := func(ranges service.RangesByProtocol, at netip.Addr) *service.Service {
		s := withRanges("ns/voice", 1, ranges)
		s.Ports[0].Endpoints = service.MergeEndpoints([]service.Endpoint{{Addr: netip.AddrPortFrom(at, 8080), Ready: true}})
		s.SetRangePorts()
		return s
	}
	taker := withRanges("else/taker", 2, "")
	taker.ExternalIPs = []netip.Addr{pod}
	taker.Ports = []service.Port{{Name: "u", Protocol: service.UDP, Port: 15000}, {Name: "t", Protocol: service.TCP,
		Port: 15000}}
	udp, tcp := service.Claim{Addr: pod, Protocol: service.UDP, Port: 15000},
		service.Claim{Addr: pod, Protocol: service.TCP, Port: 15000}
	b := snapshots.NewBuilder(gen.PlainNode())
	check := func(when string, lacksUDP, lacksTCP bool) {
		t.Helper()
		c := b.Snapshot().Conflicts.At("else/taker")
		if c.Has(udp) != lacksUDP || c.Has(tcp) != lacksTCP {
			t.Errorf("%s: lacks UDP: %t, TCP: %t", when, c.Has(udp), c.Has(tcp))
		}
	}
	b.Set(taker)
	check("alone", false, false)
	b.Set(voice("10000-20000/UDP", pod))
	check("ranges of UDP", true, false)
	b.Set(voice("10000-20000/TCP", pod))
	check("ranges of TCP", false, true)
	b.Set(voice("10000-20000/TCP", netip.MustParseAddr("10.0.0.6")))
	check("another endpoint", false, false)
	b.Set(voice("10000-20000/TCP,1/UDP", pod))
	check("both", true, true)
	b.Set(voice("", pod))
	check("no ranges", false, false)
}

// BenchmarkPortRanges: a change of one Service among 10,000 without ranges, with ranges in another, and in the Service
// itself.
func BenchmarkPortRanges(b *testing.B) {
	for _, services := range []int{1000, 10_000, 100_000} {
		for _, c := range []struct {
			name   string
			ranges bool
			next   func(i int) *service.Service
		}{
			{"without/claims", false, func(i int) *service.Service { return gen.UniformService(5, 1) }},
			{"another/claims", true, func(i int) *service.Service { return gen.UniformService(5, 1) }},
			{"own", true, func(i int) *service.Service { return withRanges("ns/ranged", 1, "") }},
		} {
			builder := snapshots.NewBuilder(gen.PlainNode())
			builder.Expect(services)
			for i := range services {
				builder.Set(gen.UniformService(i, 1))
			}
			if c.ranges {
				builder.Set(withRanges("ns/ranged", 1, "10000-20000/UDP"))
			}
			builder.Snapshot()
			b.Run(fmt.Sprintf("%s/%d", c.name, services), func(b *testing.B) {
				for i := 0; b.Loop(); i++ {
					s := c.next(i)
					s.Ports[0].Port = uint16(80 + i%2)
					if c.name == "own" && i%2 == 0 {
						s = withRanges("ns/ranged", 1, "10000-20000/UDP")
					}
					builder.Set(s)
					builder.Snapshot()
				}
			})
		}
	}
}

// BenchmarkSharedExternalIP: many Services ask for ranges of one external IP, and one of those that do not get them
// changes.
func BenchmarkSharedExternalIP(b *testing.B) {
	for _, services := range []int{1000, 10_000} {
		builder := snapshots.NewBuilder(gen.PlainNode())
		set := func(i int, ranges service.RangesByProtocol) {
			s := withRanges(service.NewName("ns", fmt.Sprint("svc-", i)), i, ranges)
			s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
			builder.Set(s)
		}
		for i := range services {
			set(i, "1000-2000/UDP")
		}
		builder.Snapshot()
		b.Run(fmt.Sprint(services), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				set(services/2, service.RangesByProtocol(fmt.Sprintf("1000-%d/UDP", 2000+i%2)))
				builder.Snapshot()
			}
		})
	}
}

// rangesOracle are the service's ranges of a protocol.
func rangesOracle(s *service.Service, p service.Protocol) service.PortRanges {
	for _, port := range s.Ports {
		if port.IsRange() && port.Protocol == p {
			return port.Ranges
		}
	}
	return ""
}

// guardOracle returns what protects the claim from the service: for ranges, one of its ports there, or that
// an external IP is another's cluster IP.
func guardOracle(services map[service.Name]*service.Service, s *service.Service, claim service.Claim,
	protected claims.Protected) service.Protection {
	rank := rankOracle(s, claim)
	guards := func(c service.Claim) bool {
		guard, guarded := protected[c]
		return guarded && (rank == 2 || rank == 1 && guard.FromLoadBalancers)
	}
	if !claim.IsRange() {
		if guards(claim) {
			return protected[claim].Protection
		}
		return ""
	}
	if owner := clusterIPOracle(services, claim.Addr); rank == 2 && owner != nil {
		return "the cluster IP of Service " + service.Protection(owner.Name)
	}
	for c, guard := range protected {
		if c.Range() == claim && rangesOracle(s, claim.Protocol).Has(c.Port) && guards(c) {
			return guard.Protection
		}
	}
	return ""
}

// clusterIPOracle returns the first service with the cluster IP; nil for none.
func clusterIPOracle(services map[service.Name]*service.Service, a netip.Addr) *service.Service {
	return first(slices.Collect(maps.Values(services)), service.Claim{Addr: a}, func(s *service.Service) bool {
		return slices.Contains(s.ClusterIPs, a)
	})
}
