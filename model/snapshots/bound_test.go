package snapshots_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// large asks for everything that a service can ask for.
func large(external, balancers, ports, endpoints int) *service.Service {
	s := withEndpoints(wide("large", 1, external, ports), endpoints)
	for i := range balancers {
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}))
	}
	for i := range s.Ports {
		s.Ports[i].NodePort = uint16(30000 + i)
	}
	return s
}

// elements is what a service costs, by definition.
func elements(s *service.Service) int {
	n := len(s.ClusterIPs)
	for _, p := range s.Ports {
		for _, a := range s.Addresses() {
			lists := 1
			if !slices.Contains(s.ClusterIPs, a) && s.ExternalPolicy == service.Local {
				lists = 2
			}
			n++
			if f := s.Firewall(); f.Restricts(service.Claim{Addr: a, Protocol: p.Protocol, Port: 1}) {
				for _, from := range f.Addresses {
					if from.Is6() == a.Is6() {
						n++
					}
				}
			}
			for e := range p.Endpoints.All() {
				if e.Addr.Addr().Is6() == a.Is6() {
					n += lists
				}
			}
		}
		for _, family := range ip.Families() {
			if p.NodePort == 0 || !s.InFamily(family) {
				continue
			}
			n++
			for e := range p.Endpoints.All() {
				if family.Has(e.Addr.Addr()) {
					n++
					if s.ExternalPolicy == service.Local {
						n++
					}
				}
			}
		}
	}
	return n
}

// TestBound: beyond the bound what comes last is left out, and counted.
func TestBound(t *testing.T) {
	for _, test := range []struct {
		name  string
		limit int
		want  service.LeftOut
	}{
		// For each address or node port: 2 ports with 3 endpoints are 8.
		{"all", 1 + 8*(1+1+2+3), service.LeftOut{}},
		{"an external IP", 8 * (1 + 1 + 2 + 3), service.LeftOut{ExternalIPs: 1}},
		{"all external IPs", 1 + 8*(1+1+2), service.LeftOut{ExternalIPs: 3}},
		{"a load balancer", 8 * (1 + 1 + 2), service.LeftOut{ExternalIPs: 3, LoadBalancerIPs: 1}},
		{"a node port", 1 + 8 + 7, service.LeftOut{ExternalIPs: 3, LoadBalancerIPs: 2, NodePorts: 1}},
		{"a port", 1 + 7, service.LeftOut{ExternalIPs: 3, LoadBalancerIPs: 2, NodePorts: 1, Ports: 1}},
		{"all ports", 1 + 3, service.LeftOut{ExternalIPs: 3, LoadBalancerIPs: 2, Ports: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := snapshots.NewBuilder(gen.PlainNode())
			b.SetMaxElements(test.limit)
			s := large(3, 2, 2, 3)
			b.Set(s)
			snapshot := b.Snapshot()
			served, left := snapshot.Services.At(s.Name), snapshot.LeftOut.At(s.Name)
			if n := elements(served); n > test.limit {
				t.Errorf("%d elements, more than %d", n, test.limit)
			}
			if b.Service(s.Name) != s {
				t.Error("the builder forgot what was asked for")
			}
			if test.want == (service.LeftOut{}) {
				if left != nil || served != s {
					t.Errorf("%v", left)
				}
				return
			}
			test.want.Limit = test.limit
			if diff := gocmp.Diff(&test.want, left); diff != "" {
				t.Errorf("left out (-want +got):\n%s", diff)
			}
			b.Set(large(0, 0, 1, 0))
			if got := b.Snapshot(); got.LeftOut.Len() != 0 || len(got.Services.At(s.Name).Ports) != 1 {
				t.Errorf("a small one in its place is\n%s", got)
			}
		})
	}
}

// TestBoundAgainstOracle: random services cost what the bound allows, and one
// that is within it is left alone.
func TestBoundAgainstOracle(t *testing.T) {
	cut, whole := 0, 0
	for _, limit := range []int{1, 5, 20, 60, 200} {
		for seed := range uint64(100) {
			b := snapshots.NewBuilder(gen.PlainNode())
			b.SetMaxElements(limit)
			rng := rand.New(rand.NewPCG(seed, 1))
			s := gen.Service(rng, gen.Options{LoadBalancers: true, Affinity: true})
			b.Set(s)
			snapshot := b.Snapshot()
			served, left := snapshot.Services.At(s.Name), snapshot.LeftOut.At(s.Name)
			switch n := elements(served); {
			case n > limit && len(served.Ports) > 0:
				t.Fatalf("%d elements, more than %d:\n%s", n, limit, served)
			case left == nil && served != s, left != nil && elements(s) <= limit, left == nil && elements(s) > limit:
				t.Fatalf("limit %d, %d elements, of which %d; %v:\n%s", limit, elements(s), n, left, s)
			case left == nil:
				whole++
			default:
				cut++
			}
		}
	}
	if cut == 0 || whole == 0 {
		t.Fatalf("%d cut, %d whole", cut, whole)
	}
}

