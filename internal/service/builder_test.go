package service_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/internal/service"
	"nftproxy/internal/service/servicetest"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})

// everything has the generator leave nothing out.
var everything = servicetest.Options{LoadBalancers: true, Affinity: true}

// contents is a snapshot as plain maps, for comparing by value.
type contents struct {
	Node         service.Node
	Services     map[service.Name]*service.Service
	CIDRs        map[string]netip.Prefix
	Conflicts    map[service.Name]*service.Conflicts
	Restrictions map[service.Name]*service.Restrictions
}

func contentsOf(s service.Snapshot) contents {
	return contents{*s.Node, maps.Collect(s.Services.All()), maps.Collect(s.ServiceCIDRs.All()), maps.Collect(s.Conflicts.All()), maps.Collect(s.Restrictions.All())}
}

func seeds(t *testing.T, n int, test func(t *testing.T, rng *rand.Rand)) {
	for seed := range uint64(n) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { test(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// TestOrderDoesNotMatter: a long history ends like the plain sum of what was
// set last, put together in any order.
func TestOrderDoesNotMatter(t *testing.T) {
	seeds(t, 50, func(t *testing.T, rng *rand.Rand) {
		b := service.NewBuilder(servicetest.Node())
		last := map[service.Name]*service.Service{}
		for _, c := range servicetest.Changes(rng, 300, everything) {
			c.Apply(b)
			last[c.Name] = c.Service
		}
		names := slices.Sorted(maps.Keys(last))
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		fresh := service.NewBuilder(servicetest.Node())
		for _, n := range names {
			servicetest.Change{Name: n, Service: last[n]}.Apply(fresh)
		}
		if diff := gocmp.Diff(contentsOf(fresh.Snapshot()), contentsOf(b.Snapshot()), byValue); diff != "" {
			t.Fatalf("fresh build and history differ (-fresh +history):\n%s", diff)
		}
	})
}

// claimsOracle is everything that the service claims, by definition.
func claimsOracle(s *service.Service) map[service.Claim]bool {
	all, families := map[service.Claim]bool{}, map[bool]bool{}
	for _, a := range s.ClusterIPs {
		families[a.Is6()] = true
		all[service.Claim{Addr: a}] = true
	}
	for _, p := range s.Ports {
		for _, a := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
			if families[a.Is6()] {
				all[service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}] = true
			}
		}
		if p.NodePort != 0 && families[false] {
			all[service.Claim{Addr: netip.MustParseAddr("0.0.0.0"), Protocol: p.Protocol, Port: p.NodePort}] = true
		}
		if p.NodePort != 0 && families[true] {
			all[service.Claim{Addr: netip.MustParseAddr("::"), Protocol: p.Protocol, Port: p.NodePort}] = true
		}
	}
	return all
}

// first is the service with the best right to the claim among those that claim
// it and of which the question holds, nil for none: those whose cluster IP it
// is on, of these the oldest; between equals the first by name.
func first(services map[service.Name]*service.Service, claim service.Claim, holds func(*service.Service) bool) *service.Service {
	var best *service.Service
	var bestKey string
	for _, s := range services {
		key := fmt.Sprint(!slices.Contains(s.ClusterIPs, claim.Addr), s.Created.UTC().Format(time.RFC3339), " ", s.Name)
		if claimsOracle(s)[claim] && holds(s) && (best == nil || key < bestKey) {
			best, bestKey = s, key
		}
	}
	return best
}

// restrictsOracle: the service keeps somebody from the claim as the address of
// its load balancer.
func restrictsOracle(s *service.Service, claim service.Claim) bool {
	everybody := s.Sources == nil || slices.ContainsFunc(s.Sources.Ranges(), func(r netip.Prefix) bool {
		return r.Bits() == 0 && r.Addr().Is6() == claim.Addr.Is6()
	})
	return claim.Port != 0 && slices.Contains(s.LoadBalancerIPs, claim.Addr) && !everybody
}

// judgeOracle works out from their definition who lost what to whom, and whose
// claims are restricted by whom.
func judgeOracle(services map[service.Name]*service.Service) (map[service.Name]*service.Conflicts, map[service.Name]*service.Restrictions) {
	conflicts, restrictions := map[service.Name]*service.Conflicts{}, map[service.Name]*service.Restrictions{}
	for name, s := range services {
		claims := slices.SortedFunc(maps.Keys(claimsOracle(s)), func(a, b service.Claim) int {
			return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
		})
		var lost []service.Conflict
		var restricted []service.Restriction
		for _, claim := range claims {
			owner := first(services, claim, func(*service.Service) bool { return true })
			by := first(services, claim, func(o *service.Service) bool { return restrictsOracle(o, claim) })
			switch {
			case owner != s:
				lost = append(lost, service.Conflict{Claim: claim, Owner: owner.Name})
			case by != nil && by != s:
				f := service.Firewall{Sources: by.Sources, Addresses: by.LoadBalancerIPs}
				restricted = append(restricted, service.Restriction{Claim: claim, By: by.Name, Firewall: f})
			}
		}
		if lost != nil {
			conflicts[name] = &service.Conflicts{Lost: lost}
		}
		if restricted != nil {
			restrictions[name] = &service.Restrictions{List: restricted}
		}
	}
	return conflicts, restrictions
}

// TestConflictsAgainstOracle checks after every single change, and that an
// earlier snapshot is not touched by later ones.
func TestConflictsAgainstOracle(t *testing.T) {
	conflicts, younger, restricted := 0, 0, 0
	seeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		b := service.NewBuilder(servicetest.Node())
		var kept []service.Snapshot
		var texts []string
		for i, c := range servicetest.Changes(rng, 150, everything) {
			c.Apply(b)
			s := b.Snapshot()
			got := contentsOf(s)
			want := got
			want.Conflicts, want.Restrictions = judgeOracle(got.Services)
			if diff := gocmp.Diff(want, got, byValue, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("change %d, %s (-want +got):\n%s\n%s", i, c.Name, diff, s)
			}
			conflicts += len(got.Conflicts)
			for _, restrictions := range got.Restrictions {
				for _, r := range restrictions.List {
					if found, ok := restrictions.On(r.Claim); !ok || found.By != r.By {
						t.Fatalf("On: %v is restricted by %s, found %s", r.Claim, r.By, found.By)
					}
					restricted++
				}
			}
			for name, lost := range got.Conflicts {
				for _, l := range lost.Lost {
					if !lost.Has(l.Claim) || got.Conflicts[l.Owner].Has(l.Claim) {
						t.Fatalf("Has: %s lost %v to %s", name, l.Claim, l.Owner)
					}
					if service.CompareAge(got.Services[name], got.Services[l.Owner]) < 0 {
						younger++
					}
				}
			}
			kept, texts = append(kept, s), append(texts, s.String())
		}
		for i := range kept {
			if kept[i].String() != texts[i] {
				t.Fatalf("snapshot %d changed afterwards:\n%s", i, gocmp.Diff(texts[i], kept[i].String()))
			}
		}
	})
	if conflicts == 0 || younger == 0 || restricted == 0 {
		t.Fatalf("%d conflicts, %d of them won by a younger service, %d restrictions: nothing was tested", conflicts, younger, restricted)
	}
}

