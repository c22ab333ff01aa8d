package snapshots_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// sticky asks for session affinity on some ports; created is its age in seconds,
// the less the older.
func sticky(namespace, name string, created, ports int) *service.Service {
	s := &service.Service{
		Name:            service.NewName(namespace, name),
		Created:         time.Date(2026, 1, 1, 0, 0, created, 0, time.UTC),
		ClusterIPs:      []netip.Addr{netip.AddrFrom4([4]byte{10, 102, byte(created >> 8), byte(created)})},
		AffinityTimeout: time.Hour,
	}
	for i := range ports {
		s.Ports = append(s.Ports, service.Port{Name: fmt.Sprint("p", i), Protocol: service.TCP, Port: uint16(80 + i)})
	}
	return s
}

// stickyOracle says by definition who has session affinity: going through the
// services by age, of each namespace those up to the first that its quarter has
// no room for, and of these those up to the first that all have no room for.
func stickyOracle(set map[service.Name]*service.Service, limit int) map[service.Name]bool {
	share := (limit + 3) / 4
	front := func(list []*service.Service, room int) []*service.Service {
		for i, s := range list {
			if room -= len(s.Ports); room < 0 {
				return list[:i]
			}
		}
		return list
	}
	spaces := map[string][]*service.Service{}
	for _, s := range slices.SortedFunc(maps.Values(set), compareAge) {
		if space, _ := s.Name.Split(); s.AffinityTimeout != 0 && len(s.Ports) <= share {
			spaces[space] = append(spaces[space], s)
		}
	}
	var all []*service.Service
	for _, list := range spaces {
		all = append(all, front(list, share)...)
	}
	slices.SortFunc(all, compareAge)
	have := map[service.Name]bool{}
	for _, s := range front(all, limit) {
		have[s.Name] = true
	}
	return have
}

// checkSticky compares a snapshot with the oracle, and each service in it with
// what was set.
func checkSticky(t *testing.T, set map[service.Name]*service.Service, limit int,
	got service.Snapshot) (with, without int) {
	t.Helper()
	want := stickyOracle(set, limit)
	for name, s := range set {
		served, why := got.Services.At(name), got.WithoutAffinity.At(name)
		asks := s.AffinityTimeout != 0 && len(s.Ports) > 0
		if asks && !want[name] {
			without++
			plain := *s
			plain.AffinityTimeout = 0
			if plain.Options.Balance == service.ByRandom {
				plain.Options.Balance = service.ByClient
			}
			if diff := difference(&plain, served, byValue); diff != "" || why == nil {
				t.Fatalf("%s is to be without affinity (%v):\n%s", name, why, diff)
			}
			if why.Ports != len(s.Ports) || why.Namespace && why.Limit != quarter(limit) || !why.Namespace &&
				why.Limit != limit {
				t.Fatalf("%s is told %+v", name, why)
			}
			continue
		}
		if asks {
			with++
		}
		if served != s || why != nil {
			t.Fatalf("%s is to be served as it is (%v):\n%s", name, why, served)
		}
	}
	if got.Services.Len() != len(set) {
		t.Fatalf("%d services of %d", got.Services.Len(), len(set))
	}
	return with, without
}

