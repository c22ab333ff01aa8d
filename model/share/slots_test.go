package share

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// TestDrawn: the shares of slots are those of the weights. Exactly, where a row of bearable length can have them.
func TestDrawn(t *testing.T) {
	for _, c := range []struct {
		weights []uint32
		limit   int
		want    []int
	}{
		{nil, MaxSize, nil},
		{[]uint32{7}, MaxSize, nil},
		{[]uint32{100, 100, 100}, MaxSize, nil},
		{[]uint32{0, 0}, MaxSize, nil},
		{[]uint32{90, 10}, MaxSize, []int{9, 1}},
		{[]uint32{0, 50, 100}, MaxSize, []int{0, 1, 2}},
		{[]uint32{999, 1}, MaxSize, []int{999, 1}},
		{[]uint32{999, 1}, 251, []int{250, 1}},
		{[]uint32{65535, 1}, MaxSize, []int{4092, 1}},
		{[]uint32{65535, 1, 1}, 2, nil},
		{[]uint32{65535, 1, 1}, 4, []int{2, 1, 1}},
		{[]uint32{65535, 1, 65535, 1, 1, 1, 1, 1}, 16, []int{5, 1, 5, 1, 1, 1, 1, 1}},
	} {
		if got := Drawn(c.weights, c.limit); !slices.Equal(got, c.want) {
			t.Errorf("Drawn(%v, %d) = %v, want %v", c.weights, c.limit, got, c.want)
		}
	}
}

// TestShares: whatever the weights, in rows for random draws and in tables, each share is off by less than a slot, or
// the endpoint has the one slot that it needs at least; and a row has no more slots than was said. So with equal or
// similar weights it is off by 2 % at most.
func TestShares(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 2 + rng.IntN(1<<rng.IntN(9))
		weights, names := make([]uint32, n), make([]string, n)
		most := uint32(1) << rng.IntN(17)
		for i := range weights {
			weights[i], names[i] = rng.Uint32N(most), fmt.Sprintf("%05d", i)
		}
		weights[rng.IntN(n)] = 1 + rng.Uint32N(most)
		counts := Drawn(weights, MaxSize)
		checkShares(t, fmt.Sprint("drawn, seed ", seed), weights, counts)
		if got := len(slices.Repeat([]int{0}, total(counts))); counts != nil && got != DrawnSize(weights, MaxSize) {
			t.Fatalf("seed %d: %d slots, want %d", seed, got, DrawnSize(weights, MaxSize))
		}
		size := TableSize(n, MaxSize)
		inTable := make([]int, n)
		for _, i := range Table(names, weights, size) {
			inTable[i]++
		}
		checkShares(t, fmt.Sprint("table, seed ", seed), weights, inTable)
		// Fewer endpoints never have more slots: the bound on a Service's elements relies on it.
		var some []uint32
		for _, w := range weights {
			if rng.IntN(2) == 0 {
				some = append(some, w)
			}
		}
		if all, fewer := max(n, DrawnSize(weights, MaxSize)), max(len(some), DrawnSize(some, MaxSize)); fewer > all {
			t.Fatalf("seed %d: %d slots for some of the endpoints, %d for all", seed, fewer, all)
		}
	}
}

// TestMostSlotsGrowing: whichever endpoints of a list have parts of their weights, are drained or gone, it has no more
// slots than MostSlotsGrowing says of the whole. That is no more than four times the exact row and what feedback adds.
func TestMostSlotsGrowing(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	reached := map[service.Balance]int{}
	for range 3000 {
		s, odd, n := &service.Service{}, uint16(1+rng.IntN(65535)), 1+rng.IntN(1+rng.IntN(200))
		s.Options.Balance = []service.Balance{service.ByRandom, service.ByLeastConnections, service.ByClient}[rng.IntN(3)]
		s.SlotLimit = []int{0, 0, 0, 251, 1021, 4093, service.NoSlots}[rng.IntN(7)]
		weights := [][]uint16{{100}, {100}, {1}, {100, 300}, {1009, 1013}, {odd, 100}, {0, 100}, {0}}[rng.IntN(8)]
		var whole, grown []service.Endpoint
		for i := range n {
			e := service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 80),
				Ready: true, Weight: service.NewWeight(weights[rng.IntN(len(weights))])}
			if whole = append(whole, e); rng.IntN(20) == 0 {
				continue
			}
			e.Share = []service.Share{service.WholeShare, service.WholeShare, service.ThreeQuarters, service.Half,
				service.Quarter, service.NoShare}[rng.IntN(6)]
			grown = append(grown, e)
		}
		size := func(most func(*service.Service, *service.Port, ip.Family) int, list []service.Endpoint) int {
			return most(s, &service.Port{Endpoints: service.MergeEndpoints(list)}, ip.V4)
		}
		most, got := size(MostSlotsGrowing, whole), max(size(MostSlots, whole), size(MostSlots, grown))
		if got > most || most > max(4*size(MostSlots, whole), 4093) {
			t.Fatalf("%v of %d endpoints, weights %v, limit %d: %d slots in part, %d at most, %d as a whole",
				s.Options.Balance, n, weights, s.SlotLimit, got, most, size(MostSlots, whole))
		}
		if got == most {
			reached[s.Options.Balance]++
		}
	}
	if len(reached) != 3 {
		t.Errorf("the bound is reached %v times", reached)
	}
}

