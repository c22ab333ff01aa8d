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
	rounds := 2000
	if testing.Short() {
		rounds = 500
	}
	for range rounds {
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
		if got := maps.Collect(v.tree.All()); !maps.Equal(v.want, got) {
			t.Fatalf("version %d (-want +got):\n%s", i, cmp.Diff(v.want, got))
		}
		keys := slices.Sorted(maps.Keys(v.want))
		least, value, ok := v.tree.First()
		if ok != (len(keys) > 0) || ok && (least != keys[0] || value != v.want[least]) {
			t.Fatalf("version %d: First is %s, %d, %t", i, least, value, ok)
		}
		greatest, value, ok := v.tree.Last()
		if ok != (len(keys) > 0) || ok && (greatest != keys[len(keys)-1] || value != v.want[greatest]) {
			t.Fatalf("version %d: Last is %s, %d, %t", i, greatest, value, ok)
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
		if !maps.Equal(b.want, got) {
			t.Fatalf("old plus Diff is not new (-want +got):\n%s", cmp.Diff(b.want, got))
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

// TestShapeIsCanonical: the same entries by another road from the same map give
// the same tree, which is what Diff's cost rests on.
func TestShapeIsCanonical(t *testing.T) {
	start := Map[string, int]{}.Set("0", 0)
	a, b := start, start
	for i := range 300 {
		a = a.Set(fmt.Sprint(i), i)
	}
	for i := 399; i >= 0; i-- {
		b = b.Set(fmt.Sprint(i), i)
	}
	for i := 300; i < 400; i++ {
		b = b.Delete(fmt.Sprint(i))
	}
	if !same(a.root, b.root) {
		t.Fatal("two roads to the same entries gave two trees")
	}
}

func same(x, y *node[string, int]) bool {
	if x == nil || y == nil {
		return x == y
	}
	return x.key == y.key && x.value == y.value && x.size == y.size && same(x.left, y.left) && same(x.right, y.right)
}

// TestApply: many edits at once give the very tree that they give one by one,
// and what they leave alone is shared.
func TestApply(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	rounds := 2000
	if testing.Short() {
		rounds = 300
	}
	for range rounds {
		m := Map[string, int]{}.Set("stays", 0) // so that there is one seed
		for range rng.IntN(100) {
			m = m.Set(fmt.Sprint(rng.IntN(100)), rng.IntN(3))
		}
		chosen := map[string]Edit[string, int]{}
		for range rng.IntN(100) {
			k := fmt.Sprint(rng.IntN(100))
			chosen[k] = Edit[string, int]{Key: k, Value: rng.IntN(3), Gone: rng.IntN(3) == 0}
		}
		want := m
		var edits []Edit[string, int]
		for _, k := range slices.Sorted(maps.Keys(chosen)) {
			e := chosen[k]
			edits = append(edits, e)
			if e.Gone {
				want = want.Delete(k)
			} else {
				want = want.Set(k, e.Value)
			}
		}
		got := m.Apply(edits)
		if !same(want.root, got.root) {
			t.Fatalf("%v with %v: %v, want %v", maps.Collect(m.All()), edits, maps.Collect(got.All()), maps.Collect(want.All()))
		}
		if want == m && got != m {
			t.Fatal("edits that change nothing made another map")
		}
	}
}

// large has 100,000 entries, with -short 10,000.
func large() Map[string, int] {
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	var m Map[string, int]
	for i := range n {
		m = m.Set(fmt.Sprint(i), i)
	}
	return m
}

// TestApplySharesWhatStays counts the work of a few edits in a large map.
func TestApplySharesWhatStays(t *testing.T) {
	m := large()
	edits := []Edit[string, int]{{Key: "5000", Value: -1}, {Key: "777", Gone: true}, {Key: "new", Value: 1}}
	if allocs := testing.AllocsPerRun(1, func() { m.Apply(edits) }); allocs > 300 {
		t.Fatalf("%v allocations", allocs)
	}
}

// TestDiffVisitsOnlyChanges counts the work of a Diff by what it allocates:
// one change in a large map may split a path, never the tree.
func TestDiffVisitsOnlyChanges(t *testing.T) {
	m := large()
	changed := m.Set("5000", -1).Delete("777").Set("new", 1)
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

// BenchmarkFill fills an empty map, at once and one by one.
func BenchmarkFill(b *testing.B) {
	var edits []Edit[string, int]
	for i := range 100_000 {
		edits = append(edits, Edit[string, int]{Key: fmt.Sprintf("%06d", i), Value: i})
	}
	b.Run("Apply", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Map[string, int]{}.Apply(edits)
		}
	})
	b.Run("Set", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m Map[string, int]
			for _, e := range edits {
				m = m.Set(e.Key, e.Value)
			}
		}
	})
}
