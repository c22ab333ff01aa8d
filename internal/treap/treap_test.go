package treap

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAgainstMap drives the treap and a Go map with the same random edits, and
// keeps every intermediate treap: none may change afterwards.
func TestAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	type version struct {
		tree Map[string, int]
		want map[string]int
	}
	var history []version
	var tree Map[string, int]
	want := map[string]int{}
	for range 2000 {
		k := fmt.Sprintf("key-%d", rng.IntN(200))
		if rng.IntN(3) == 0 {
			tree = tree.Delete(k)
			delete(want, k)
		} else {
			v := rng.IntN(5)
			tree = tree.Set(k, v)
			want[k] = v
		}
		history = append(history, version{tree, maps.Clone(want)})
	}
	for i, v := range history {
		if diff := cmp.Diff(v.want, maps.Collect(v.tree.All())); diff != "" {
			t.Fatalf("version %d (-want +got):\n%s", i, diff)
		}
		if v.tree.Len() != len(v.want) {
			t.Fatalf("version %d: Len %d, want %d", i, v.tree.Len(), len(v.want))
		}
	}
	for range 500 {
		a, b := history[rng.IntN(len(history))], history[rng.IntN(len(history))]
		got := maps.Clone(a.want)
		for c := range Diff(a.tree, b.tree) {
			if old, had := got[c.Key]; had != c.HadOld || old != c.Old {
				t.Fatalf("change %+v does not fit what was there: %d, %t", c, old, had)
			}
			if c.HasNew {
				got[c.Key] = c.New
			} else {
				delete(got, c.Key)
			}
		}
		if diff := cmp.Diff(b.want, got); diff != "" {
			t.Fatalf("old plus Diff is not new (-want +got):\n%s", diff)
		}
	}
}

func TestAllIsSorted(t *testing.T) {
	var m Map[string, int]
	for i := range 1000 {
		m = m.Set(fmt.Sprint(i*7919%1000), i)
	}
	var keys []string
	for k := range m.All() {
		keys = append(keys, k)
	}
	if !slices.IsSorted(keys) || len(keys) != 1000 {
		t.Fatalf("%d keys, sorted: %t", len(keys), slices.IsSorted(keys))
	}
}

// TestShapeIsCanonical: the same entries by another road give the same tree,
// which is what Diff's cost rests on.
func TestShapeIsCanonical(t *testing.T) {
	var a, b Map[string, int]
	for i := range 300 {
		a = a.Set(fmt.Sprint(i), i)
	}
	for i := 399; i >= 0; i-- {
		b = b.Set(fmt.Sprint(i), i)
	}
	for i := 300; i < 400; i++ {
		b = b.Delete(fmt.Sprint(i))
	}
	var same func(x, y *node[string, int]) bool
	same = func(x, y *node[string, int]) bool {
		if x == nil || y == nil {
			return x == y
		}
		return x.key == y.key && x.size == y.size && same(x.left, y.left) && same(x.right, y.right)
	}
	if !same(a.root, b.root) {
		t.Fatal("two roads to the same entries gave two trees")
	}
}

// TestDiffVisitsOnlyChanges counts the work of a Diff by what it allocates:
// one change in 100,000 entries may split a path, never the tree.
func TestDiffVisitsOnlyChanges(t *testing.T) {
	var m Map[string, int]
	for i := range 100_000 {
		m = m.Set(fmt.Sprint(i), i)
	}
	changed := m.Set("50000", -1).Delete("777").Set("new", 1)
	n := 0
	allocs := testing.AllocsPerRun(1, func() {
		n = 0
		for range Diff(m, changed) {
			n++
		}
	})
	if n != 3 || allocs > 1000 {
		t.Fatalf("%d changes (want 3), %v allocations", n, allocs)
	}
}

func BenchmarkSet(b *testing.B) {
	var m Map[string, int]
	for i := range 100_000 {
		m = m.Set(fmt.Sprint(i), i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m = m.Set("50000", i)
	}
}
