package snapshots_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"nftproxy/model/claims"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

var byValue = cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{})

// difference is what gocmp.Diff prints. It compares with reflect.DeepEqual first,
// which takes a tenth of the time and is as strict.
func difference(want, got any, options ...gocmp.Option) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return gocmp.Diff(want, got, options...)
}

// everything has the generator leave nothing out.
var everything = gen.Everything()

// contents is a snapshot as plain maps, for comparing by value.
type contents struct {
	Node         service.Node
	Services     map[service.Name]*service.Service
	CIDRs        map[string]netip.Prefix
	Conflicts    map[service.Name][]conflict
	Restrictions map[service.Name][]service.Restriction
	LeftOut      map[service.Name]*service.LeftOut
}

// conflict is one with the service that has the claim.
type conflict struct {
	service.Conflict
	Owner service.Name
}

func contentsOf(s service.Snapshot) contents {
	c := contents{
		*s.Node, maps.Collect(s.Services.All()), maps.Collect(s.ServiceCIDRs.All()),
		conflictsOf(s), map[service.Name][]service.Restriction{}, maps.Collect(s.LeftOut.All()),
	}
	for name, restrictions := range s.Restrictions.All() {
		c.Restrictions[name] = slices.Collect(restrictions.All())
	}
	return c
}

func conflictsOf(s service.Snapshot) map[service.Name][]conflict {
	all := map[service.Name][]conflict{}
	for name, conflicts := range s.Conflicts.All() {
		for c := range conflicts.All() {
			all[name] = append(all[name], conflict{c, s.Owners.Of(c.Claim)})
		}
	}
	return all
}

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

// TestOrderDoesNotMatter: a long history, with endpoints that grow, ends like the plain sum of what was
// set last, put together in any order.
func TestOrderDoesNotMatter(t *testing.T) {
	seeds(t, 50, func(t *testing.T, rng *rand.Rand) {
		b := snapshots.NewBuilder(gen.PlainNode())
		set := map[service.Name]*service.Service{}
		growth := rand.New(rand.NewPCG(0, 7))
		for _, c := range gen.Changes(rng, 300, everything) {
			c.Apply(b)
			if set[c.Name] = c.Service; c.Service == nil {
				delete(set, c.Name)
			}
			if growth.IntN(20) == 0 {
				b.SetGrowing(gen.Growth(growth, b.Snapshot()))
			}
		}
		fresh := snapshots.NewBuilder(gen.PlainNode())
		fresh.SetGrowing(b.Snapshot().Adjustments)
		sameAfresh(t, rng, b, fresh, set)
	})
}

// sameAfresh puts the services that are left after a history together in another order, with a
// snapshot now and then, and compares.
func sameAfresh(t *testing.T, rng *rand.Rand, history, fresh *snapshots.Builder,
	set map[service.Name]*service.Service) {
	t.Helper()
	names := slices.Sorted(maps.Keys(set))
	rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	for _, name := range names {
		fresh.Set(set[name])
		if rng.IntN(4) == 0 {
			fresh.Snapshot()
		}
	}
	if diff := difference(contentsOf(fresh.Snapshot()), contentsOf(history.Snapshot()), byValue,
		cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("fresh build and history differ (-fresh +history):\n%s", diff)
	}
}

// quarter is what one namespace may use up of a bound.
func quarter(limit int) int { return (limit + 3) / 4 }

// claimsOracle is everything that the service claims, by definition.
func claimsOracle(s *service.Service) map[service.Claim]bool {
	all, families := map[service.Claim]bool{}, map[ip.Family]bool{}
	for _, a := range s.ClusterIPs {
		families[ip.Of(a)] = true
		all[service.Claim{Addr: a}] = true
	}
	for family := range families {
		if s.HealthCheckNodePort != 0 {
			all[s.HealthCheckClaim(family)] = true
		}
	}
	for _, p := range s.Ports {
		for _, a := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
			if families[ip.Of(a)] {
				all[service.Claim{Addr: a, Protocol: p.Protocol, Port: p.Port}] = true
			}
		}
		for family := range families {
			if p.NodePort != 0 {
				all[service.Claim{Addr: family.Unspecified(), Protocol: p.Protocol, Port: p.NodePort}] = true
			}
		}
	}
	return all
}