// TestAffinityAgainstOracle: after any history who has affinity follows from the
// services alone; who asks for it in vain keeps its claims, and who neither gets
// nor loses anything its pointer.
func TestAffinityAgainstOracle(t *testing.T) {
	with, without, turned := 0, 0, 0
	seeds(t, 30, func(t *testing.T, rng *rand.Rand) {
		limit := 1 + rng.IntN(24)
		b, free := snapshots.NewBuilder(gen.PlainNode()), snapshots.NewBuilder(gen.PlainNode())
		b.SetMaxAffinityPorts(limit)
		free.SetMaxAffinityPorts(1 << 20)
		set := map[service.Name]*service.Service{}
		for range 200 {
			before := b.Snapshot()
			touched := map[service.Name]bool{}
			for range 1 + rng.IntN(3) {
				space, name := fmt.Sprint("ns-", rng.IntN(1+limit%6)), fmt.Sprint("svc-", rng.IntN(8))
				s := sticky(space, name, rng.IntN(5), rng.IntN(4))
				touched[s.Name] = true
				switch rng.IntN(6) {
				case 0, 1:
					b.Delete(s.Name)
					free.Delete(s.Name)
					delete(set, s.Name)
					continue
				case 2:
					s.AffinityTimeout = 0
				}
				for i := range s.Ports {
					s.Ports[i].NodePort = uint16(30000 + rng.IntN(10)) // over which they fight
				}
				b.Set(s)
				free.Set(s)
				set[s.Name] = b.Service(s.Name)
			}
			after := b.Snapshot()
			yes, no := checkSticky(t, set, limit, after)
			with, without = with+yes, without+no
			if diff := difference(conflictsOf(free.Snapshot()), conflictsOf(after), byValue); diff != "" {
				t.Fatalf("the bound changes conflicts (-without +with):\n%s", diff)
			}
			for name, s := range before.Services.All() {
				now := after.Services.At(name)
				if touched[name] || now == s {
					continue
				}
				if now == nil || now.AffinityTimeout == s.AffinityTimeout {
					t.Fatalf("%s, which nothing has happened to, is another one", name)
				}
				turned++
			}
		}
		fresh := snapshots.NewBuilder(gen.PlainNode())
		fresh.SetMaxAffinityPorts(limit)
		sameAfresh(t, rng, b, fresh, set)
	})
	if with == 0 || without == 0 || turned == 0 {
		t.Fatalf("%d with affinity, %d without, %d turned by others: nothing was tested", with, without, turned)
	}
}

// TestAffinityComesBack: when an older one goes, or no longer asks, the next one
// in its place is the very object that was set.
func TestAffinityComesBack(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	b.SetMaxAffinityPorts(4) // one of each namespace
	var list []*service.Service
	for i := range 3 {
		list = append(list, sticky("tenant", fmt.Sprint("svc-", i), i, 1))
		b.Set(list[i])
	}
	heavy := sticky("tenant", "heavy", -1, 2)
	b.Set(heavy)
	for space := range 4 {
		b.Set(sticky(fmt.Sprint("other-", space), "svc", 10+space, 1))
	}
	texts := func() map[service.Name]string {
		texts := map[service.Name]string{}
		for name, why := range b.Snapshot().WithoutAffinity.All() {
			texts[name] = why.String()
		}
		return texts
	}
	const space = "served without session affinity, by a hash of the client's address: the services of one namespace " +
		"may have it on 1 ports, the oldest first"
	if diff := gocmp.Diff(map[service.Name]string{
		"tenant/svc-1": space, "tenant/svc-2": space,
		"tenant/heavy": "served without session affinity, by a hash of the client's address: it has 2 ports, and the " +
			"services of one namespace may have it on 1",
		"other-3/svc": "served without session affinity, by a hash of the client's address: all services together may have " +
			"it on 4 ports, the oldest first",
	}, texts()); diff != "" {
		t.Errorf("without affinity (-want +got):\n%s", diff)
	}
	b.Delete(list[0].Name)
	if got := b.Snapshot(); got.Services.At(list[1].Name) != list[1] ||
		got.Services.At(list[2].Name).AffinityTimeout != 0 {
		t.Errorf("after the oldest has gone:\n%s", got)
	}
	plain := *list[1]
	plain.AffinityTimeout = 0
	b.Set(&plain)
	if got := b.Snapshot(); got.Services.At(list[1].Name) != &plain || got.Services.At(list[2].Name) != list[2] {
		t.Errorf("after the oldest has given it up:\n%s", got)
	}
	b.Delete(list[2].Name)
	if diff := gocmp.Diff(1, len(texts())); diff != "" {
		t.Errorf("without one of the namespace: %v", texts())
	}
}

