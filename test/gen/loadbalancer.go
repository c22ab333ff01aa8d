package gen

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// mutateRarely sometimes changes load balancer, affinity or annotations, as Options allow; false means
// that it changed nothing.
func mutateRarely(rng *rand.Rand, s *service.Service, o Options) bool {
	switch {
	case o.LoadBalancers && rng.IntN(5) == 0:
		if rng.IntN(2) == 0 {
			s.LoadBalancerIPs = loadBalancerIPs(rng, s, o)
		} else {
			s.Sources = sources(rng).And(s.Options.SourceRanges)
		}
		return true
	case o.Affinity && rng.IntN(6) == 0:
		s.AffinityTimeout = affinityTimeout(rng)
		return true
	case o.Annotations && rng.IntN(6) == 0:
		s.Options = options(rng, s)
		s.Sources = s.Sources.And(s.Options.SourceRanges)
		return true
	}
	return false
}

// loadBalancerIPs returns up to two addresses of each family of the service. The last
// address of the pool is also a cluster IP, the last but one also an external address.
func loadBalancerIPs(rng *rand.Rand, s *service.Service, o Options) []netip.Addr {
	var addrs []netip.Addr
	for _, f := range []struct {
		family                  ip.Family
		pool, external, cluster string
	}{
		{ip.V4, "203.0.113.%d", "198.51.100.%d", "10.96.0.%d"},
		{ip.V6, "2001:db8:113::%x", "2001:db8:99::%x", "fd00:96::%x"},
	} {
		for range max(0, rng.IntN(5)-2) {
			at := rng.IntN(o.LoadBalancerIPs + 2)
			a := address(f.pool, at)
			switch at - o.LoadBalancerIPs {
			case 0:
				a = address(f.external, 0)
			case 1:
				a = address(f.cluster, 1)
			}
			if s.InFamily(f.family) && !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

// sources returns nil for every second service, else up to four ranges: nested ones, all
// addresses of a family, clients, pods and Node. Without a range it lets nobody in.
func sources(rng *rand.Rand) *service.Sources {
	if rng.IntN(2) == 0 {
		return nil
	}
	var ranges []netip.Prefix
	for range rng.IntN(5) {
		pool := []string{
			"0.0.0.0/0", "192.168.0.0/16", "192.168.0.0/24", "192.168.0.2/32", "10.0.0.0/8", "10.0.0.0/29", "10.0.0.4/30",
			"203.0.113.0/25", "203.0.113.1/32",
			"::/0", "2001:db8::/32", "2001:db8::/64", "2001:db8::2/128", "fd00:1::/64", "fd00:1::/125", "fd00:1::4/126",
		}
		ranges = append(ranges, netip.MustParsePrefix(pool[rng.IntN(len(pool))]))
	}
	return service.NewSources(ranges)
}

// affinityTimeout returns one of a few time-outs, since each has chains of its own, and 0
// for every second service.
func affinityTimeout(rng *rand.Rand) time.Duration {
	return []time.Duration{0, 0, 0, 5 * time.Second, time.Minute, 3 * time.Hour}[rng.IntN(6)]
}

// PodCIDRs returns ranges of a node's pods: of one family, both or neither, sometimes two
// of one. Some contain all addresses of endpoints, some only a few.
func PodCIDRs(rng *rand.Rand) []netip.Prefix {
	var list []netip.Prefix
	for range rng.IntN(4) {
		pool := []string{"10.0.0.0/8", "10.0.0.0/29", "10.0.0.8/30", "10.1.0.0/24", "fd00:1::/64", "fd00:1::/125",
			"fd00:2::/64"}
		if r := netip.MustParsePrefix(pool[rng.IntN(len(pool))]); !slices.Contains(list, r) {
			list = append(list, r)
		}
	}
	return list
}