// TestUnchangedKeepsItsPointer: a change touches its own service only, and an
// equal service nothing at all.
func TestUnchangedKeepsItsPointer(t *testing.T) {
	seeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		b := service.NewBuilder(servicetest.Node())
		for _, c := range servicetest.Changes(rng, 200, everything) {
			before := b.Snapshot()
			c.Apply(b)
			after := b.Snapshot()
			for name, s := range before.Services.All() {
				if name != c.Name && after.Services.At(name) != s {
					t.Fatalf("a change of %s replaced %s", c.Name, name)
				}
			}
			if c.Service == nil {
				continue
			}
			b.Set(deepCopy(c.Service))
			b.SetNode(servicetest.Node())
			if b.Snapshot() != after {
				t.Fatalf("setting an equal %s changed the snapshot", c.Name)
			}
		}
	})
}

func deepCopy(s *service.Service) *service.Service {
	c := *s
	c.ClusterIPs, c.ExternalIPs, c.LoadBalancerIPs = slices.Clone(s.ClusterIPs), slices.Clone(s.ExternalIPs), slices.Clone(s.LoadBalancerIPs)
	if s.Sources != nil {
		c.Sources = service.NewSources(s.Sources.Ranges())
	}
	c.Ports = slices.Clone(s.Ports)
	for i := range c.Ports {
		c.Ports[i].Endpoints = slices.Clone(c.Ports[i].Endpoints)
	}
	return &c
}

