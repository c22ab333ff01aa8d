package conntrack

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// leastCost is the least CPU time of some runs. prepare makes what a run measures. Where the kernel counts CPU time in
// ticks, as some virtual machines do, it is the mean of many runs.
func leastCost(prepare func() (run func())) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const few, many, ticks = 5, 1000, 40 * time.Millisecond
	least, sum := time.Hour, time.Duration(0)
	for n := 1; ; n++ {
		run := prepare()
		before := ThreadTime()
		run()
		took := ThreadTime() - before
		least, sum = min(least, took), sum+took
		switch {
		case n >= few && least > 0:
			return least
		case sum >= ticks || n == many:
			return sum / time.Duration(n)
		}
	}
}

// wantLinear checks that sixteen times as much costs some sixteen times as much, and not 256 times.
func wantLinear(t *testing.T, what string, n int, cost func(n int) time.Duration) {
	t.Helper()
	small, large := cost(n), cost(16*n)
	t.Logf("%d %s take %v, and %d take %v", n, what, small, 16*n, large)
	if large > 100*small {
		t.Errorf("%d %s take %v, and %d take %v", n, what, small, 16*n, large)
	}
}

// manyPorts is a Service with an external address and n ports there, which has one endpoint.
func manyPorts(name string, created int64, n int, external string) *service.Service {
	s := &service.Service{
		Name: service.NewName("tenant", name), Created: time.Unix(created, 0),
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0." + fmt.Sprint(created))},
	}
	if external != "" {
		s.ExternalIPs = []netip.Addr{netip.MustParseAddr(external)}
	}
	endpoints := service.MergeEndpoints([]service.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80"), Ready: true,
		Serving: true}})
	for i := range n {
		s.Ports = append(s.Ports, service.Port{Protocol: service.TCP, Port: uint16(1 + i), Endpoints: endpoints})
	}
	return s
}

// TestManyLostClaims: an older Service takes an address with many ports from a younger one.
func TestManyLostClaims(t *testing.T) {
	wantLinear(t, "claims", 500, func(n int) time.Duration {
		b := snapshots.NewBuilder(gen.PlainNode())
		b.Set(manyPorts("young", 2, n, "198.51.100.7"))
		b.Set(manyPorts("old", 1, n, ""))
		before := b.Snapshot()
		b.Set(manyPorts("old", 1, n, "198.51.100.7"))
		after := b.Snapshot()
		return leastCost(func() func() {
			x := NewIndex(Options{})
			x.Update(before)
			return func() { x.Update(after) }
		})
	})
}

// TestManyClaimants: all flows to an address and port that many Services claim find the one that has it.
func TestManyClaimants(t *testing.T) {
	wantLinear(t, "claimants", 250, func(n int) time.Duration {
		b := snapshots.NewBuilder(gen.PlainNode())
		for i := range n {
			s := manyPorts(fmt.Sprintf("s%06d", i), 1, 1, "198.51.100.7")
			s.Created = time.Unix(int64(n-i), 0) // the last one by name has it
			b.Set(s)
		}
		x := NewIndex(Options{})
		x.Update(b.Snapshot())
		f := dnated(service.TCP, "10.0.0.9", "198.51.100.7:1", "10.1.0.1:80", SeenReply|Assured)
		return leastCost(func() func() {
			return func() {
				for range n {
					if _, _, ok := x.Owner(f); !ok {
						t.Fatal("nobody has the address")
					}
				}
			}
		})
	})
}

// TestManySourceRanges: each of many unanswered flows to a Service with many source ranges is judged.
func TestManySourceRanges(t *testing.T) {
	wantLinear(t, "ranges and flows", 250, func(n int) time.Duration {
		s := manyPorts("web", 1, 1, "")
		s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
		var ranges []netip.Prefix
		for i := range n {
			ranges = append(ranges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 7), byte(i << 1), 0}), 24))
		}
		s.Sources = service.NewSources(ranges)
		b := snapshots.NewBuilder(gen.PlainNode())
		b.Set(s)
		x := NewIndex(Options{})
		x.Update(b.Snapshot())
		last := ranges[n-1].Addr().Next()
		f := dnated(service.TCP, last.String(), "198.51.100.7:1", "10.1.0.1:80", 0)
		return leastCost(func() func() {
			return func() {
				for range n {
					if reason, stale := x.Stale(f); stale {
						t.Fatal(reason)
					}
				}
			}
		})
	})
}

// TestManyPortsBehindRanges: flows to each port of a Service with many source ranges, of which each is judged.
func TestManyPortsBehindRanges(t *testing.T) {
	wantLinear(t, "ports and ranges", 125, func(n int) time.Duration {
		s := manyPorts("web", 1, n, "")
		s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("198.51.100.8")}
		ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		node := gen.PlainNode()
		for _, a := range node.Addresses {
			ranges = append(ranges, netip.PrefixFrom(a, a.BitLen())) // so the load balancer may reach itself
		}
		for i := range n {
			ranges = append(ranges, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 7), byte(i << 1), 0}), 24))
		}
		s.Sources = service.NewSources(ranges)
		b := snapshots.NewBuilder(node)
		b.Set(s)
		var flows []Flow
		for i := range n {
			flows = append(flows, dnated(service.TCP, "192.0.2.7", fmt.Sprint("198.51.100.7:", i+1), "10.1.0.1:80", 0))
		}
		snapshot := b.Snapshot()
		return leastCost(func() func() {
			x := NewIndex(Options{})
			x.Update(snapshot)
			return func() {
				for _, f := range flows {
					if reason, stale := x.Stale(f); stale {
						t.Fatal(reason)
					}
				}
			}
		})
	})
}

// TestManyDepartures: endpoints of one port that departed one after the other are forgotten together. The connections
// of half of them are to be cut later.
func TestManyDepartures(t *testing.T) {
	wantLinear(t, "departures", 500, func(n int) time.Duration {
		now := time.Unix(1_800_000_000, 0)
		return leastCost(func() func() {
			x := NewIndex(Options{})
			x.Advance(now)
			b := snapshots.NewBuilder(gen.PlainNode())
			for i := range n + 1 {
				s := manyPorts("web", 1, 1, "")
				if i < n/2 {
					s.Options.Departed = service.Departed{Fate: service.DepartedCut, After: 10 * time.Minute}
				}
				s.Ports[0].Endpoints = service.MergeEndpoints([]service.Endpoint{{Addr: netip.AddrPortFrom(
					netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80), Ready: true, Serving: true}})
				b.Set(s)
				x.Update(b.Snapshot())
			}
			x.Cover(x.Epoch())
			x.Advance(now.Add(9 * time.Minute))
			return func() { x.Forget(x.Epoch()) }
		})
	})
}
