package service_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})

// seeds runs the test with n sources of randomness, always the same. With -short
// it takes every tenth of them.
func seeds(t *testing.T, n int, test func(t *testing.T, rng *rand.Rand)) {
	if testing.Short() {
		n = (n + 9) / 10
	}
	for seed := range uint64(n) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

func prefixes(words string) []netip.Prefix {
	var list []netip.Prefix
	for _, w := range strings.Fields(words) {
		list = append(list, netip.MustParsePrefix(w))
	}
	return list
}

func addrs(words string) []netip.Addr {
	var list []netip.Addr
	for _, w := range strings.Fields(words) {
		list = append(list, netip.MustParseAddr(w))
	}
	return list
}

func TestNewSources(t *testing.T) {
	for _, test := range []struct{ name, ranges, want string }{
		{"none", "", ""},
		{"sorted, IPv4 first", "fd00::/64 192.168.0.0/24 10.0.0.0/8", "10.0.0.0/8 192.168.0.0/24 fd00::/64"},
		{"masked", "192.168.0.77/24 fd00::77/64", "192.168.0.0/24 fd00::/64"},
		{"duplicates, one of them by its mask", "10.0.0.0/24 10.0.0.0/24 10.0.0.9/24", "10.0.0.0/24"},
		{"nested at the start, in the middle and at the end", "10.0.0.0/16 10.0.0.0/24 10.0.7.0/24 10.0.255.255/32",
			"10.0.0.0/16"},
		{"nested three deep, the widest last", "10.0.0.1/32 10.0.0.0/24 10.0.0.0/8", "10.0.0.0/8"},
		{"a neighbour is no overlap", "10.0.0.128/25 10.0.0.0/25", "10.0.0.0/25 10.0.0.128/25"},
		{"what follows a nested one", "10.0.0.0/16 10.0.1.0/24 10.1.0.0/24 10.0.2.0/24", "10.0.0.0/16 10.1.0.0/24"},
		{"all of one family holds nothing of the other", "::/0 10.0.0.0/8 fd00::/8", "10.0.0.0/8 ::/0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			in := prefixes(test.ranges)
			s := service.NewSources(in)
			if diff := gocmp.Diff(prefixes(test.want), s.Ranges(), byValue); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(prefixes(test.ranges), in, byValue); diff != "" {
				t.Errorf("the caller's list changed (-before +after):\n%s", diff)
			}
		})
	}
}

// TestSourcesOf: one family's list does not speak for the other.
func TestSourcesOf(t *testing.T) {
	for _, test := range []struct {
		name       string
		sources    *service.Sources
		v4, v6     string
		all4, all6 bool
	}{
		{name: "nothing is said", all4: true, all6: true},
		{name: "closed", sources: service.NewSources(nil)},
		{name: "one family", sources: service.NewSources(prefixes("10.0.0.0/8 192.168.0.0/24")),
			v4: "10.0.0.0/8 192.168.0.0/24"},
		{name: "the other", sources: service.NewSources(prefixes("fd00::/8")), v6: "fd00::/8"},
		{name: "all of one", sources: service.NewSources(prefixes("0.0.0.0/0 10.0.0.0/8 fd00::/8")), all4: true,
			v6: "fd00::/8"},
		{name: "all of both", sources: service.NewSources(prefixes("0.0.0.0/0 ::/0")), all4: true, all6: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, f := range []struct {
				family ip.Family
				want   string
				all    bool
			}{{ip.V4, test.v4, test.all4}, {ip.V6, test.v6, test.all6}} {
				ranges, all := test.sources.Of(f.family)
				if diff := gocmp.Diff(prefixes(f.want), ranges, byValue); diff != "" || all != f.all {
					t.Errorf("%s: all %t, want %t; (-want +got):\n%s", f.family, all, f.all, diff)
				}
			}
		})
	}
}

