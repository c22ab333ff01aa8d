package snapshots_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// hashing has ports and endpoints at one cluster IP, and picks them by a hash of the client.
func hashing(namespace, name string, created, ports, endpoints int) *service.Service {
	s := withEndpoints(crowded(created, ports), endpoints)
	s.Name, s.ExternalIPs = service.NewName(namespace, name), nil
	s.Created = time.Date(2026, 1, 1, 0, 0, created, 0, time.UTC)
	s.Options.Balance = service.ByClient
	return s
}

// weigh gives the endpoints of each port two weights in turn.
func weigh(s *service.Service, weights ...uint16) {
	for i := range s.Ports {
		var list []service.Endpoint
		for e := range s.Ports[i].Endpoints.All() {
			e.Weight = service.NewWeight(weights[len(list)%len(weights)])
			list = append(list, e)
		}
		s.Ports[i].Endpoints = service.MergeEndpoints(list)
	}
}

// someGrowing has some endpoints of the services with slow start growing, or one of each of their ports.
func someGrowing(rng *rand.Rand, set map[service.Name]*service.Service) service.Adjustments {
	var growing service.Adjustments
	for name, s := range set {
		if s.Options.SlowStart == 0 || rng.IntN(4) == 0 {
			continue
		}
		var list []service.Adjustment
		one := rng.IntN(2) == 0
		for i := range s.Ports {
			n := 0
			for e := range s.Ports[i].Endpoints.All() {
				if n++; one && n == 1 || !one && rng.IntN(2) == 0 {
					list = append(list, service.Adjustment{PortEndpoint: s.Ports[i].At(e.Addr),
						Share: []service.Share{service.Quarter, service.Half}[rng.IntN(2)], Since: time.Unix(1, 0)})
				}
			}
		}
		growing = growing.Set(name, service.NewAdjusted(list))
	}
	return growing
}

// slotted is what a served service of IPv4 with one cluster IP costs, with its slots.
func slotted(s *service.Service) int {
	n := len(s.ClusterIPs)
	for i := range s.Ports {
		n += 1 + share.MostSlots(s, &s.Ports[i], ip.V4)
	}
	return n
}

// elementsOracle says by definition which services have what they ask for: going through them by age, of each namespace
// those that its quarter has room for, and of these those that all have room for.
func elementsOracle(set map[service.Name]*service.Service, limit int,
	asks func(*service.Service) int) map[service.Name]bool {
	type room struct {
		left int
		full bool
	}
	fits := func(r *room, n int) bool {
		r.full = r.full || n > r.left
		if !r.full {
			r.left -= n
		}
		return !r.full
	}
	has, spaces, all := map[service.Name]bool{}, map[string]*room{}, &room{left: limit}
	for _, s := range slices.SortedFunc(maps.Values(set), compareAge) {
		space, _ := s.Name.Split()
		if spaces[space] == nil {
			spaces[space] = &room{left: quarter(limit)}
		}
		n := asks(s)
		has[s.Name] = n == 0 || fits(spaces[space], n) && fits(all, n)
	}
	return has
}

