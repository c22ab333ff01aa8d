package treap

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"testing"
)

// chosenNames returns n names of Services, sorted. By a function that priorities once
// came from, each name has a lower priority than the one before. Anyone can compute that
// function. An attacker needed n tries for a name.
func chosenNames(n int) []string {
	priority := func(k string) uint64 {
		h := uint64(14695981039346656037)
		for i := 0; i < len(k); i++ {
			h = (h ^ uint64(k[i])) * 1099511628211
		}
		h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
		h = (h ^ h>>27) * 0x94d049bb133111eb
		return h ^ h>>31
	}
	slot := math.MaxUint64 / uint64(n)
	var names []string
	for i := range n {
		prefix := fmt.Sprintf("tenant/%06d-", i)
		for try := int64(0); ; try++ {
			name := prefix + strconv.FormatInt(try, 16)
			if p := priority(name); p/slot == uint64(n-1-i) {
				names = append(names, name)
				break
			}
		}
	}
	return names
}

func (n *node[K, V]) depth() int {
	if n == nil {
		return 0
	}
	return 1 + max(n.left.depth(), n.right.depth())
}

// TestChosenNamesMakeNoList: a tree of names that were chosen by their former priorities
// is like any other. Of 2,000 random keys a treap is some 26 nodes deep.
func TestChosenNamesMakeNoList(t *testing.T) {
	names := chosenNames(2000)
	limit := 6 * bits.Len(uint(len(names)))
	var one Map[string, int]
	var edits []Edit[string, int]
	for i, name := range names {
		one = one.Set(name, i)
		edits = append(edits, Edit[string, int]{Key: name, Value: i})
	}
	for how, m := range map[string]Map[string, int]{"one by one": one, "at once": Map[string, int]{}.Apply(edits)} {
		if d := m.root.depth(); d > limit {
			t.Errorf("%s: %d names are %d deep, more than %d", how, len(names), d, limit)
		}
		if allocs := testing.AllocsPerRun(10, func() { m.Set(names[len(names)-1], -1) }); allocs > float64(limit) {
			t.Errorf("%s: a change makes %v nodes", how, allocs)
		}
	}
}

// TestMapsOfDifferentSeeds: Diff is right between maps that share nothing, and
// all empty maps are equal.
func TestMapsOfDifferentSeeds(t *testing.T) {
	var a, b Map[string, int]
	for i := range 500 {
		a = a.Set(fmt.Sprint(i), i)
		b = b.Set(fmt.Sprint(499-i), 499-i)
	}
	b = b.Set("7", -7).Delete("8").Set("9x", 9)
	want := []Change[string, int]{
		{Key: "7", Old: 7, New: -7, HadOld: true, HasNew: true}, {Key: "8", Old: 8, HadOld: true},
		{Key: "9x", New: 9, HasNew: true},
	}
	i := 0
	for c := range Diff(a, b) {
		if i >= len(want) || c != want[i] {
			t.Errorf("change %d is %+v", i, c)
		}
		i++
	}
	if i != len(want) {
		t.Errorf("%d changes", i)
	}
	if m := a.Set("x", 1).Apply([]Edit[string, int]{{Key: "x", Gone: true}}); m.Len() != a.Len() {
		t.Errorf("%d entries", m.Len())
	}
	if (Map[string, int]{}).Set("x", 1).Delete("x") != (Map[string, int]{}) {
		t.Error("an emptied map is not the empty one")
	}
}
