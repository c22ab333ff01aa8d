package snapshots_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
)

// retainedAtRandom marks each service in the changes as wholly retained, or not.
func retainedAtRandom(rng *rand.Rand, changes []gen.Change) {
	for i := range changes {
		if s := changes[i].Service; s != nil && rng.IntN(2) == 0 {
			retained := *s
			retained.Retained = service.RetainedService
			changes[i].Service = &retained
		}
	}
}

// TestRetainedGiveWay: services that are there get all that they would get if no service
// were retained: claims, session affinity, and no restriction by source ranges.
func TestRetainedGiveWay(t *testing.T) {
	contested := 0
	seeds(t, 100, func(t *testing.T, rng *rand.Rand) {
		with, without := snapshots.NewBuilder(gen.PlainNode()), snapshots.NewBuilder(gen.PlainNode())
		with.SetMaxAffinityPorts(8)
		without.SetMaxAffinityPorts(8)
		changes := gen.Changes(rng, 200, everything)
		retainedAtRandom(rng, changes)
		for i, c := range changes {
			c.Apply(with)
			if c.Service != nil && c.Service.Retained == service.RetainedService {
				c.Service = nil
			}
			c.Apply(without)
			if i%20 != 0 {
				continue
			}
			got, want := with.Snapshot(), without.Snapshot()
			all := contentsOf(got)
			for name, s := range got.Services.All() {
				if s.Retained == service.RetainedService {
					contested += len(all.Conflicts[name])
					delete(all.Services, name)
					delete(all.Conflicts, name)
					delete(all.Restrictions, name)
					delete(all.LeftOut, name)
				}
			}
			if diff := difference(contentsOf(want), all, byValue); diff != "" {
				t.Fatalf("beside retained services (-want +got):\n%s", diff)
			}
		}
	})
	if contested == 0 {
		t.Error("no retained service has lost anything: the test shows nothing")
	}
}

// TestRetainedOrder: the order of changes does not matter with retained services either,
// and their text form can be read.
func TestRetainedOrder(t *testing.T) {
	seeds(t, 50, func(t *testing.T, rng *rand.Rand) {
		b, last := snapshots.NewBuilder(gen.PlainNode()), map[service.Name]*service.Service{}
		changes := gen.Changes(rng, 200, everything)
		retainedAtRandom(rng, changes)
		for _, c := range changes {
			c.Apply(b)
			last[c.Name] = c.Service
			if rng.IntN(20) == 0 {
				b.Snapshot()
			}
		}
		names := slices.Sorted(maps.Keys(last))
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		fresh := snapshots.NewBuilder(gen.PlainNode())
		for _, n := range names {
			gen.Change{Name: n, Service: last[n]}.Apply(fresh)
		}
		if diff := difference(contentsOf(fresh.Snapshot()), contentsOf(b.Snapshot()), byValue); diff != "" {
			t.Fatalf("(-fresh +history):\n%s", diff)
		}
		text := b.Snapshot().String()
		parsed, err := gen.ReadSnapshot(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if got := parsed.String(); got != text {
			t.Errorf("read back (-want +got):\n%s", difference(text, got))
		}
	})
}

// TestRetainedLosesAddress: a retained service that has lost its cluster IP has no port on it,
// also none that the new service of that address does not have. In any order of changes it
// has all of them as long as the address is its own.
func TestRetainedLosesAddress(t *testing.T) {
	kept, heir := *gen.UniformService(0, 1), *gen.UniformService(1, 1)
	kept.Retained = service.RetainedService
	kept.Ports = append(slices.Clone(kept.Ports), service.Port{Name: "other", Protocol: service.TCP, Port: 9999})
	heir.ClusterIPs = kept.ClusterIPs
	back := kept
	back.Retained = service.RetainedNothing
	b := snapshots.NewBuilder(gen.PlainNode())
	want := func(when string, claims int) {
		t.Helper()
		if got := b.Snapshot().Conflicts.At(kept.Name).Len(); got != claims {
			t.Errorf("%s: the service lacks %d claims, want %d", when, got, claims)
		}
	}
	all := 1 + len(kept.Ports)
	b.Set(&kept)
	want("alone", 0)
	b.Set(&heir)
	want("with the heir", all)
	for c := range b.Snapshot().Conflicts.At(kept.Name).All() {
		if owner := b.Snapshot().Owners.Over(kept.Name, c.Claim); owner != heir.Name {
			t.Errorf("%s belongs to %q, want %s", c.Claim, owner, heir.Name)
		}
	}
	more := kept
	more.Ports = append(slices.Clone(kept.Ports), service.Port{Name: "more", Protocol: service.TCP, Port: 9998})
	b.Set(&more)
	want("with one more port", all+1)
	b.Set(&kept)
	want("without it", all)
	b.Delete(heir.Name)
	want("without the heir", 0)
	b.Set(&heir)
	b.Delete(kept.Name)
	want("deleted", 0)
	b.Set(&kept)
	want("retained after the heir came", all)
	b.Set(&back)
	if b.Snapshot().Conflicts.At(heir.Name).Len()+b.Snapshot().Conflicts.At(kept.Name).Len() == 0 {
		t.Error("nobody lacks the address that both have")
	}
	if b.Snapshot().Conflicts.At(kept.Name).Has(service.Claim{Addr: kept.ClusterIPs[0], Protocol: service.TCP,
		Port: 9999}) {
		t.Error("the service that is back lacks the port that no other has")
	}
}

// TestRetainedIsYoung: of two services with one health check node port, the one that is
// there has it, although it is younger.
func TestRetainedIsYoung(t *testing.T) {
	old, young := *gen.UniformService(0, 1), *gen.UniformService(1, 1)
	old.Created, old.Retained = young.Created.AddDate(-1, 0, 0), service.RetainedService
	if compareAge(&old, &young) <= 0 {
		t.Error("the retained service counts as the older one")
	}
	old.Retained = service.RetainedEndpoints
	if compareAge(&old, &young) >= 0 {
		t.Error("a service of which only the endpoints are retained does not keep its age")
	}
}
