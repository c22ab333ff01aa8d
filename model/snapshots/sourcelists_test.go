package snapshots_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// ranged has a load balancer's addresses with the list of that number; created is its age in
// seconds, the less the older. List 0 is none, and list 1 has no range.
func ranged(namespace, name string, created, list int) *service.Service {
	s := &service.Service{
		Name:            service.NewName(namespace, name),
		Created:         time.Date(2026, 1, 1, 0, 0, created, 0, time.UTC),
		ClusterIPs:      []netip.Addr{netip.AddrFrom4([4]byte{10, 103, byte(created >> 8), byte(created)})},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("198.51.100.7")},
		Ports:           []service.Port{{Name: "p", Protocol: service.TCP, Port: uint16(80 + created%3)}},
	}
	s.Sources = sourceList(list)
	return s
}

// sourceList returns the list of that number: 0 is none, and 1 one without ranges.
func sourceList(list int) *service.Sources {
	switch list {
	case 0:
		return nil
	case 1:
		return service.NewSources(nil)
	}
	return service.NewSources([]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(list >> 8), byte(list), 0}),
		24)})
}

// listsOf returns the lists for which the node needs sets, for the load balancer's addresses and for other ways in.
// Equal ones are one.
func listsOf(s *service.Service) []string {
	var lists []string
	if len(s.Sources.Ranges()) > 0 && len(s.LoadBalancerIPs) > 0 {
		lists = append(lists, fmt.Sprint(s.Sources.Ranges()))
	}
	if direct := fmt.Sprint(s.Options.SourceRanges.Ranges()); len(s.Options.SourceRanges.Ranges()) > 0 &&
		(len(s.ExternalIPs) > 0 || s.Ports[0].NodePort != 0) && !slices.Contains(lists, direct) {
		lists = append(lists, direct)
	}
	return lists
}

// room is the room for lists of a namespace or of all. Behind the first that does not fit, none does.
type room struct {
	has  map[string]bool
	left int
	full bool
}

func newRoom(limit int) *room { return &room{has: map[string]bool{}, left: limit} }

// take says whether there is room for lists that are asked for together.
func (r *room) take(lists []string) bool {
	key := fmt.Sprint(lists)
	if r.full = r.full || !r.has[key] && len(lists) > r.left; !r.full && !r.has[key] {
		r.has[key] = true
		r.left -= len(lists)
	}
	return r.has[key]
}

// sourceListOracle says by definition which lists the node has: going through the services by
// age, of each namespace the first that its quarter has room for, and of these the first that
// all have room for.
func sourceListOracle(set map[service.Name]*service.Service, limit int) map[string]bool {
	byAge := slices.SortedFunc(maps.Values(set), compareAge)
	spaces, all := map[string]*room{}, newRoom(limit)
	for _, s := range byAge {
		space, _ := s.Name.Split()
		lists := listsOf(s)
		if len(lists) == 0 {
			continue
		}
		if spaces[space] == nil {
			spaces[space] = newRoom(quarter(limit))
		}
		if spaces[space].take(lists) {
			all.take(lists)
		}
	}
	return all.has
}

