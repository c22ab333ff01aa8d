package nft

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"nftproxy/model/sorted"
)

func randomTargets(rng *rand.Rand, last []Value, steps int) []Value {
	next := slices.Clone(last)
	for range steps {
		v := Value(AppendIndex(nil, uint32(rng.IntN(3_000))))
		at, found := slices.BinarySearch(next, v)
		switch {
		case !found:
			next = slices.Insert(next, at, v)
		case rng.IntN(2) == 0:
			next = slices.Delete(next, at, at+1)
		}
	}
	if rng.IntN(8) == 0 {
		next = slices.Delete(next, rng.IntN(len(next)+1), len(next))
	}
	return next
}

// TestPlaceRow: the elements of a row that Plan may arrange get the targets that the row has, each as often, and no
// arrangement changes fewer. A fixed row is taken as it is.
func TestPlaceRow(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 11))
		have := Pool{}
		for step := range 20 {
			fixed := rng.IntN(4) == 0
			slots := make([]Value, 1+rng.IntN(40))
			for i := range slots {
				slots[i] = Value(rune('a' + rng.IntN(1+rng.IntN(8))))
			}
			if !fixed {
				slices.Sort(slots)
			}
			want := Pool{Targets: NewTargets(slices.Clone(slots)...), Row: &Row{Slots: slots, Fixed: fixed}}
			if rng.IntN(6) == 0 {
				want.Row, slots = nil, slices.Collect(want.Targets.All())
				fixed = false
			}
			old := slices.Clone(have.byIndex())
			next, changes := placeTargets(&have, &want)
			got := slices.Clone(next.byIndex())
			if fixed != (want.Row != nil && want.Row.Fixed) || fixed && !slices.Equal(got, slots) || next.Len() != len(slots) {
				t.Fatalf("seed %d step %d: %q, want %q", seed, step, got, slots)
			}
			if sorted := slices.Sorted(slices.Values(got)); !fixed && !slices.Equal(sorted, slots) {
				t.Fatalf("seed %d step %d: %q, want those of %q", seed, step, got, slots)
			}
			if applied := compareSlots(old, got); !slices.Equal(applied, changes) {
				t.Fatalf("seed %d step %d: changes %v, want %v", seed, step, changes, applied)
			}
			// The least that has to change: what the row has more often than the elements that stay.
			stay, wanted := map[Value]int{}, map[Value]int{}
			for i := range min(len(old), len(slots)) {
				stay[old[i]]++
			}
			for _, v := range slots {
				wanted[v]++
			}
			least := max(len(old)-len(slots), 0)
			for v, n := range wanted {
				least += max(n-stay[v], 0)
			}
			if !fixed && len(changes) != least {
				t.Fatalf("seed %d step %d: %d changes from %q to %q, want %d", seed, step, len(changes), old, slots, least)
			}
			have = next
			if rng.IntN(5) == 0 { // a restart
				have = want.withOrder(got)
			}
		}
	}
}

// TestPlaceTargets: step by step, long and short pools get the order that arrangeTargets
// gives, and the changes lead there. The changes also lead there from any order that was
// read back.
func TestPlaceTargets(t *testing.T) {
	seeds := uint64(30)
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 7))
			var placed Pool
			var naive, targets []Value
			for step := range 100 {
				before := slices.Clone(targets)
				targets = randomTargets(rng, targets, 1<<rng.IntN(10))
				if rng.IntN(10) == 0 { // a restart: the order is read back, and may have been changed
					found := slices.Clone(naive)
					for range rng.IntN(3) {
						if n := len(found); n > 0 {
							found[rng.IntN(n)] = found[rng.IntN(n)]
						}
					}
					naive, placed = found, Pool{Targets: NewTargets(before...)}.withOrder(found)
				}
				want := Pool{Targets: NewTargets(slices.Clone(targets)...)}
				if rng.IntN(2) == 0 && placed.Targets.Len() > 0 { // as a compiler does
					want.Targets = sorted.Reuse(placed.Targets, want.Targets)
				}
				next, changes := placeTargets(&placed, &want)
				old := naive
				naive = arrangeTargets(naive, targets)
				if got := slices.Clone(next.byIndex()); !slices.Equal(got, naive) || next.Len() != len(naive) {
					t.Fatalf("step %d: %d targets in another order than %d", step, len(got), len(naive))
				}
				if wanted := compareSlots(old, naive); !slices.Equal(changes, wanted) {
					t.Fatalf("step %d: %d changes, want %d:\n%v\n%v", step, len(changes), len(wanted), changes, wanted)
				}
				if got := slices.Clone(placed.byIndex()); !slices.Equal(got, old) {
					t.Fatalf("step %d: the pool before has changed", step)
				}
				placed = next
			}
		})
	}
}