// stickyCrowd is n services of one namespace, of which the oldest half has
// affinity.
func stickyCrowd(n int) *snapshots.Builder {
	b := snapshots.NewBuilder(gen.PlainNode())
	b.SetMaxAffinityPorts(2 * n)
	b.Expect(n)
	for i := range n {
		b.Set(sticky("tenant", fmt.Sprintf("svc-%05d", i), i, 1))
	}
	b.Snapshot()
	return b
}

// TestAffinityScales: beside many, a change costs what gets affinity or loses it.
func TestAffinityScales(t *testing.T) {
	n := 250
	if testing.Short() {
		n = 60
	}
	small, large := allocations(func() { stickyCrowd(n) }), allocations(func() { stickyCrowd(8 * n) })
	if ratio := large / small; ratio > 16 {
		t.Errorf("%.0f allocations for %d services, %.0f for %d: %.1f times as many", small, n, large, 8*n, ratio)
	}
	for what, change := range map[string]func(b *snapshots.Builder, n int){
		"the oldest goes and comes": func(b *snapshots.Builder, n int) {
			b.Delete(service.NewName("tenant", fmt.Sprintf("svc-%05d", 0)))
			b.Snapshot()
			b.Set(sticky("tenant", fmt.Sprintf("svc-%05d", 0), 0, 1))
		},
		"the youngest goes and comes": func(b *snapshots.Builder, n int) {
			b.Delete(service.NewName("tenant", fmt.Sprintf("svc-%05d", n-1)))
			b.Snapshot()
			b.Set(sticky("tenant", fmt.Sprintf("svc-%05d", n-1), n-1, 1))
		},
		"an older one comes and goes": func(b *snapshots.Builder, n int) {
			b.Set(sticky("tenant", "older", -1, 1))
			b.Snapshot()
			b.Delete("tenant/older")
		},
		"one of those without has another port": func(b *snapshots.Builder, n int) {
			b.Set(sticky("tenant", fmt.Sprintf("svc-%05d", n-1), n-1, 2))
		},
	} {
		few, many := stickyCrowd(n), stickyCrowd(8*n)
		a := allocations(func() { change(few, n); few.Snapshot() })
		b := allocations(func() { change(many, 8*n); many.Snapshot() })
		t.Logf("%s: %.0f allocations with %d services, %.0f with %d", what, a, n, b, 8*n)
		if b > 3*a {
			t.Errorf("%s: %.0f allocations with %d services, %.0f with %d", what, a, n, b, 8*n)
		}
	}
}

// TestDefaultAffinityBound: of thousands of services of a tenant 500 have
// affinity, and those of others have it too.
func TestDefaultAffinityBound(t *testing.T) {
	b := snapshots.NewBuilder(gen.PlainNode())
	for i := range 3000 {
		b.Set(sticky("tenant", fmt.Sprintf("svc-%05d", i), i, 1))
	}
	late := sticky("neighbour", "web", 1<<20, 10)
	b.Set(late)
	got := b.Snapshot()
	if n := got.WithoutAffinity.Len(); n != 2500 || got.Services.At(late.Name) != late {
		t.Errorf("%d without affinity, want 2500, and the neighbour's is\n%s", n, got.Services.At(late.Name))
	}
}

// BenchmarkAffinityBound is what 10,000 services with affinity cost, the younger
// ones first, and one change: the oldest goes and comes back.
func BenchmarkAffinityBound(b *testing.B) {
	build := func() *snapshots.Builder {
		builder := snapshots.NewBuilder(gen.PlainNode())
		for i := range 10_000 {
			builder.Set(sticky(fmt.Sprint("ns-", i%10), fmt.Sprintf("svc-%05d", i), 10_000-i, 1))
		}
		builder.Snapshot()
		return builder
	}
	b.Run("first", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			build()
		}
	})
	b.Run("change", func(b *testing.B) {
		builder, oldest := build(), sticky("ns-9", "svc-09999", 1, 1)
		b.ReportAllocs()
		for b.Loop() {
			builder.Delete(oldest.Name)
			builder.Snapshot()
			builder.Set(oldest)
			builder.Snapshot()
		}
	})
}
