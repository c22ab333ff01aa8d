package gen_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/test/gen"
)

// TestVariety: a stream of changes has of every kind what the readers' tests
// are about, and without Options for it nothing of that kind.
func TestVariety(t *testing.T) {
	kinds := []struct {
		name     string
		optional bool
		is       func(*service.Service) bool
	}{
		{"node port", false, func(s *service.Service) bool { return s.Ports[0].NodePort != 0 }},
		{"external IPs", false, func(s *service.Service) bool { return len(s.ExternalIPs) > 0 }},
		{"dual-stack", false, func(s *service.Service) bool { return len(s.ClusterIPs) == 2 }},
		{"load balancer", true, func(s *service.Service) bool { return len(s.LoadBalancerIPs) > 0 }},
		{"load balancer's address is an external one", true, func(s *service.Service) bool {
			return slices.ContainsFunc(s.LoadBalancerIPs, func(a netip.Addr) bool { return slices.Contains(s.ExternalIPs, a) })
		}},
		{"closed", true, func(s *service.Service) bool { return s.Sources != nil && len(s.Sources.Ranges()) == 0 }},
		{"restricted", true, func(s *service.Service) bool { return len(s.Sources.Ranges()) > 0 }},
		{"open in one family, restricted in the other", true, func(s *service.Service) bool {
			_, all4 := s.Sources.Of(ip.V4)
			list, all6 := s.Sources.Of(ip.V6)
			return all4 && !all6 && len(list) > 0
		}},
		{"health check node port", true, func(s *service.Service) bool { return s.HealthCheckNodePort != 0 }},
		{"affinity", true, func(s *service.Service) bool { return s.AffinityTimeout != 0 }},
		{"external-failover: pass", true, func(s *service.Service) bool {
			return s.Options.ExternalFailover == service.FailoverPass
		}},
		{"port-ranges", true, func(s *service.Service) bool { return len(s.Ports) > 0 && s.Ports[len(s.Ports)-1].IsRange() }},
		{"external-failover: cluster", true, func(s *service.Service) bool {
			return s.Options.ExternalFailover == service.FailoverCluster
		}},
		{"source-ranges", true, func(s *service.Service) bool { return len(s.Options.SourceRanges.Ranges()) > 0 }},
		{"source-ranges: none", true, func(s *service.Service) bool {
			return s.Options.SourceRanges != nil && len(s.Options.SourceRanges.Ranges()) == 0
		}},
	}
	for _, opts := range []gen.Options{{}, gen.Everything()} {
		changes := gen.Changes(rand.New(rand.NewPCG(1, 1)), 2000, opts)
		for _, k := range kinds {
			n := 0
			for _, c := range changes {
				if c.Service != nil && k.is(c.Service) {
					n++
				}
			}
			if want := opts.Affinity || !k.optional; want != (n > 0) {
				t.Errorf("options %+v: %s: %d of %d", opts, k.name, n, len(changes))
			}
		}
	}
	rng, lengths := rand.New(rand.NewPCG(1, 1)), map[int]bool{}
	for range 100 {
		lengths[len(gen.PodCIDRs(rng))] = true
	}
	for n := range 4 {
		if !lengths[n] {
			t.Errorf("no node has %d pod ranges", n)
		}
	}
}
