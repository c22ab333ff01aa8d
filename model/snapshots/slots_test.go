package snapshots_test

import (
	"testing"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// TestSlots: endpoints keep the slots that feedback has given them while they and their Service follow connections,
// whatever else changes, and no longer: nothing of them is left then.
func TestSlots(t *testing.T) {
	following := func(n int) *service.Service {
		s := growable(n, service.NewWeight(100))
		s.Options.Balance = service.ByLeastConnections
		return s
	}
	slotted := func(s *service.Service) service.Slotted {
		slots := service.Slotted{}
		for i := range s.Ports {
			for e := range s.Ports[i].Endpoints.All() {
				slots[s.Ports[i].At(e.Addr)] = service.Slots{Cluster: 7, Local: 9}
			}
		}
		return slots
	}
	const name = service.Name("shop/web")
	for _, c := range []struct {
		what string
		// between happens to a service of two endpoints with slots, which is then as before, if restored.
		between  func(*snapshots.Builder)
		restored bool
		want     int // ports' endpoints with slots at the end
	}{
		{"nothing", func(*snapshots.Builder) {}, true, 4},
		{"an endpoint more", func(b *snapshots.Builder) { b.Set(following(3)) }, false, 4},
		{"an endpoint comes and goes", func(b *snapshots.Builder) {
			b.Set(following(3))
			b.Snapshot()
		}, true, 4},
		{"one goes and comes back at once", func(b *snapshots.Builder) { b.Set(following(1)) }, true, 4},
		{"one goes and comes back", func(b *snapshots.Builder) {
			b.Set(following(1))
			b.Snapshot()
		}, true, 2},
		{"all go and come back", func(b *snapshots.Builder) {
			b.Set(following(0))
			b.Snapshot()
		}, true, 0},
		{"random for a while", func(b *snapshots.Builder) {
			b.Set(growable(2, service.NewWeight(100)))
			b.Snapshot()
		}, true, 0},
		{"deleted for a while", func(b *snapshots.Builder) {
			b.Delete(name)
			b.Snapshot()
		}, true, 0},
		{"deleted and back at once", func(b *snapshots.Builder) { b.Delete(name) }, true, 0},
		{"without room for slots for a while", func(b *snapshots.Builder) {
			s := following(2)
			s.SlotLimit = service.NoSlots
			b.Set(s)
			b.Snapshot()
		}, true, 0},
		{"slots of a Service that is not there", func(b *snapshots.Builder) {
			b.Delete(name)
			b.Snapshot()
			b.SetSlots(map[service.Name]service.Slotted{name: slotted(following(2))})
		}, true, 0},
	} {
		b, s := snapshots.NewBuilder(service.Node{Name: "n"}), following(2)
		// As at a start, also of Services that never come.
		b.SetSlots(map[service.Name]service.Slotted{name: slotted(s), "shop/gone": slotted(s)})
		b.Set(s)
		other := growable(1, 0)
		other.Name = "shop/other"
		b.Set(other)
		if got := len(b.Snapshot().Services.At(name).Slotted()); got != 4 {
			t.Fatalf("%s: %d endpoints have slots at first", c.what, got)
		}
		if c.between(b); c.restored {
			b.Set(following(2))
		}
		if got := len(b.Snapshot().Services.At(name).Slotted()); got != c.want {
			t.Errorf("%s: %d endpoints have slots, want %d", c.what, got, c.want)
		}
		gone := following(2)
		gone.Name = "shop/gone"
		if b.Set(gone); len(b.Snapshot().Services.At(gone.Name).Slotted()) != 0 {
			t.Errorf("%s: a Service that comes later has slots from the start", c.what)
		}
	}
}