// TestTableByRounds: the turns are those of Maglev's algorithm as it is written, round by round.
func TestTableByRounds(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		counts, size := make([]int, 1+rng.IntN(20)), 0
		for i := range counts {
			counts[i] = rng.IntN(1 << rng.IntN(8))
			size += counts[i]
		}
		var want []int
		rounds, taken := slices.Max(counts), make([]int, len(counts))
		for round := 1; round <= rounds; round++ {
			for i, n := range counts {
				if taken[i]*rounds < n*round {
					taken[i]++
					want = append(want, i)
				}
			}
		}
		if got := turns(counts, size); !slices.Equal(got, want) {
			t.Fatalf("counts %d: %d, want %d", counts, got, want)
		}
	}
}

// TestHostileWeights: the work follows the number of slots, not that of endpoints times the greatest weight, and many
// light endpoints take from heavy ones of equal weight alike.
func TestHostileWeights(t *testing.T) {
	const n = 20000
	weights, names := make([]uint32, n), make([]string, n)
	for i := range weights {
		weights[i], names[i] = 1, fmt.Sprintf("%05d", i)
	}
	weights[0], weights[n-1] = 65535, 65535
	counts := Drawn(weights, MaxSize)
	checkShares(t, "drawn", weights, counts)
	inTable := make([]int, n)
	for _, i := range Table(names, weights, MaxSize) {
		inTable[i]++
	}
	checkShares(t, "table", weights, inTable)
	if !slices.Equal(counts, inTable) {
		t.Error("draws and table have other shares")
	}
}

func total(counts []int) int {
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}

func checkShares(t *testing.T, what string, weights []uint32, counts []int) {
	t.Helper()
	if counts == nil {
		return
	}
	all, size, least := sum(weights), total(counts), 0
	for i, n := range counts {
		if weights[i] > 0 && float64(weights[i])*float64(size)/float64(all) < 1 {
			least++
		}
		if (n > 0) != (weights[i] > 0) {
			t.Fatalf("%s: endpoint %d of weight %d has %d slots", what, i, weights[i], n)
		}
	}
	byWeight := map[uint32]int{}
	for i, n := range counts {
		if one, ok := byWeight[weights[i]]; ok && max(n-one, one-n) > 1 {
			t.Fatalf("%s: two endpoints of weight %d have %d and %d slots", what, weights[i], one, n)
		}
		byWeight[weights[i]] = n
		exact := float64(weights[i]) * float64(size) / float64(all)
		// Slots that others need at least come from those who have many.
		if math.Abs(float64(n)-exact) >= 1 && !(n == 1 && exact < 1) && float64(n) < exact-float64(1+least) {
			t.Fatalf("%s: endpoint %d has %d slots of %d, want %.2f", what, i, n, size, exact)
		}
	}
}

// TestTableFewestMoves: where an endpoint leaves, hardly any clients move but its own; where weights change, hardly any
// but those that have to. Maglev's permutations cost a little more than the least.
func TestTableFewestMoves(t *testing.T) {
	for _, n := range []int{2, 3, 5, 10, 20, 100, 300} {
		names, weights := make([]string, n), make([]uint32, n)
		for i := range names {
			names[i], weights[i] = fmt.Sprintf("10.0.%03d.%03d:80", i/250, i%250), 100
		}
		size := TableSize(n, MaxSize)
		before := Table(names, weights, size)
		worst := 0.0
		for gone := 0; gone < n; gone += max(1, n/10) {
			fewer := slices.Delete(slices.Clone(names), gone, gone+1)
			if len(fewer) < 2 || TableSize(len(fewer), MaxSize) != size {
				continue
			}
			moved, its := 0, 0
			for slot, i := range Table(fewer, weights[:n-1], size) {
				if before[slot] == gone {
					its++
				}
				if fewer[i] != names[before[slot]] {
					moved++
				}
			}
			worst = max(worst, float64(moved)/float64(size))
			if most := float64(its) + 0.08*float64(size); float64(moved) > most {
				t.Errorf("%d endpoints: without endpoint %d %d of %d slots move, %d were its own", n, gone, moved, size, its)
			}
		}
		t.Logf("%d endpoints, %d slots: one less moves %.1f %% of the clients at most; 1/N is %.1f %%", n, size, 100*worst,
			100/float64(n))
		heavier := slices.Clone(weights)
		heavier[0] = 150
		least, moved := 0, 0
		after := Table(names, heavier, size)
		for slot := range after {
			if after[slot] != before[slot] {
				moved++
			}
			if after[slot] == 0 {
				least++
			}
			if before[slot] == 0 {
				least--
			}
		}
		t.Logf("  half as much again for one: %.1f %% move, %.1f %% have to", 100*float64(moved)/float64(size),
			100*float64(least)/float64(size))
		if float64(moved) > float64(least)+0.08*float64(size) {
			t.Errorf("%d endpoints: a changed weight moves %d of %d slots, %d have to", n, moved, size, least)
		}
	}
}

// TestTableSize: see the function.
func TestTableSize(t *testing.T) {
	for _, c := range [][3]int{
		{0, MaxSize, 0}, {1, MaxSize, 0}, {2, MaxSize, 251}, {5, MaxSize, 251}, {6, MaxSize, 1021}, {20, MaxSize, 1021},
		{21, MaxSize, 4093},
		{1000, MaxSize, MaxSize}, {65521, MaxSize, MaxSize}, {65522, MaxSize, 0}, {6, 1020, 251}, {300, 251, 0}, {2, 250, 0},
	} {
		if got := TableSize(c[0], c[1]); got != c[2] {
			t.Errorf("TableSize(%d, %d) = %d, want %d", c[0], c[1], got, c[2])
		}
	}
}