// TestBoundSlots: a service that asks for more slots than fit a quarter of the limit gets fewer, and nothing else of it
// is left out because of them.
func TestBoundSlots(t *testing.T) {
	const all = 1 + 3*(1+10) // of a service without slots
	for _, test := range []struct {
		limit int
		want  service.LeftOut
	}{
		{4 * (1 + 3*(1+1021)), service.LeftOut{}},
		{4 * 3 * (1 + 1021), service.LeftOut{Limit: 3 * (1 + 1021), SlotLimit: 251}},
		{4 * (1 + 3*(1+251)), service.LeftOut{Limit: 1 + 3*(1+251), SlotLimit: 251}},
		{4 * 3 * (1 + 251), service.LeftOut{Limit: 3 * (1 + 251), SlotLimit: 1}},
		{all, service.LeftOut{Limit: all, SlotLimit: 1}},
		{all - 1, service.LeftOut{Limit: all - 1, SlotLimit: 1, ExternalIPs: 1}},
	} {
		b := snapshots.NewBuilder(gen.PlainNode())
		b.SetMaxElements(test.limit)
		s := large(2, 0, 1, 10)
		s.Ports[0].NodePort = 0
		s.Options.Balance = service.ByClient
		b.Set(s)
		snapshot := b.Snapshot()
		served, left := snapshot.Services.At(s.Name), snapshot.LeftOut.At(s.Name)
		if left == nil {
			left = &service.LeftOut{}
		} else {
			t.Log(left)
		}
		if *left != test.want || served.SlotLimit != left.SlotLimit {
			t.Errorf("limit %d: %+v and the limit %d of slots, want %+v", test.limit, *left, served.SlotLimit, test.want)
		}
	}
}

// TestAmplification: a small object with thousands of times as many elements is
// held to the default bound, and neither its claims nor its endpoints cost more.
func TestAmplification(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	s := large(100, 0, 20, 500)
	b.Set(s)
	if asks, gets := elements(s), elements(b.Snapshot().Services.At(s.Name)); asks < 1_000_000 ||
		gets > service.DefaultMaxElements {
		t.Errorf("asks for %d elements, gets %d", asks, gets)
	}
	// 40,000 addresses and 5,000 ports are 200 million claims.
	huge := large(40_000, 0, 5_000, 0)
	b = snapshots.NewBuilder(gen.PlainNode())
	if n := allocations(func() { b.Set(huge); b.Snapshot(); b.Delete(huge.Name) }); n > 100_000 {
		t.Errorf("%.0f allocations", n)
	}
}

// TestBoundOfPairs: load balancer's addresses that source ranges restrict may reach each other, which costs an element
// for each two of them. The bound holds for these, too, also in front of another service's ports.
func TestBoundOfPairs(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	b.Set(sharing("older", 1, 2000, 1, false))
	b.Set(sharing("younger", 2, 2000, 1, true))
	snapshot := b.Snapshot()
	served, left := snapshot.Services.At("tenant/younger"), snapshot.LeftOut.At("tenant/younger")
	if n := elements(served); n > service.DefaultMaxElements || len(served.LoadBalancerIPs) != 511 {
		t.Errorf("%d elements for %d addresses", n, len(served.LoadBalancerIPs))
	}
	if left == nil || left.String() != "left out: 1489 load balancer addresses: the service would take more than 262144 "+
		"elements" {
		t.Errorf("left out: %v", left)
	}
	restrictions := slices.Collect(snapshot.Restrictions.At("tenant/older").All())
	if len(restrictions) == 0 || len(restrictions) != len(restrictions[0].Firewall.Addresses) ||
		len(restrictions) > 512 {
		t.Errorf("%d restrictions", len(restrictions))
	}
	if got := snapshot.Services.At("tenant/older"); len(got.LoadBalancerIPs) != 2000 {
		t.Errorf("without ranges: %d addresses", len(got.LoadBalancerIPs))
	}
}