// TestAdmitted: a load balancer's addresses are sources as far as the node is
// one, since they are its own where they are bound on it.
func TestAdmitted(t *testing.T) {
	node := service.Node{Name: "node-0", Addresses: addrs("192.168.0.2 2001:db8::2 203.0.113.2")}
	const balancers = "198.51.100.1 198.51.100.2 2001:db8:99::1"
	for _, test := range []struct {
		name, ranges, v4, v6 string
		all4, all6           bool
	}{
		{name: "closed"},
		{name: "the node may not", ranges: "10.0.0.0/8 fd00::/8", v4: "10.0.0.0/8", v6: "fd00::/8"},
		{
			name: "the node may, in one family", ranges: "192.168.0.0/24 fd00::/8",
			v4: "192.168.0.0/24 198.51.100.1/32 198.51.100.2/32", v6: "fd00::/8",
		},
		{name: "in the other", ranges: "10.0.0.0/8 2001:db8::2/128", v4: "10.0.0.0/8",
			v6: "2001:db8::2/128 2001:db8:99::1/128"},
		{name: "by another of its addresses", ranges: "203.0.113.0/25", v4: "198.51.100.1/32 198.51.100.2/32 203.0.113.0/25"},
		{
			name: "an address of the load balancer is in a range already", ranges: "192.168.0.2/32 198.51.100.0/31",
			v4: "192.168.0.2/32 198.51.100.0/31 198.51.100.2/32",
		},
		{name: "everybody of a family", ranges: "::/0", all6: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &service.Service{LoadBalancerIPs: addrs(balancers), Sources: service.NewSources(prefixes(test.ranges))}
			for _, f := range []struct {
				family ip.Family
				want   string
				all    bool
			}{{ip.V4, test.v4, test.all4}, {ip.V6, test.v6, test.all6}} {
				sources, all := s.Firewall().Admitted(&node, f.family)
				if diff := gocmp.Diff(prefixes(f.want), sources, byValue); diff != "" || all != f.all {
					t.Errorf("%s: all %t, want %t; (-want +got):\n%s", f.family, all, f.all, diff)
				}
			}
			if diff := gocmp.Diff(prefixes(test.ranges), s.Sources.Ranges(), byValue); diff != "" {
				t.Errorf("asking changed the ranges (-before +after):\n%s", diff)
			}
		})
	}
	unrestricted := &service.Service{LoadBalancerIPs: addrs(balancers)}
	if _, all := unrestricted.Firewall().Admitted(&node, ip.V4); !all {
		t.Error("a service without source ranges is restricted")
	}
}

// TestSourcesAgainstOracle: an address is let in if one of the given ranges
// holds it, whatever became of the ranges; and the ranges that are left are
// disjoint, which the kernel's interval sets demand.
func TestSourcesAgainstOracle(t *testing.T) {
	seeds(t, 200, func(t *testing.T, rng *rand.Rand) {
		ranges := randomRanges(rng)
		s := service.NewSources(ranges)
		svc := &service.Service{Sources: s, LoadBalancerIPs: []netip.Addr{randomAddr(rng, ip.V4), randomAddr(rng, ip.V6)}}
		node := &service.Node{Addresses: []netip.Addr{randomAddr(rng, ip.V4), randomAddr(rng, ip.V6)}}
		holds := func(list []netip.Prefix, a netip.Addr) int {
			n := 0
			for _, r := range list {
				if r.Contains(a) {
					n++
				}
			}
			return n
		}
		for range 300 {
			a := randomAddr(rng, ip.Families()[rng.IntN(2)])
			given := holds(ranges, a) > 0
			of, all := s.Of(ip.Of(a))
			if got := holds(of, a); got > 1 || (got == 1 || all) != given || all && len(of) > 0 {
				t.Fatalf("%s is in %d of %v (all: %t), given were %v", a, got, of, all, ranges)
			}
			at := slices.IndexFunc(svc.LoadBalancerIPs, ip.Of(a).Has)
			want := given || a == svc.LoadBalancerIPs[at] && holds(ranges, node.Addresses[at]) > 0
			list, all := svc.Firewall().Admitted(node, ip.Of(a))
			if got := holds(list, a); got > 1 || (got == 1 || all) != want {
				t.Fatalf("%s is in %d of %v (all: %t), given were %v, node %v, load balancer %v",
					a, got, list, all, ranges, node.Addresses, svc.LoadBalancerIPs)
			}
		}
		again := slices.Clone(ranges)
		rng.Shuffle(len(again), func(i, j int) { again[i], again[j] = again[j], again[i] })
		if !s.Equal(service.NewSources(append(again, s.Ranges()...))) {
			t.Fatalf("the order matters: %v gave %v", ranges, s.Ranges())
		}
	})
}

// randomRanges are of few addresses, so that they are often nested; some have
// bits behind their length.
func randomRanges(rng *rand.Rand) []netip.Prefix {
	var list []netip.Prefix
	for range rng.IntN(8) {
		a := randomAddr(rng, ip.Families()[rng.IntN(2)])
		bits := a.BitLen() - rng.IntN(9)
		if rng.IntN(20) == 0 {
			bits = 0
		}
		list = append(list, netip.PrefixFrom(a, bits))
	}
	return list
}

func randomAddr(rng *rand.Rand, family ip.Family) netip.Addr {
	if family == ip.V6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00::%x", rng.IntN(512)))
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(rng.IntN(2)), byte(rng.IntN(256))})
}