// first returns the claimant with the best right to the claim, among those for which
// holds is true; nil for none. A claim on its own cluster IP comes first, then one on its
// load balancer's address. Between equals the oldest comes first, then the first by name.
func first(claimants []*service.Service, claim service.Claim, holds func(*service.Service) bool) *service.Service {
	var best *service.Service
	var bestKey string
	for _, s := range claimants {
		if !holds(s) {
			continue
		}
		key := fmt.Sprint(rankOracle(s, claim), s.Created.UTC().Format(time.RFC3339), " ", s.Name)
		if best == nil || key < bestKey {
			best, bestKey = s, key
		}
	}
	return best
}

// rankOracle is how good the service's right is, 0 the best.
func rankOracle(s *service.Service, claim service.Claim) int {
	for i, addrs := range [][]netip.Addr{s.ClusterIPs, s.LoadBalancerIPs} {
		if slices.Contains(addrs, claim.Addr) {
			return i
		}
	}
	return 2
}

// restrictsOracle says whether the service keeps some source from the claim, as the
// address of its load balancer.
func restrictsOracle(s *service.Service, claim service.Claim) bool {
	everybody := s.Sources == nil || slices.ContainsFunc(s.Sources.Ranges(), func(r netip.Prefix) bool {
		return r.Bits() == 0 && r.Addr().Is6() == claim.Addr.Is6()
	})
	return claim.Port != 0 && slices.Contains(s.LoadBalancerIPs, claim.Addr) && !everybody
}

// claimsDecided works out conflicts and restrictions from their definition.
func claimsDecided(services map[service.Name]*service.Service,
	protected claims.Protected) (map[service.Name][]conflict, map[service.Name][]service.Restriction) {
	conflicts, restrictions := map[service.Name][]conflict{}, map[service.Name][]service.Restriction{}
	claimants := map[service.Claim][]*service.Service{}
	for _, s := range services {
		for claim := range claimsOracle(s) {
			claimants[claim] = append(claimants[claim], s)
		}
	}
	for name, s := range services {
		claims := slices.SortedFunc(maps.Keys(claimsOracle(s)), func(a, b service.Claim) int {
			return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
		})
		for _, claim := range claims {
			owner := first(claimants[claim], claim, func(*service.Service) bool { return true })
			by := first(claimants[claim], claim, func(o *service.Service) bool { return restrictsOracle(o, claim) })
			found := conflict{service.Conflict{Claim: claim}, ""}
			if len(claimants[claim]) > 1 {
				found.Owner = owner.Name
			}
			// Ranges with the port may be somebody's who has a better right.
			ranges := first(claimants[claim.Range()], claim, func(*service.Service) bool { return true })
			overBy := func(s *service.Service) bool {
				if !claim.Range().IsRange() || claim.IsRange() || ranges == nil || ranges == s ||
					!rangesOracle(ranges, claim.Protocol).Has(claim.Port) {
					return false
				}
				return guardOracle(services, ranges, claim.Range(), protected) == "" && first([]*service.Service{s, ranges}, claim,
					func(*service.Service) bool { return true }) == ranges
			}
			if overBy(owner) {
				found.Owner = ranges.Name
			}
			switch why := guardOracle(services, s, claim, protected); {
			case why != "":
				found.Protected = why
				conflicts[name] = append(conflicts[name], found)
			case owner != s, overBy(s):
				conflicts[name] = append(conflicts[name], found)
			case by != nil && by != s:
				f := service.Firewall{Sources: by.Sources, Addresses: by.LoadBalancerIPs}
				restrictions[name] = append(restrictions[name], service.Restriction{Claim: claim, By: by.Name, Firewall: f})
			}
		}
	}
	return conflicts, restrictions
}

// protectedForTest are a few of the claims that services of the pool make.
func protectedForTest(rng *rand.Rand) claims.Protected {
	p := claims.Protected{}
	for range rng.IntN(8) {
		pool := addrs("198.51.100.1 198.51.100.2 203.0.113.1 2001:db8:99::1 2001:db8:113::1 10.96.0.1 10.96.0.2")
		claim := service.Claim{Addr: pool[rng.IntN(len(pool))], Protocol: service.TCP, Port: uint16(80 + rng.IntN(4))}
		p[claim] = claims.Protector{Protection: "a test's", FromLoadBalancers: rng.IntN(2) == 0}
	}
	return p
}