// TestSourceListsAgainstOracle: after any history the services alone decide which lists the
// node has. A list beyond the bound lets in nobody, at the addresses of its service and where
// another service owns the address. Nothing else changes.
func TestSourceListsAgainstOracle(t *testing.T) {
	open, shut, elsewhere, two := 0, 0, 0, 0
	seeds(t, 30, func(t *testing.T, rng *rand.Rand) {
		limit := 1 + rng.IntN(12)
		b, free := snapshots.NewBuilder(gen.PlainNode()), snapshots.NewBuilder(gen.PlainNode())
		b.SetMaxSourceLists(limit)
		free.SetMaxSourceLists(1 << 20)
		set := map[service.Name]*service.Service{}
		for range 200 {
			for range 1 + rng.IntN(3) {
				s := ranged(fmt.Sprint("ns-", rng.IntN(1+limit%6)), fmt.Sprint("svc-", rng.IntN(8)), rng.IntN(12), rng.IntN(12))
				if rng.IntN(8) == 0 {
					s.LoadBalancerIPs = nil
				}
				if rng.IntN(3) == 0 {
					s.Options.SourceRanges = sourceList(rng.IntN(12))
				}
				switch rng.IntN(4) {
				case 0:
					s.ExternalIPs = []netip.Addr{netip.MustParseAddr("198.51.100.8")}
				case 1:
					s.Ports[0].NodePort = uint16(30000 + rng.IntN(8))
				}
				if rng.IntN(5) == 0 {
					b.Delete(s.Name)
					free.Delete(s.Name)
					delete(set, s.Name)
					continue
				}
				b.Set(s)
				free.Set(s)
				set[s.Name] = s
			}
			got, all := b.Snapshot(), free.Snapshot()
			lists := sourceListOracle(set, limit)
			closed := func(name service.Name) bool {
				return len(listsOf(set[name])) > 0 && !lists[fmt.Sprint(listsOf(set[name]))]
			}
			for name, s := range set {
				served, why := got.Services.At(name), got.ClosedSources.At(name)
				if !closed(name) {
					open++
					if diff := difference(s, served, byValue); diff != "" || why != nil {
						t.Fatalf("%s is to be served as it is (%v):\n%s", name, why, diff)
					}
					continue
				}
				shut++
				two += len(listsOf(s)) - 1
				want := *s
				for _, sources := range []**service.Sources{&want.Sources, &want.Options.SourceRanges} {
					if *sources != nil {
						*sources = service.NewSources(nil)
					}
				}
				// The ranges are of IPv4 alone, so IPv6 is closed in any case.
				if diff := difference(&want, served, byValue); diff != "" || why == nil || why.Limit != limit {
					t.Fatalf("%s is to let in nobody (%v):\n%s", name, why, diff)
				}
			}
			if diff := difference(conflictsOf(all), conflictsOf(got), byValue); diff != "" {
				t.Fatalf("the bound changes conflicts (-without +with):\n%s", diff)
			}
			for name, restrictions := range all.Restrictions.All() {
				for r := range restrictions.All() {
					now, ok := got.Restrictions.At(name).On(r.Claim)
					if closed(r.By) {
						elsewhere++
						r.Firewall.Sources = service.NewSources(nil)
					}
					if !ok || difference(r, now, byValue) != "" {
						t.Fatalf("%s: %s is restricted by %v, want %v", name, r.Claim, now, r)
					}
				}
			}
		}
		fresh := snapshots.NewBuilder(gen.PlainNode())
		fresh.SetMaxSourceLists(limit)
		sameAfresh(t, rng, b, fresh, set)
	})
	if open == 0 || shut == 0 || elsewhere == 0 || two == 0 {
		t.Fatalf("%d open, %d shut, %d shut on another's address, %d shut with two lists: nothing was tested", open, shut,
			elsewhere, two)
	}
}

// TestOneTenantTakesNotAllLists: a namespace with thousands of lists takes no room from a
// younger Service of another one. Services with an equal list count once. A family that lets
// in everybody stays open.
func TestOneTenantTakesNotAllLists(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	for i := range 3 * service.DefaultMaxSourceLists {
		b.Set(ranged("greedy", fmt.Sprint("svc-", i), i, 2+i))
	}
	dual := ranged("other", "dual", 20_000, 2+20_000)
	dual.ClusterIPs = append(dual.ClusterIPs, netip.MustParseAddr("fd00::1"))
	dual.Sources = service.NewSources(append(dual.Sources.Ranges(), netip.MustParsePrefix("::/0")))
	b.Set(dual)
	for i := range 3000 {
		b.Set(ranged("equal", fmt.Sprint("svc-", i), 30_000+i, 2+30_000))
	}
	late := ranged("greedy", "dual", 60_000, 2+40_000)
	late.ClusterIPs, late.Sources = dual.ClusterIPs, service.NewSources(append(late.Sources.Ranges(),
		netip.MustParsePrefix("::/0")))
	b.Set(late)
	got := b.Snapshot()
	if n, want := got.ClosedSources.Len(), 3*service.DefaultMaxSourceLists-service.DefaultMaxSourceLists/4+1; n != want {
		t.Errorf("%d services are closed, want %d", n, want)
	}
	for name := range got.ClosedSources.All() {
		if !strings.HasPrefix(string(name), "greedy/") {
			t.Errorf("%s is closed", name)
		}
	}
	served := got.Services.At(late.Name)
	if ranges, all := served.Sources.Of(ip.V4); len(ranges) > 0 || all {
		t.Errorf("IPv4 lets in %v (all: %t)", ranges, all)
	}
	if _, all := served.Sources.Of(ip.V6); !all {
		t.Error("IPv6 is closed, too")
	}
}