// TestLeftOutIsNobodys: what is beyond one service's bound does not go to
// another one, which would get its clients.
func TestLeftOutIsNobodys(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	b.SetMaxElements(20)
	s := large(0, 1, 1, 15)
	squatter := crowded(1, 1)
	squatter.ExternalIPs, squatter.Created = s.LoadBalancerIPs, time.Unix(0, 0)
	b.Set(s)
	b.Set(squatter)
	claim := service.Claim{Addr: s.LoadBalancerIPs[0], Protocol: service.TCP, Port: 80}
	snapshot := b.Snapshot()
	if len(snapshot.Services.At(s.Name).LoadBalancerIPs) != 0 || !snapshot.Conflicts.At(squatter.Name).Has(claim) {
		t.Errorf("the snapshot is\n%s", snapshot)
	}
}

// TestPrecedence: cluster IPs, then load balancers, then externalIPs, then age.
func TestPrecedence(t *testing.T) {
	at := addrs("203.0.113.1")
	claim := service.Claim{Addr: at[0], Protocol: service.TCP, Port: 80}
	by := map[string]func(s *service.Service){
		"cluster":  func(s *service.Service) { s.ClusterIPs = at },
		"balancer": func(s *service.Service) { s.LoadBalancerIPs = at },
		"external": func(s *service.Service) { s.ExternalIPs = at },
	}
	var set []*service.Service
	for i, kind := range []string{"external", "balancer", "cluster"} {
		for _, age := range []int{2, 1} {
			s := crowded(10*i+age, 1)
			s.Name, s.ExternalIPs = service.NewName("ns", fmt.Sprint(kind, "-", age)), nil
			s.Created = time.Date(2026, 1, 1-age, 0, 0, 10-i, 0, time.UTC)
			by[kind](s)
			set = append(set, s)
		}
	}
	b := snapshots.NewBuilder(gen.PlainNode())
	for _, s := range set {
		b.Set(s)
	}
	for _, want := range []service.Name{"ns/cluster-2", "ns/cluster-1", "ns/balancer-2", "ns/balancer-1",
		"ns/external-2"} {
		if got := b.Snapshot().Owners.Of(claim); got != want {
			t.Errorf("%s has it, want %s", got, want)
		}
		b.Delete(want)
	}
	if s := b.Snapshot(); s.Conflicts.Len() != 0 || s.Owners.Of(claim) != "" {
		t.Errorf("of one alone the snapshot is\n%s", s)
	}
}

// TestServedIsClaimed: whatever the limit, a service is served nothing that it has
// not asked for: an address may be more than one thing to it, and is counted once.
func TestServedIsClaimed(t *testing.T) {
	victim := crowded(1, 8)
	for limit := 1; limit < 120; limit++ {
		s := large(0, 2, 8, 0)
		s.LoadBalancerIPs = append(s.LoadBalancerIPs, s.ClusterIPs...)
		s.ExternalIPs = slices.Concat(s.ClusterIPs, s.LoadBalancerIPs[:2], addrs("198.51.100.7"), addrs("198.51.100.8"),
			victim.ClusterIPs)
		b := snapshots.NewBuilder(gen.PlainNode())
		b.SetMaxElements(limit)
		b.Set(s)
		b.Set(victim)
		snapshot := b.Snapshot()
		served, theirs := snapshot.Services.At(s.Name), snapshot.Services.At(victim.Name)
		for _, p := range served.Ports {
			claim := service.Claim{Addr: victim.ClusterIPs[0], Protocol: p.Protocol, Port: p.Port}
			asked := slices.Contains(served.Addresses(), claim.Addr)
			owned := slices.ContainsFunc(theirs.Ports, func(o service.Port) bool { return o.Port == p.Port })
			if asked && owned && !snapshot.Conflicts.At(s.Name).Has(claim) {
				t.Fatalf("limit %d: both have %s:\n%s", limit, claim, snapshot)
			}
		}
	}
}

// TestBoundOfClaims: addresses and ports without endpoints are bounded as well.
func TestBoundOfClaims(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	s := large(2_600, 0, 100, 0)
	b.Set(s)
	snapshot := b.Snapshot()
	if n := elements(snapshot.Services.At(s.Name)); n > 1<<14 || n < 1<<14-200 {
		t.Errorf("%d addresses and ports are served", n)
	}
	left := snapshot.LeftOut.At(s.Name)
	if left == nil || left.String() != fmt.Sprintf("left out: %d external IPs: the service asks for more than 16384 "+
		"addresses and ports", left.ExternalIPs) {
		t.Errorf("left out: %v", left)
	}
}
