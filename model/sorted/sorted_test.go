package sorted

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// item is compared by its key alone.
type item struct{ key, value int }

func (e item) Compare(o item) int { return cmp.Compare(e.key, o.key) }

// listOf is the list of a map's items.
func listOf(m map[int]int) []item {
	var all []item
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, item{k, m[k]})
	}
	return all
}

// randomEdits are n edits, some without effect, and what they make of a map.
func randomEdits(rng *rand.Rand, n, keys int, coming float64, m map[int]int) ([]Edit[item], map[int]int) {
	next := maps.Clone(m)
	var edits []Edit[item]
	for _, k := range slices.Compact(slices.Sorted(func(yield func(int) bool) {
		for range n {
			if !yield(rng.IntN(keys)) {
				return
			}
		}
	})) {
		e := Edit[item]{item{k, rng.IntN(3)}, rng.Float64() >= coming}
		if edits = append(edits, e); e.Gone {
			delete(next, k)
		} else {
			next[k] = e.Item.value
		}
	}
	return edits, next
}

// TestRandom compares lists that grow, shrink and change with maps: contents,
// searches, the items from one on, differences in both directions, and that nothing old ever changes.
// With -short it takes every tenth of the seeds.
func TestRandom(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			const keys = 3_000
			type version struct {
				list List[item]
				m    map[int]int
			}
			all := []version{{List[item]{}, map[int]int{}}}
			for step := range 120 {
				last := all[len(all)-1]
				// It grows for a while and shrinks for a while.
				coming := 0.9
				if step/30%2 == 1 {
					coming = 0.1
				}
				edits, m := randomEdits(rng, 1+rng.IntN(1<<rng.IntN(9)), keys, coming, last.m)
				list := last.list.Edit(edits)
				if maps.Equal(m, last.m) != list.Same(last.list) {
					t.Fatalf("step %d: nothing changes: %t; the same list: %t", step, maps.Equal(m, last.m), list.Same(last.list))
				}
				check(t, list)
				all = append(all, version{list, m})
			}
			for i, v := range all {
				if got := slices.Collect(v.list.All()); !slices.Equal(got, listOf(v.m)) || v.list.Len() != len(got) {
					t.Fatalf("version %d has %d items (%d) of %d", i, len(got), v.list.Len(), len(v.m))
				}
				k := rng.IntN(keys)
				value, ok := v.m[k]
				if found := v.list.Find(item{key: k}); (found != nil) != ok || ok && found.value != value {
					t.Fatalf("version %d: found %v at %d, want %d, %t", i, found, k, value, ok)
				}
				after := slices.DeleteFunc(listOf(v.m), func(e item) bool { return e.key < k })
				if got := slices.Collect(v.list.From(item{key: k})); !slices.Equal(got, after) {
					t.Fatalf("version %d: %d items from %d on, want %d", i, len(got), k, len(after))
				}
				o := all[rng.IntN(len(all))]
				checkDiff(t, v.list, o.list, v.m, o.m)
				checkDiff(t, v.list, Of(listOf(o.m)), v.m, o.m)
				reused := Reuse(v.list, Of(listOf(o.m)))
				check(t, reused)
				if !reused.Equal(o.list) || v.list.Equal(o.list) != maps.Equal(v.m, o.m) {
					t.Fatalf("version %d: wrongly equal, or not", i)
				}
			}
		})
	}
}

// check holds the lengths of chunks.
func check(t *testing.T, l List[item]) {
	t.Helper()
	n := 0
	for chunk := range l.Chunks() {
		if n += len(chunk); len(chunk) > most || len(chunk) == 0 || l.Long() && len(chunk) < least {
			t.Fatalf("a chunk of %d items", len(chunk))
		}
	}
	if n != l.Len() || l.Long() != (n > most) {
		t.Fatalf("%d items, %d in chunks, long: %t", l.Len(), n, l.Long())
	}
}

func checkDiff(t *testing.T, from, to List[item], a, b map[int]int) {
	t.Helper()
	got, last := maps.Clone(a), -1
	for c := range Diff(from, to) {
		k := 0
		switch {
		case c.New == nil:
			k = c.Old.key
			delete(got, k)
		case c.Old != nil && (c.Old.key != c.New.key || *c.Old == *c.New):
			t.Fatalf("%v became %v", *c.Old, *c.New)
		default:
			k = c.New.key
			got[k] = c.New.value
		}
		old, had := a[k]
		if k <= last || had != (c.Old != nil) || had && old != c.Old.value {
			t.Fatalf("change at %d after %d: had %t, old %v", k, last, had, c.Old)
		}
		last = k
	}
	if !maps.Equal(got, b) {
		t.Fatal("the differences do not lead from one to the other")
	}
	for range Diff(from, from) {
		t.Fatal("a list differs from itself")
	}
}

// counted counts how often it is compared.
type counted struct {
	key   int
	times *int
}

func (c counted) Compare(o counted) int {
	*c.times++
	return cmp.Compare(c.key, o.key)
}

// TestCostOfOne: to replace one item, and to find that out, takes about as many
// comparisons in a list of 100,000 as in one of 1,000, and the memory of a chunk
// beside a word for each.
func TestCostOfOne(t *testing.T) {
	cost := func(n int) (times, shared int) {
		var items []counted
		for i := range n {
			items = append(items, counted{2 * i, &times})
		}
		l := Of(items)
		at := n / 3
		next := l.Edit([]Edit[counted]{{counted{2 * at, &times}, true}, {Item: counted{2*at + 1, &times}}})
		found := 0
		for range Diff(l, next) {
			found++
		}
		if found != 2 || next.Len() != n {
			t.Fatalf("%d differences, %d items", found, next.Len())
		}
		old := map[*counted]bool{}
		for chunk := range l.Chunks() {
			old[&chunk[0]] = true
		}
		fresh := 0
		for chunk := range next.Chunks() {
			if !old[&chunk[0]] {
				fresh++
			}
		}
		return times, fresh
	}
	small, _ := cost(1_000)
	large, fresh := cost(100_000)
	if large > 2*small || fresh > 3 {
		t.Errorf("%d comparisons in 1,000 items; %d and %d new chunks in 100,000", small, large, fresh)
	}
}