// TestElementsAgainstOracle: after any history the services alone decide which of them have the elements that they ask
// for. Without room for slots a service is served without any, and without room for elements in part. No bound is
// exceeded.
func TestElementsAgainstOracle(t *testing.T) {
	whole, random, cut, grown := 0, 0, 0, 0
	seeds(t, 16, func(t *testing.T, rng *rand.Rand) {
		limit := 4 * (5000 + rng.IntN(5000))
		alone := func(s *service.Service) *service.Service { // with the bound on one service only
			b := snapshots.NewBuilder(gen.PlainNode())
			b.SetMaxElements(quarter(limit))
			b.Set(s)
			return b.Snapshot().Services.At(s.Name)
		}
		plain := func(s *service.Service) int { return min(quarter(limit), elements(s)) }
		asksPlain := func(s *service.Service) int { return max(0, plain(s)-service.UncountedElements) }
		asksSlots := func(s *service.Service) int {
			n := slotted(alone(s))
			if s.Options.SlowStart > 0 {
				worst := len(s.ClusterIPs)
				for i := range s.Ports {
					worst += 1 + share.MostSlotsGrowing(s, &s.Ports[i], ip.V4)
				}
				n = max(n, min(max(quarter(limit)/4, plain(s)), worst))
			}
			return max(0, n-plain(s))
		}
		bounded := func() *snapshots.Builder {
			b := snapshots.NewBuilder(gen.PlainNode())
			b.SetMaxAllElements(limit)
			return b
		}
		b, set := bounded(), map[service.Name]*service.Service{}
		for range 60 {
			for range 1 + rng.IntN(5) {
				pick := func(of ...int) int { return of[rng.IntN(len(of))] }
				s := hashing(fmt.Sprint("ns-", rng.IntN(5)), fmt.Sprint("svc-", rng.IntN(20)), rng.IntN(60), pick(1, 4, 80),
					pick(2, 40, 95))
				switch s.Options.Balance = service.Balance(rng.IntN(4)); rng.IntN(4) {
				case 0:
					weigh(s, 1, 2)
				case 1:
					weigh(s, 1009, 1013)
				}
				if rng.IntN(2) == 0 {
					s.Options.SlowStart = time.Minute
				}
				if set[s.Name] = s; rng.IntN(5) == 0 {
					b.Delete(s.Name)
					delete(set, s.Name)
					continue
				}
				b.Set(s)
			}
			got, hasPlain, hasSlots := b.Snapshot(), elementsOracle(set, limit, asksPlain), elementsOracle(set, limit, asksSlots)
			sumPlain, sumSlots := 0, 0
			for name, s := range set {
				served, left, want := got.Services.At(name), got.LeftOut.At(name), alone(s)
				sumPlain += max(0, elements(served)-service.UncountedElements)
				sumSlots += slotted(served) - elements(served)
				switch {
				case hasPlain[name] && hasSlots[name]:
					whole++
					if diff := difference(want, served, byValue); diff != "" || left != nil && left.All != 0 {
						t.Fatalf("%s is to be served as if alone (%v):\n%s", name, left, diff)
					}
				case left == nil || left.All != limit:
					t.Fatalf("%s: left out is %v, want something with the bound %d", name, left, limit)
				case !hasSlots[name] && (served.SlotLimit != 1 || slotted(served) != elements(served)):
					t.Fatalf("%s has slots:\n%s", name, served)
				case hasPlain[name]:
					random++
					if len(served.Ports) != len(want.Ports) {
						t.Fatalf("%s has %d ports, want %d", name, len(served.Ports), len(want.Ports))
					}
				default:
					cut++
					if n := elements(served); n > service.UncountedElements || n < service.UncountedElements/2 {
						t.Fatalf("%s has %d elements", name, n)
					}
				}
			}
			if sumPlain > limit || sumSlots > limit {
				t.Fatalf("%d elements and %d by slots, more than %d", sumPlain, sumSlots, limit)
			}
			if rng.IntN(6) > 0 {
				continue
			}
			b.SetGrowing(someGrowing(rng, set))
			all, of := 0, map[string]int{}
			for name, s := range b.Snapshot().Services.All() {
				space, _ := name.Split()
				all, of[space] = all+slotted(s)-elements(s), of[space]+slotted(s)-elements(s)
				if slotted(s) > slotted(got.Services.At(name)) {
					grown++
				}
			}
			for space, n := range of {
				if n > quarter(limit) || all > limit {
					t.Fatalf("with growing endpoints: %d elements by slots, %d of them in %s, limit %d", all, n, space, limit)
				}
			}
			b.SetGrowing(service.Adjustments{})
		}
		sameAfresh(t, rng, b, bounded(), set)
	})
	if whole == 0 || random == 0 || cut == 0 || grown == 0 {
		t.Fatalf("%d whole, %d without slots, %d cut, %d grown: nothing was tested", whole, random, cut, grown)
	}
}

// TestOneTenantTakesNotAllElements: twenty Services of 256 ports that are picked by a hash have a quarter of the
// elements together. The others of the tenant are served without a hash, and a younger Service of another tenant has
// its hash.
func TestOneTenantTakesNotAllElements(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	for i := range 20 {
		b.Set(hashing("greedy", fmt.Sprint("svc-", i), i, 256, 6))
	}
	other := hashing("other", "svc", 1000, 4, 6)
	b.Set(other)
	got, sum := b.Snapshot(), 0
	for name, s := range got.Services.All() {
		if sum += slotted(s); len(s.Ports) != len(b.Service(name).Ports) {
			t.Errorf("%s has lost ports", name)
		}
	}
	if most := service.DefaultMaxAllElements/4 + 21*service.UncountedElements; sum > most || sum < most/2 {
		t.Errorf("%d elements, want %d at most", sum, most)
	}
	if got.Services.At(other.Name) != other {
		t.Errorf("the other tenant's is\n%s", got.Services.At(other.Name))
	}
	want := "weights of endpoints, hashes of clients and least connections do not count, but for the weight 0: there is " +
		"room for 1048576 elements beyond 4096 of each service, " +
		"and for 262144 in one namespace, the oldest services first"
	if left := got.LeftOut.At("greedy/svc-19"); left == nil || left.String() != want {
		t.Errorf("left out: %v", left)
	}
}

// TestGrowingWithinQuota: a namespace that uses up its share of slots keeps within it when an endpoint of each of its
// Services is growing, whatever weights they have, with feedback and without.
func TestGrowingWithinQuota(t *testing.T) {
	for _, weights := range [][]uint16{{100}, {1, 2}, {1009, 1013}} {
		for _, balance := range []service.Balance{service.ByRandom, service.ByLeastConnections} {
			b, growing := snapshots.NewBuilder(gen.PlainNode()), service.Adjustments{}
			for i := range 5500 {
				s := withEndpoints(crowded(i, 1), 3)
				weigh(s, weights...)
				s.ExternalIPs, s.Options.Balance, s.Options.SlowStart = nil, balance, time.Minute
				b.Set(s)
				at := s.Ports[0].At(netip.MustParseAddrPort("10.244.0.0:8080"))
				growing = growing.Set(s.Name, service.NewAdjusted([]service.Adjustment{{PortEndpoint: at,
					Share: service.Quarter, Since: time.Unix(1, 0)}}))
			}
			sum := func() (n int) {
				for _, s := range b.Snapshot().Services.All() {
					n += slotted(s) - elements(s)
				}
				return n
			}
			whole := sum()
			b.SetGrowing(growing)
			if grown := sum(); grown > quarter(service.DefaultMaxAllElements) || grown <= whole {
				t.Errorf("%v with weights %v: %d elements by slots, %d with growing endpoints, want more, and %d at most", balance,
					weights, whole, grown, quarter(service.DefaultMaxAllElements))
			}
		}
	}
}
