// Package slots promises rows of slots: each slot belongs to one endpoint, and an endpoint's share of the slots is that of
// its weight. All functions are pure, so that all nodes of a cluster compute the same rows from the same endpoints. The
// package knows no addresses, and nothing of how a packet draws a slot.
package slots

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// sizes returns the sizes of rows, primes in steps of four: a permutation of a table needs a prime. The step is large
// because another size moves most clients.
func sizes() [5]int { return [...]int{251, 1021, 4093, 16381, MaxSize} }

// MaxSize is the greatest size of a row.
const MaxSize = 65521

// perEndpoint is the least number of slots for each endpoint of a row, up to MaxSize: with it, a share is off by at most one
// slot of 50, which is 2 %.
const perEndpoint = 50

// leastDrawn is the least bound on a row of weights: 1 of 4,000 connections is a canary that somebody may ask for.
const leastDrawn = 4093

// Smaller returns the sizes below MaxSize, the greatest first.
func Smaller() []int {
	all := sizes()
	smaller := all[:len(all)-1]
	slices.Reverse(smaller)
	return smaller
}

// TableSize returns the size of the table of n endpoints, at most the limit; 0 if one slot is enough, or if no size has a slot
// for each endpoint. It does not depend on the weights, since another size moves most clients.
func TableSize(n, limit int) int {
	size := 0
	for _, s := range sizes() {
		if s > limit {
			break
		}
		if size = s; s >= perEndpoint*n {
			break
		}
	}
	if size < n || n < 2 {
		return 0
	}
	return size
}

// Counts returns how many slots of a row for random draws each weight gets. Weights of 0 get none. It returns nil if one slot
// for each is enough, or if the limit allows no more.
func Counts(weights []uint32, limit int) []int {
	size := DrawnSize(weights, limit)
	if size == 0 {
		return nil
	}
	return split(weights, sum(weights), size)
}

// DrawnSize returns the length of the row of Counts; 0 for none. It is that of the smallest row that has the shares exactly.
// Where that is longer than the limit, or than 50 slots for each endpoint and 4,093, the row has this length, and each share is off by less
// than a slot. A row of fewer of the weights is not longer.
func DrawnSize(weights []uint32, limit int) int {
	divisor, n, equal := uint64(0), 0, true
	for _, w := range weights {
		if w > 0 {
			divisor, n, equal = GCD(uint64(w), divisor), n+1, equal && w == weights[0]
		} else {
			equal = equal && weights[0] == 0
		}
	}
	limit = min(limit, max(leastDrawn, TableSize(n, MaxSize), n))
	if equal || n > limit {
		return 0
	}
	return int(min(sum(weights)/divisor, uint64(limit)))
}

func sum(weights []uint32) uint64 {
	sum := uint64(0)
	for _, w := range weights {
		sum += uint64(w)
	}
	return sum
}

// GCD returns the greatest common divisor; that of 0 and a number is the number.
func GCD(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// split shares the slots by weight, with the largest remainders, and at least one slot for each weight above 0. sum is that
// of the weights, and size at least the number of those above 0.
func split(weights []uint32, sum uint64, size int) []int {
	counts, left := make([]int, len(weights)), size
	var order []int
	for i, w := range weights {
		if w == 0 {
			continue
		}
		counts[i] = max(1, int(uint64(w)*uint64(size)/sum))
		left -= counts[i]
		order = append(order, i)
	}
	// ahead is how much more an endpoint has than its share, in parts of a slot.
	ahead := func(i int) int64 { return int64(counts[i])*int64(sum) - int64(weights[i])*int64(size) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(ahead(a), ahead(b)) })
	for at := 0; left > 0; at = (at + 1) % len(order) {
		counts[order[at]]++
		left--
	}
	for left < 0 { // slots of those that have the most to give to those that would have none
		most := 0
		for _, i := range order {
			if counts[i] > counts[most] {
				most = i
			}
		}
		give := min(-left, max(1, counts[most]/2))
		counts[most] -= give
		left += give
	}
	return counts
}

// Table returns the endpoint of each slot of a table by Maglev's permutations (Eisenbud et al., NSDI 2016): the endpoints take
// turns to take the next free slot of their own permutation. If an endpoint leaves, few slots but its own change. names
// are sorted and differ; they decide the permutations. size is one of TableSize. Without a weight above 0 there is
// no table.
func Table[Name ~string](names []Name, weights []uint32, size int) []int {
	all := sum(weights)
	if all == 0 || size == 0 {
		return nil
	}
	counts := split(weights, all, size)
	walks := make([]walk, len(names))
	for i, name := range names {
		walks[i] = walkOf(name, size)
	}
	table := make([]int, size)
	for i := range table {
		table[i] = -1
	}
	rounds := slices.Max(counts)
	taken := make([]int, len(names))
	for round := 1; round <= rounds; round++ {
		for i, n := range counts {
			// After each round an endpoint has its share of the rounds.
			if uint64(taken[i])*uint64(rounds) >= uint64(n)*uint64(round) {
				continue
			}
			taken[i]++
			for table[walks[i].at] >= 0 {
				walks[i].step(size)
			}
			table[walks[i].at] = i
		}
	}
	return table
}

// walk is an endpoint's way through the slots of a table. It comes to each.
type walk struct{ at, skip int }

func walkOf[Name ~string](name Name, size int) walk {
	hash := sha256.Sum256([]byte(name))
	return walk{
		at:   int(binary.BigEndian.Uint64(hash[:]) % uint64(size)),
		skip: 1 + int(binary.BigEndian.Uint64(hash[8:])%uint64(size-1)),
	}
}

func (w *walk) step(size int) { w.at = (w.at + w.skip) % size }
