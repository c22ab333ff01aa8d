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
				if got := slices.Collect(next.targets()); !slices.Equal(got, naive) || next.count() != len(naive) {
					t.Fatalf("step %d: %d targets in another order than %d", step, len(got), len(naive))
				}
				if wanted := compareSlots(old, naive); !slices.Equal(changes, wanted) {
					t.Fatalf("step %d: %d changes, want %d:\n%v\n%v", step, len(changes), len(wanted), changes, wanted)
				}
				if got := slices.Collect(placed.targets()); !slices.Equal(got, old) {
					t.Fatalf("step %d: the pool before has changed", step)
				}
				placed = next
			}
		})
	}
}