// TestConflictsAgainstOracle checks after every change or few, and that an
// earlier snapshot is not touched by later ones.
func TestConflictsAgainstOracle(t *testing.T) {
	conflicts, younger, restricted, guarded := 0, 0, 0, 0
	seeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		b := snapshots.NewBuilder(gen.PlainNode())
		protected := claims.Protected{}
		var kept []service.Snapshot
		var texts []string
		for i, c := range gen.Changes(rng, 150, everything) {
			c.Apply(b)
			if rng.IntN(10) == 0 {
				protected = protectedForTest(rng)
				b.SetProtected(protected)
			}
			if rng.IntN(4) == 0 {
				continue // several changes are decided at once
			}
			s := b.Snapshot()
			got := contentsOf(s)
			wantConflicts, wantRestrictions := claimsDecided(got.Services, protected)
			for _, diff := range []string{
				difference(wantConflicts, got.Conflicts, byValue), difference(wantRestrictions, got.Restrictions, byValue),
			} {
				if diff != "" {
					t.Fatalf("change %d, %s (-want +got):\n%s\n%s", i, c.Name, diff, s)
				}
			}
			conflicts += len(got.Conflicts)
			for name, restrictions := range got.Restrictions {
				for _, r := range restrictions {
					if found, ok := s.Restrictions.At(name).On(r.Claim); !ok || found.By != r.By {
						t.Fatalf("On: %v is restricted by %s, found %s", r.Claim, r.By, found.By)
					}
					restricted++
				}
			}
			for name, list := range got.Conflicts {
				if n := s.Conflicts.At(name).Len(); n != len(list) {
					t.Fatalf("Len: %d of %d", n, len(list))
				}
				for _, l := range list {
					if l.Protected != "" {
						guarded++
						continue
					}
					if !s.Conflicts.At(name).Has(l.Claim) || s.Conflicts.At(l.Owner).Has(l.Claim) {
						t.Fatalf("Has: %s has a conflict over %v with %s", name, l.Claim, l.Owner)
					}
					if compareAge(got.Services[name], got.Services[l.Owner]) < 0 {
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
	if conflicts == 0 || younger == 0 || restricted == 0 || guarded == 0 {
		t.Fatalf("%d conflicts, %d of them won by a younger service, %d restrictions, %d protected: nothing was tested",
			conflicts, younger, restricted, guarded)
	}
}

// TestUnchangedKeepsItsPointer: a change touches its own service only, and an
// equal service nothing at all.
func TestUnchangedKeepsItsPointer(t *testing.T) {
	seeds(t, 20, func(t *testing.T, rng *rand.Rand) {
		b := snapshots.NewBuilder(gen.PlainNode())
		for _, c := range gen.Changes(rng, 200, everything) {
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
			b.SetNode(gen.PlainNode())
			if b.Snapshot() != after {
				t.Fatalf("setting an equal %s changed the snapshot", c.Name)
			}
		}
	})
}

func deepCopy(s *service.Service) *service.Service {
	c := *s
	c.ClusterIPs, c.ExternalIPs, c.LoadBalancerIPs = slices.Clone(s.ClusterIPs), slices.Clone(s.ExternalIPs),
		slices.Clone(s.LoadBalancerIPs)
	if s.Sources != nil {
		c.Sources = service.NewSources(s.Sources.Ranges())
	}
	c.Ports = slices.Clone(s.Ports)
	for i := range c.Ports {
		c.Ports[i].Endpoints = service.MergeEndpoints(slices.Collect(c.Ports[i].Endpoints.All()))
	}
	return &c
}

// TestEveryFieldCounts: a change of any one field is a change.
func TestEveryFieldCounts(t *testing.T) {
	first := service.Endpoint{Addr: netip.MustParseAddrPort("10.0.0.1:8080"), Node: "node-0", Ready: true, Serving: true}
	base := &service.Service{
		Name:            "default/web",
		Created:         time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		ClusterIPs:      []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		ExternalIPs:     []netip.Addr{netip.MustParseAddr("198.51.100.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")},
		Sources:         service.NewSources([]netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}),
		AffinityTimeout: time.Minute, HealthCheckNodePort: 32000,
		Ports: []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080,
			Endpoints: service.MergeEndpoints([]service.Endpoint{first})}},
	}
	for name, change := range map[string]func(s *service.Service){
		"created":       func(s *service.Service) { s.Created = s.Created.Add(time.Second) },
		"cluster IP":    func(s *service.Service) { s.ClusterIPs[0] = netip.MustParseAddr("10.96.0.2") },
		"external IP":   func(s *service.Service) { s.ExternalIPs = nil },
		"load balancer": func(s *service.Service) { s.LoadBalancerIPs[0] = netip.MustParseAddr("203.0.113.2") },
		"sources": func(s *service.Service) {
			s.Sources = service.NewSources([]netip.Prefix{netip.MustParsePrefix("192.168.0.0/25")})
		},
		"open":        func(s *service.Service) { s.Sources = nil },
		"closed":      func(s *service.Service) { s.Sources = service.NewSources(nil) },
		"internal":    func(s *service.Service) { s.InternalPolicy = service.Local },
		"external":    func(s *service.Service) { s.ExternalPolicy = service.Local },
		"affinity":    func(s *service.Service) { s.AffinityTimeout = 0 },
		"health port": func(s *service.Service) { s.HealthCheckNodePort++ },
		"no port":     func(s *service.Service) { s.Ports = nil },
		"port name":   func(s *service.Service) { s.Ports[0].Name = "" },
		"protocol":    func(s *service.Service) { s.Ports[0].Protocol = service.UDP },
		"port":        func(s *service.Service) { s.Ports[0].Port++ },
		"node port":   func(s *service.Service) { s.Ports[0].NodePort = 0 },
		"no endpoint": func(s *service.Service) { s.Ports[0].Endpoints = service.Endpoints{} },
		"endpoint": func(s *service.Service) {
			s.Ports[0].Endpoints.Find(first).Addr = netip.MustParseAddrPort("10.0.0.1:8081")
		},
		"endpoint node": func(s *service.Service) { s.Ports[0].Endpoints.Find(first).Node = "node-1" },
		"ready":         func(s *service.Service) { s.Ports[0].Endpoints.Find(first).Ready = false },
		"serving":       func(s *service.Service) { s.Ports[0].Endpoints.Find(first).Serving = false },
		"terminating":   func(s *service.Service) { s.Ports[0].Endpoints.Find(first).Terminating = true },
		"node hints":    func(s *service.Service) { s.Ports[0].Endpoints.Find(first).Nodes = "node-0" },
		"zone hints":    func(s *service.Service) { s.Ports[0].Endpoints.Find(first).Zones = "zone-0" },
	} {
		t.Run(name, func(t *testing.T) {
			b := snapshots.NewBuilder(gen.PlainNode())
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
		"name":             func(n *service.Node) { n.Name = "other" },
		"addresses":        func(n *service.Node) { n.Addresses = n.Addresses[:1] },
		"zone":             func(n *service.Node) { n.Zone = "" },
		"eligible":         func(n *service.Node) { n.Eligible = !n.Eligible },
		"pending":          func(n *service.Node) { n.AddressPending = !n.AddressPending },
		"pod CIDRs":        func(n *service.Node) { n.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")} },
		"host addresses":   func(n *service.Node) { n.HostAddresses = n.HostAddresses[:1] },
		"shared addresses": func(n *service.Node) { n.SharedAddresses = n.HostAddresses[:1] },
	} {
		t.Run("node "+name, func(t *testing.T) {
			b := snapshots.NewBuilder(gen.PlainNode())
			before := b.Snapshot().Node
			node := gen.PlainNode()
			change(&node)
			b.SetNode(node)
			if b.Snapshot().Node == before {
				t.Fatal("went unnoticed")
			}
		})
	}
}

func BenchmarkSetOneOf10000(b *testing.B) {
	builder := snapshots.NewBuilder(gen.PlainNode())
	for i := range 10_000 {
		builder.Set(gen.UniformService(i, 10))
	}
	variants := []*service.Service{gen.UniformService(5000, 10), gen.UniformService(5000, 9)}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		builder.Set(variants[i%2])
	}
}

// compareAge orders services by age, the oldest first. The name decides between equal times. Retained
// services count as the youngest.
func compareAge(a, b *service.Service) int {
	if retained := a.Retained == service.RetainedService; retained != (b.Retained == service.RetainedService) {
		if retained {
			return 1
		}
		return -1
	}
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

func addrs(words string) []netip.Addr {
	var list []netip.Addr
	for _, w := range strings.Fields(words) {
		list = append(list, netip.MustParseAddr(w))
	}
	return list
}
