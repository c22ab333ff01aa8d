package share

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// In a row each slot belongs to one endpoint, and an endpoint's share of the slots is that of its weight.

// sizes returns the sizes of rows, primes in steps of four: a permutation of a table needs a prime. The step is large
// because another size moves most clients.
func sizes() [5]int { return [...]int{251, 1021, 4093, 16381, MaxSize} }

// MaxSize is the greatest size of a row.
const MaxSize = 65521

// perEndpoint is the least number of slots for each endpoint of a row, up to MaxSize: with it, a share is off by at
// most one slot of 50, which is 2 %.
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

// TableSize returns the size of the table of n endpoints, at most the limit; 0 if one slot is enough, or if no size has
// a slot for each endpoint. It does not depend on the weights, since another size moves most clients.
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

// Drawn returns how many slots of a row for random draws each weight gets. Weights of 0 get none. It returns nil if
// one slot for each is enough, or if the limit allows no more.
func Drawn(weights []uint32, limit int) []int {
	size := DrawnSize(weights, limit)
	if size == 0 {
		return nil
	}
	return split(weights, size)
}

// DrawnSize returns the length of the row of Drawn; 0 for none. It is that of the smallest row that has the shares
// exactly. Where that is longer than the limit, or than 50 slots for each endpoint and 4,093, the row has this length,
// and each share is off by less than a slot. A row of fewer of the weights is not longer.
func DrawnSize(weights []uint32, limit int) int { return drawnSize(weights, limit, 1) }

// drawnSize is DrawnSize if weights have one part. It bounds the length if they come in so many parts, of which some
// endpoints have only a few.
func drawnSize(weights []uint32, limit int, parts uint64) int {
	n, equal := 0, true
	for _, w := range weights {
		equal = equal && w == weights[0]
		if w > 0 {
			n++
		}
	}
	limit = min(limit, max(leastDrawn, TableSize(n, MaxSize), n))
	if equal && parts == 1 || n == 0 || n > limit {
		return 0
	}
	return int(min(parts*sum(weights)/commonDivisor(weights), uint64(limit)))
}

func sum(weights []uint32) uint64 {
	sum := uint64(0)
	for _, w := range weights {
		sum += uint64(w)
	}
	return sum
}

// commonDivisor returns the greatest common divisor of the weights; 0 if none is above 0.
func commonDivisor(weights []uint32) (divisor uint64) {
	for _, w := range weights {
		divisor = GCD(uint64(w), divisor)
	}
	return divisor
}

// GCD returns the greatest common divisor; that of 0 and a number is the number.
func GCD(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// split shares the slots by weight. A weight above 0 whose share is less than a slot gets one; the others share the
// rest, with the largest remainders. size is at least the number of weights above 0.
func split(weights []uint32, size int) []int {
	counts, order := make([]int, len(weights)), []int{}
	for i, w := range weights {
		if w > 0 {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(weights[a], weights[b]) })
	slots, weight := uint64(size), sum(weights)
	for len(order) > 0 && uint64(weights[order[0]])*slots < weight {
		counts[order[0]] = 1
		slots, weight, order = slots-1, weight-uint64(weights[order[0]]), order[1:]
	}
	left := int(slots)
	for _, i := range order {
		counts[i] = int(uint64(weights[i]) * slots / weight)
		left -= counts[i]
	}
	remainder := func(i int) uint64 { return uint64(weights[i]) * slots % weight }
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(remainder(b), remainder(a)), cmp.Compare(a, b))
	})
	for _, i := range order[:left] {
		counts[i]++
	}
	return counts
}

// Table returns the endpoint of each slot of a table by Maglev's permutations (Eisenbud et al., NSDI 2016): the
// endpoints take turns to take the next free slot of their own permutation. If an endpoint leaves, few slots but its
// own change. names are sorted and differ; they decide the permutations. size is one of TableSize. Without a weight
// above 0 there is no table.
func Table[Name ~string](names []Name, weights []uint32, size int) []int {
	if sum(weights) == 0 || size == 0 {
		return nil
	}
	walks := make([]walk, len(names))
	for i, name := range names {
		walks[i] = walkOf(name, size)
	}
	table := make([]int, size)
	for i := range table {
		table[i] = -1
	}
	for _, i := range turns(split(weights, size), size) {
		for table[walks[i].at] >= 0 {
			walks[i].at = (walks[i].at + walks[i].skip) % size
		}
		table[walks[i].at] = i
	}
	return table
}

// turns returns the order in which endpoints take their slots. There are as many rounds as the greatest count; in each
// of them an endpoint takes a slot at most, and after each it has its share of the rounds. size is the sum of the
// counts.
func turns(counts []int, size int) []int {
	rounds := uint64(slices.Max(counts))
	begins := make([]int, rounds+1) // of each round
	each := func(do func(round uint64, i int)) {
		for i, n := range counts {
			for turn := range uint64(n) {
				do(turn*rounds/uint64(n), i)
			}
		}
	}
	each(func(round uint64, _ int) { begins[round+1]++ })
	for round := range rounds {
		begins[round+1] += begins[round]
	}
	order := make([]int, size)
	each(func(round uint64, i int) {
		order[begins[round]] = i
		begins[round]++
	})
	return order
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

// SlotLimit returns the greatest number of slots that a service's lists of endpoints may have.
func SlotLimit(s *service.Service) int {
	if s.SlotLimit == 0 {
		return MaxSize
	}
	return s.SlotLimit
}

// MostSlots returns the greatest number of slots that a list of the port's endpoints of a family may have on any node:
// a list of fewer endpoints never has more.
func MostSlots(s *service.Service, p *service.Port, family ip.Family) int {
	return mostSlots(s, p, family, 1)
}

// MostSlotsGrowing returns the same for any endpoints that have only quarters of their weights for a while.
func MostSlotsGrowing(s *service.Service, p *service.Port, family ip.Family) int {
	return mostSlots(s, p, family, uint64(service.WholeShare.Quarters()))
}

func mostSlots(s *service.Service, p *service.Port, family ip.Family, parts uint64) int {
	n := p.Count(family)
	feedback := s.Options.Balance == service.ByLeastConnections
	switch size := TableSize(n, SlotLimit(s)); {
	case s.SlotLimit == service.NoSlots:
		return n
	case s.Options.Balance.Hashes():
		return max(n, size)
	case !p.Weighted() && !feedback && parts == 1:
		return n
	}
	weights := make([]uint32, 0, n)
	for e := range p.Endpoints.All() {
		if family.Has(e.Addr.Addr()) {
			weights = append(weights, e.Quarters())
		}
	}
	if feedback {
		return max(n, mostLeastConnections(weights, SlotLimit(s), parts))
	}
	return max(n, drawnSize(weights, SlotLimit(s), parts))
}
