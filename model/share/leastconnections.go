package share

import (
	"cmp"
	"slices"
)

// Least connections is feedback: a node counts its open connections to each endpoint, at most once a second, and moves
// slots of the row from endpoints that hold more than their part to those that hold less. Each new connection still
// draws a slot at random.

const (
	// leastPerEndpoint is how many slots a row has for each endpoint, at least. A slot more or less is 6 % of the share.
	leastPerEndpoint = 16
	// leastFloor and leastCap bound what an endpoint may have: a quarter of its part by weight, so that one that was slow
	// is seen when it no longer is, and twice its part, so that one that fails at once, and therefore holds nothing, gets
	// twice what it would get at random. A lower cap would have a new endpoint wait longer for its part.
	leastFloor, leastCap = 4, 2
	// leastSeen is from how many connections on, by its part, an endpoint that holds none counts as if it held its part:
	// it refuses each, is new, or is one of 55 by chance. So one that refuses gets no more than it would at random, and a
	// little of what others give up. A new one gets its first connection as soon as by chance, and then counts.
	leastSeen = 4
	// leastDamping divides the moves: of those that would bring shares to the inverse square of the counts, a step does
	// every fourth. If all connections are new at each step, all moves would overshoot, and every second one would swing
	// without end. It also leaves the last three undone, so that chance alone changes little.
	leastDamping = 4
)

// Load is what a node knows of an endpoint of a row.
type Load struct {
	// Weight is in quarters (service.Endpoint.Quarters), and above 0.
	Weight uint32
	// Open is the number of open connections of this node.
	Open int
	// Slots is how many slots the endpoint has now; 0 for a new one.
	Slots int
}

// LeastConnectionsSize returns the length of a row of endpoints with these weights, at most the limit; 0 if one slot
// for each is enough, or if there is no room for feedback. It is a multiple of the shortest row that has the shares
// exactly, where that fits.
func LeastConnectionsSize(weights []uint32, limit int) int {
	n := 0
	for _, w := range weights {
		if w > 0 {
			n++
		}
	}
	limit = mostLeast(n, limit)
	if n < 2 || limit < leastCap*n {
		return 0
	}
	exact := sum(weights) / commonDivisor(weights)
	if exact > uint64(limit) {
		return limit
	}
	times := (leastPerEndpoint*n + int(exact) - 1) / int(exact)
	return int(exact) * min(times, limit/int(exact))
}

func mostLeast(n, limit int) int { return min(limit, max(leastDrawn, leastPerEndpoint*n)) }

// mostLeastConnections bounds the length of a row of some of endpoints with these weights, which come in so many parts.
func mostLeastConnections(weights []uint32, limit int, parts uint64) int {
	exact := parts * sum(weights) / max(1, commonDivisor(weights))
	return int(min(uint64(mostLeast(len(weights), limit)), uint64(leastPerEndpoint*len(weights))+exact))
}

// LeastConnections returns how many of the size slots each endpoint has in the next step: at most most slots move.
// Nobody gets less than a quarter of its part by weight (one slot at least), or more than twice that part. A row of
// another size, new endpoints and other weights are brought within these bounds first, with as many changes as that
// takes. size is at least the number of endpoints. The order of the endpoints decides only between equal ones, and
// which of equal weight has the slots that rounding leaves. Nodes should give different orders: else all prefer the
// same.
//
// The cost grows with the number of endpoints, and by a logarithm of it with each move.
func LeastConnections(loads []Load, size, most int) []int {
	r := newLeastRow(loads, size)
	r.fit(size)
	var moves []move
	next := slices.Clone(r.slots)
	for len(moves) < leastDamping*most {
		from, to := r.giver(), r.taker()
		if from < 0 || to < 0 || r.pressure(from, -1) <= r.pressure(to, 1) {
			break
		}
		r.change(from, -1)
		r.change(to, 1)
		moves = append(moves, move{from, to})
	}
	for i := leastDamping - 1; i < len(moves); i += leastDamping {
		next[moves[i].from]--
		next[moves[i].to]++
	}
	return next
}

// move is one slot that goes from one endpoint to another.
type move struct{ from, to int }

// leastRow is a row on its way to the next step.
type leastRow struct {
	loads       []Load
	slots, fair []int
	// relative is how many connections an endpoint holds beside its part of them, squared, for one slot of its part.
	relative []float64

	givers, takers tournament
}