// TestEveryFieldCounts: a change of any one field is a change.
func TestEveryFieldCounts(t *testing.T) {
	base := &service.Service{
		Name:            "default/web",
		Created:         time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		ExternalIPs:     []netip.Addr{netip.MustParseAddr("198.51.100.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
		Sources:         service.NewSources([]netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}),
		AffinityTimeout: time.Minute, HealthCheckNodePort: 32000,
		Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080, Endpoints: []service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Node: "node-0", Ready: true, Serving: true},
		}}},
	}
	for name, change := range map[string]func(s *service.Service){
		"created":       func(s *service.Service) { s.Created = s.Created.Add(time.Second) },
		"cluster IP":    func(s *service.Service) { s.ClusterIPs[0] = netip.MustParseAddr("10.96.0.2") },
		"external IP":   func(s *service.Service) { s.ExternalIPs = nil },
		"load balancer": func(s *service.Service) { s.LoadBalancerIPs[0] = netip.MustParseAddr("203.0.113.2") },
		"sources": func(s *service.Service) {
			s.Sources = service.NewSources([]netip.Prefix{netip.MustParsePrefix("192.168.0.0/25")})
		},
		"open":          func(s *service.Service) { s.Sources = nil },
		"closed":        func(s *service.Service) { s.Sources = service.NewSources(nil) },
		"internal":      func(s *service.Service) { s.InternalPolicy = service.Local },
		"external":      func(s *service.Service) { s.ExternalPolicy = service.Local },
		"affinity":      func(s *service.Service) { s.AffinityTimeout = 0 },
		"health port":   func(s *service.Service) { s.HealthCheckNodePort++ },
		"no port":       func(s *service.Service) { s.Ports = nil },
		"port name":     func(s *service.Service) { s.Ports[0].Name = "" },
		"protocol":      func(s *service.Service) { s.Ports[0].Protocol = service.UDP },
		"port":          func(s *service.Service) { s.Ports[0].Port++ },
		"node port":     func(s *service.Service) { s.Ports[0].NodePort = 0 },
		"no endpoint":   func(s *service.Service) { s.Ports[0].Endpoints = nil },
		"endpoint":      func(s *service.Service) { s.Ports[0].Endpoints[0].Addr = netip.MustParseAddrPort("10.0.0.1:8081") },
		"endpoint node": func(s *service.Service) { s.Ports[0].Endpoints[0].Node = "node-1" },
		"ready":         func(s *service.Service) { s.Ports[0].Endpoints[0].Ready = false },
		"serving":       func(s *service.Service) { s.Ports[0].Endpoints[0].Serving = false },
		"terminating":   func(s *service.Service) { s.Ports[0].Endpoints[0].Terminating = true },
		"node hints":    func(s *service.Service) { s.Ports[0].Endpoints[0].Nodes = "node-0" },
		"zone hints":    func(s *service.Service) { s.Ports[0].Endpoints[0].Zones = "zone-0" },
	} {
		t.Run(name, func(t *testing.T) {
			b := service.NewBuilder(servicetest.Node())
			b.Set(base)
			changed := deepCopy(base)
			change(changed)
			b.Set(changed)
			if b.Snapshot().Services.At(base.Name) != changed {
				t.Fatalf("went unnoticed:\n%s", changed)
			}
		})
	}
	for name, change := range map[string]func(n *service.Node){
		"name":           func(n *service.Node) { n.Name = "other" },
		"addresses":      func(n *service.Node) { n.Addresses = n.Addresses[:1] },
		"zone":           func(n *service.Node) { n.Zone = "" },
		"eligible":       func(n *service.Node) { n.Eligible = !n.Eligible },
		"pod CIDRs":      func(n *service.Node) { n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")} },
		"host addresses": func(n *service.Node) { n.HostAddresses = n.HostAddresses[:1] },
	} {
		t.Run("node "+name, func(t *testing.T) {
			b := service.NewBuilder(servicetest.Node())
			before := b.Snapshot().Node
			node := servicetest.Node()
			change(&node)
			b.SetNode(node)
			if b.Snapshot().Node == before {
				t.Fatal("went unnoticed")
			}
		})
	}
}

func TestIDAndName(t *testing.T) {
	long := strings.Repeat("n", 63)
	s := &service.Service{Name: service.NewName(long, long), Ports: []service.Port{{Name: long, Port: 80}, {Port: 81}}}
	got := []string{s.ID(&s.Ports[0]), s.ID(&s.Ports[1])}
	want := []string{long + "/" + long + ":" + long, long + "/" + long + ":81"}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("ID (-want +got):\n%s", diff)
	}
	if ns, name := s.Name.Split(); ns != long || name != long {
		t.Errorf("Split: %s, %s", ns, name)
	}
}

func BenchmarkSetOneOf10000(b *testing.B) {
	builder := service.NewBuilder(servicetest.Node())
	for i := range 10_000 {
		builder.Set(servicetest.UniformService(i, 10))
	}
	variants := []*service.Service{servicetest.UniformService(5000, 10), servicetest.UniformService(5000, 9)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		builder.Set(variants[i%2])
	}
}
