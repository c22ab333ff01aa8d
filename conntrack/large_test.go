package conntrack

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"nftproxy/model/service"
)

// An endpoint goes away in a table of 200,000 flows. The Cleaner finds and removes the
// 2,000 flows to it in a tenth of the time of ti-mo's dump and deletions, and in little
// memory, however large the table is. The kernel returns only the flows to the Service.
// Both ways run by turns, and one round that shows the difference is enough: other work
// on the machine may disturb the others.
func TestRemoveFromLargeTable(t *testing.T) {
	const flows, share, rounds, memory = 200_000, 10, 10, 20e6
	if testing.Short() {
		t.Skip("fills a table of connections")
	}
	f := benchFamilies()[0]
	ns := f.fillTable(t, flows)
	scoped, _ := f.passes(t, ns)
	table := open(t, ns)
	entries, _, err := table.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	round := func(remove func() int) (took time.Duration, allocated uint64) {
		t.Helper()
		fill(t, ns, 0, benchStale, f.stale)
		runtime.GC() // the garbage of the round before
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		removed := remove()
		took = time.Since(start)
		runtime.ReadMemStats(&after)
		left, _, err := table.Count(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if removed != benchStale || left != entries {
			t.Fatalf("removed %d flows of %d, %d are left, want %d removed and %d left", removed, entries+benchStale, left,
				benchStale, entries)
		}
		return took, after.TotalAlloc - before.TotalAlloc
	}

	fill(t, ns, 0, benchStale, f.stale)
	filter := Filter{Protocol: service.UDP, Dst: netip.MustParseAddr(f.clusterIP), Port: 53}
	if n := returned(t, table, filter); n != benchStale+f.live {
		t.Errorf("the kernel returns %d entries, want the %d that go to the service", n, benchStale+f.live)
	}
	if n := scoped(); n != benchStale {
		t.Fatalf("removed %d flows, want %d", n, benchStale)
	}
	for i := range rounds {
		ours, ourMemory := round(scoped)
		theirs, theirMemory := round(func() int { return removeByTimo(t, ns, &f) })
		t.Logf("round %d: %v and %.1f MB, ti-mo %v and %.1f MB: a %.1fth of the time",
			i+1, ours.Round(time.Millisecond), float64(ourMemory)/1e6, theirs.Round(time.Millisecond), float64(theirMemory)/1e6,
			theirs.Seconds()/ours.Seconds())
		if ourMemory > memory { // All allocations together: the heap has grown by no more than that.
			t.Errorf("allocated %d bytes, want at most %.0f", ourMemory, memory)
		}
		if share*ours <= theirs {
			return
		}
	}
	t.Errorf("in none of %d rounds it took a %dth of the time or less", rounds, share)
}

// returned counts the entries that the kernel returns for a filter, before Flows compares
// them again.
func returned(t *testing.T, table *Table, filter Filter) (n int) {
	t.Helper()
	for _, family := range filter.families() {
		err := table.dump(t.Context(), family, filter.attributes(), Filter{}, func(Flow) error {
			n++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return n
}