func newLeastRow(loads []Load, size int) *leastRow {
	r := &leastRow{loads: loads, slots: make([]int, len(loads)), relative: make([]float64, len(loads))}
	weights, open := make([]uint32, len(loads)), 0
	for i, l := range loads {
		weights[i] = l.Weight
		open += l.Open
	}
	r.fair = split(weights, size)
	for i, l := range loads {
		part := float64(r.fair[i]) / float64(size)
		one := part * float64(len(loads)) // 1 if all weigh the same: so nobody holds nothing
		over := (float64(l.Open) + one) / (part*float64(open) + one)
		if l.Open == 0 && part*float64(open) >= leastSeen {
			over = 1
		}
		r.relative[i] = over * over / float64(r.fair[i])
		r.slots[i] = min(max(cmp.Or(l.Slots, r.fair[i]), r.floor(i)), r.cap(i))
	}
	r.play()
	return r
}

func (r *leastRow) floor(i int) int { return max(1, r.fair[i]/leastFloor) }
func (r *leastRow) cap(i int) int   { return leastCap * r.fair[i] }

// fit has as many slots as the row.
func (r *leastRow) fit(size int) {
	total := 0
	for _, n := range r.slots {
		total += n
	}
	for ; total < size; total++ {
		r.change(r.taker(), 1)
	}
	for ; total > size; total-- {
		r.change(r.giver(), -1)
	}
}

// pressure is how much an endpoint has of slots and connections, if it gets some slots: it is equal for all where the
// shares follow the inverse square of the counts.
func (r *leastRow) pressure(i, change int) float64 {
	return float64(r.slots[i]+change) * r.relative[i]
}

// compare orders endpoints by pressure. Of equal ones it orders what they have, so that their order in the list
// decides only between those that have the same.
func (r *leastRow) compare(i, j int) int {
	return cmp.Or(cmp.Compare(r.pressure(i, 0), r.pressure(j, 0)), cmp.Compare(r.loads[i].Open, r.loads[j].Open),
		cmp.Compare(r.loads[i].Weight, r.loads[j].Weight), cmp.Compare(r.loads[i].Slots, r.loads[j].Slots))
}

// giver is the endpoint of the greatest pressure that has more than its floor, or -1.
func (r *leastRow) giver() int {
	if i := r.givers.first(); r.gives(i) {
		return i
	}
	return -1
}

// taker is the endpoint of the least pressure that has less than its cap, or -1.
func (r *leastRow) taker() int {
	if i := r.takers.first(); r.takes(i) {
		return i
	}
	return -1
}

func (r *leastRow) gives(i int) bool { return r.slots[i] > r.floor(i) }
func (r *leastRow) takes(i int) bool { return r.slots[i] < r.cap(i) }

// play has the first givers and takers at hand.
func (r *leastRow) play() {
	r.givers = newTournament(len(r.loads), func(i, j int) bool {
		if r.gives(i) != r.gives(j) {
			return r.gives(i)
		}
		c := r.compare(i, j)
		return c > 0 || c == 0 && i < j
	})
	r.takers = newTournament(len(r.loads), func(i, j int) bool {
		if r.takes(i) != r.takes(j) {
			return r.takes(i)
		}
		c := r.compare(i, j)
		return c < 0 || c == 0 && i < j
	})
}

// change gives an endpoint some slots, or takes them.
func (r *leastRow) change(i, by int) {
	r.slots[i] += by
	r.givers.changed(i)
	r.takers.changed(i)
}

// tournament knows the first of some numbers by an order that changes for one of them at a time.
type tournament struct {
	before func(i, j int) bool
	// winners is a binary tree: that at i is the first of those at 2i and 2i+1, and the second half are the numbers.
	winners []int
}

func newTournament(n int, before func(i, j int) bool) tournament {
	t := tournament{before, make([]int, 2*n)}
	for i := range n {
		t.winners[n+i] = i
	}
	for at := n - 1; at > 0; at-- {
		t.play(at)
	}
	return t
}

func (t *tournament) play(at int) {
	t.winners[at] = t.winners[2*at]
	if other := t.winners[2*at+1]; t.before(other, t.winners[at]) {
		t.winners[at] = other
	}
}

func (t *tournament) first() int { return t.winners[1] }

func (t *tournament) changed(i int) {
	for at := (len(t.winners)/2 + i) / 2; at > 0; at /= 2 {
		t.play(at)
	}
}
