package share

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
)

// randomLoads returns endpoints of a row of that size: some new, some of another weight before.
func randomLoads(rng *rand.Rand, n int) ([]Load, int) {
	loads, weights, odd := make([]Load, n), make([]uint32, n), uint32(200)
	if rng.IntN(2) == 0 {
		odd = 1 + rng.Uint32N(4*65535)
	}
	for i := range loads {
		weights[i] = []uint32{400, 400, 100, odd}[rng.IntN(4)]
		loads[i].Weight = weights[i]
		loads[i].Open = int(rng.ExpFloat64() * math.Pow(10, float64(rng.IntN(6))))
	}
	size := LeastConnectionsSize(weights, MaxSize)
	for i, slots := range split(weights, size) {
		loads[i].Slots = rng.IntN(3 * slots)
	}
	return loads, size
}

// TestLeastConnections: a row keeps its length, each endpoint is within its bounds, few slots move, an endpoint that
// has more connections beside its weight does not gain, and the order of the endpoints makes no difference.
func TestLeastConnections(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		loads, size := randomLoads(rng, 2+rng.IntN(40))
		weights := make([]uint32, len(loads))
		for i, l := range loads {
			weights[i] = l.Weight
		}
		fair, most := split(weights, size), 1+rng.IntN(20)
		next := LeastConnections(loads, size, most)
		for step := range 3 {
			moved, total := 0, 0
			for i, n := range next {
				if n < max(1, fair[i]/4) || n > 2*fair[i] {
					t.Fatalf("%+v of %d has %d slots, its part is %d", loads[i], size, n, fair[i])
				}
				moved, total = moved+max(0, n-loads[i].Slots), total+n
				loads[i].Slots = n
			}
			if total != size || step > 0 && moved > most {
				t.Fatalf("%d of %d slots, %d of %d moved", total, size, moved, most)
			}
			next = LeastConnections(loads, size, most)
		}
		if size%int(sum(weights)/divisorOf(weights)) != 0 {
			continue // The rest of the rounding goes by order.
		}
		order := rng.Perm(len(loads))
		shuffled := make([]Load, len(loads))
		for i, at := range order {
			shuffled[at] = loads[i]
		}
		was, is := slices.Clone(loads), slices.Clone(shuffled)
		for i, n := range LeastConnections(shuffled, size, most) {
			is[i].Slots = n*100000 + is[i].Slots
			was[i].Slots = next[i]*100000 + was[i].Slots
		}
		if byAll(was); !slices.Equal(byAll(was), byAll(is)) {
			t.Fatalf("in another order\n%+v\nbecome\n%+v", was, is)
		}
	}
}

func divisorOf(weights []uint32) (divisor uint64) {
	for _, w := range weights {
		divisor = GCD(uint64(w), divisor)
	}
	return divisor
}

func byAll(loads []Load) []Load {
	slices.SortFunc(loads, func(a, b Load) int {
		return cmp.Or(cmp.Compare(a.Weight, b.Weight), cmp.Compare(a.Open, b.Open), cmp.Compare(a.Slots, b.Slots))
	})
	return loads
}

// TestLeastConnectionsExamples: rows that people can check.
func TestLeastConnectionsExamples(t *testing.T) {
	for _, c := range []struct {
		name  string
		loads []Load
		want  []int // after many steps with the same counts
	}{
		{"equal", []Load{{400, 5, 16}, {400, 5, 16}}, []int{16, 16}},
		{"by chance", []Load{{400, 52, 16}, {400, 50, 16}, {400, 48, 16}}, []int{16, 16, 16}},
		{"one is slow", []Load{{400, 30, 16}, {400, 10, 16}, {400, 10, 16}}, []int{4, 22, 22}},
		{"one holds few", []Load{{400, 1, 16}, {400, 10, 16}, {400, 10, 16}}, []int{32, 8, 8}},
		{"one holds nothing", []Load{{400, 0, 16}, {400, 10, 16}, {400, 10, 16}}, []int{24, 12, 12}},
		{"a new one", []Load{{400, 0, 0}, {400, 10, 24}, {400, 10, 24}}, []int{24, 12, 12}},
		{"one holds nothing, as others hardly do", []Load{{400, 0, 16}, {400, 3, 16}, {400, 3, 16}}, []int{32, 8, 8}},
		{"one of many holds nothing", append([]Load{{400, 0, 16}}, slices.Repeat([]Load{{400, 40, 16}}, 9)...),
			append([]int{19}, slices.Repeat([]int{16}, 9)...)},
		{"90 to 10, as it should be", []Load{{360, 9, 36}, {40, 1, 4}}, []int{36, 4}},
		{"nobody has any", []Load{{400, 0, 16}, {400, 0, 16}}, []int{16, 16}},
	} {
		weights := make([]uint32, len(c.loads))
		for i, l := range c.loads {
			weights[i] = l.Weight
		}
		size := LeastConnectionsSize(weights, MaxSize)
		var got []int
		for range 100 {
			got = LeastConnections(c.loads, size, size)
			for i, n := range got {
				c.loads[i].Slots = n
			}
		}
		for i := range got {
			if d := got[i] - c.want[i]; d < -leastDamping || d > leastDamping {
				t.Errorf("%s: %d, want about %d", c.name, got, c.want)
				break
			}
		}
	}
}

// TestLeastConnectionsSize: a row has the shares of the weights exactly where that fits, and room for feedback or none.
func TestLeastConnectionsSize(t *testing.T) {
	for _, c := range []struct {
		weights []uint32
		limit   int
		want    int
	}{
		{nil, MaxSize, 0},
		{[]uint32{400}, MaxSize, 0},
		{[]uint32{400, 400}, MaxSize, 32},
		{[]uint32{400, 400, 0, 400}, MaxSize, 48},
		{[]uint32{360, 40}, MaxSize, 40},
		{[]uint32{999, 1}, MaxSize, 1000},
		{[]uint32{65535, 1}, MaxSize, 4093},
		{slices.Repeat([]uint32{400}, 1000), MaxSize, 16000},
		{slices.Repeat([]uint32{400}, 1000), 4093, 4000},
		{slices.Repeat([]uint32{400}, 1000), 1021, 0},
	} {
		if got := LeastConnectionsSize(c.weights, c.limit); got != c.want {
			t.Errorf("%d weights, at most %d: %d slots, want %d", len(c.weights), c.limit, got, c.want)
		}
	}
}

// TestLeastConnectionsSettle: without chance, the row comes to rest: whether connections last for a hundredth of a
// step or for thousands of them, with few and many endpoints, and whichever are slow. In the end an endpoint's slots
// swing by no more than the moves that are left undone, and by less than a quarter of its part.
func TestLeastConnectionsSettle(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, lasts := range []float64{0.01, 0.3, 1, 3, 10, 100} {
		for _, n := range []int{2, 3, 10, 50} {
			for _, mean := range []float64{10, 100, 10000} {
				loads, slower, open := make([]Load, n), make([]float64, n), make([]float64, n)
				for i := range loads {
					loads[i].Weight, slower[i] = 400, []float64{1, 1, 1, 0.01, 5}[rng.IntN(5)]
				}
				size := leastPerEndpoint * n
				least, greatest := slices.Repeat([]int{size}, n), make([]int, n)
				settle := 200 + int(40*lasts)
				for step := range settle + 100 {
					for i, slots := range LeastConnections(loads, size, size) {
						loads[i].Slots = slots
						if step >= settle {
							least[i], greatest[i] = min(least[i], slots), max(greatest[i], slots)
						}
						part := float64(slots) / float64(size) * float64(n)
						stay := math.Exp(-1 / (lasts * slower[i]))
						open[i] = open[i]*stay + mean*slower[i]*part*(1-stay)
						loads[i].Open = int(math.Round(open[i]))
					}
				}
				for i := range loads {
					if swing := greatest[i] - least[i]; swing > leastPerEndpoint/4 {
						t.Errorf("connections of %v steps, %v to each of %d endpoints: the slots of one that takes %v times as "+
							"long swing from %d to %d", lasts, mean, n, slower[i], least[i], greatest[i])
					}
				}
			}
		}
	}
}

// usual is the situation of which the others differ: connections of a minute, with a second in between.
func usual() situation {
	return situation{nodes: 3, clients: 100, endpoints: 10, hold: exponential(60), pause: 1, warm: 200, length: 300}
}

// question is a situation and what is asked about it.
type question struct {
	name string
	edit func(*situation)
	of   func(outcome) float64
}

func spread(o outcome) float64  { return o.spread }
func peak(o outcome) float64    { return o.peak }
func late(o outcome) float64    { return o.late }
func share(o outcome) float64   { return 100 * o.share }
func settled(o outcome) float64 { return o.settled }

func short(s *situation) { s.hold, s.pause, s.warm, s.length = exponential(0.2), 0.8, 60, 100 }
func slow(s *situation)  { short(s); s.hold, s.pause, s.slow, s.servers = exponential(0.1), 0.4, 5, 12 }

func questions() []question {
	none := func(*situation) {}
	return []question{
		{"0.2 s, 100 clients", short, spread},
		{"0.2 s, 1,000 clients", func(s *situation) { short(s); s.clients = 1000 }, spread},
		{"2 s, 100 clients", func(s *situation) { s.hold, s.warm = exponential(2), 60 }, spread},
		{"60 s, 1 client", func(s *situation) { s.clients, s.length = 1, 3000 }, spread},
		{"60 s, 10 clients", func(s *situation) { s.clients, s.length = 10, 1000 }, spread},
		{"60 s, 100 clients", none, spread},
		{"60 s, 1,000 clients", func(s *situation) { s.clients = 1000 }, spread},
		{"60 s, 100 clients, greatest/mean", none, func(o outcome) float64 { return o.greatest }},
		{"Pareto, 10 s, 100 clients", func(s *situation) { s.hold = pareto(10) }, spread},
		{"never closed, 100 clients", func(s *situation) { s.hold, s.warm, s.length = exponential(1e9), 60, 5 }, spread},
		{"60 s, 3 endpoints", func(s *situation) { s.endpoints = 3 }, spread},
		{"60 s, 100 endpoints, 1,000 clients", func(s *situation) { s.endpoints, s.clients = 100, 1000 }, spread},
		{"the same, 8 slots moved at most", func(s *situation) { s.endpoints, s.clients, s.most = 100, 1000, 8 }, spread},
		{"60 s, 1 node, 600 clients", func(s *situation) { s.nodes, s.clients = 1, 600 }, spread},
		{"60 s, 20 nodes, 600 clients in all", func(s *situation) { s.nodes, s.clients = 20, 30 }, spread},
		{"60 s, 100 nodes, 600 clients in all", func(s *situation) { s.nodes, s.clients = 100, 6 }, spread},
		{"60 s, weights 1 and 2", func(s *situation) { s.weights = []uint32{2, 2, 2, 2, 2, 1, 1, 1, 1, 1} }, spread},
		{"60 s, counted every 20 s", func(s *situation) { s.every = 20 }, spread},
		{"2 s, counted every 20 s", func(s *situation) { s.hold, s.every = exponential(2), 20 }, spread},
		{"60 s, 11 times the clients within 2 s: peak", func(s *situation) { s.crowd, s.crowded = 1000, 250 }, peak},
		{"0.1 s, one 5 times as slow: 99th percentile, s", slow, late},
		{"2 s, one 5 times as slow: 99th percentile, s", func(s *situation) {
			slow(s)
			s.hold, s.pause, s.servers = exponential(2), 2, 24
		}, late},
		{"the same, 1 slot moved at most", func(s *situation) {
			slow(s)
			s.hold, s.pause, s.servers, s.most = exponential(2), 2, 24, 1
		}, late},
		{"10 s, one refuses: its share, %", func(s *situation) { s.hold, s.fails = exponential(10), true }, share},
		{"0.2 s, one refuses: its share, %", func(s *situation) { short(s); s.fails = true }, share},
		{"60 s, one replaced: until 80 %, s", func(s *situation) { s.replaced, s.length = 250, 1000 }, settled},
		{"600 s, one replaced: until 80 %, s", func(s *situation) {
			s.hold, s.replaced, s.length = exponential(600), 900, 3000
		}, settled},
	}
}

// balancers are those of a situation, by column of the table.
func balancers(s situation) []balancer {
	weights := s.weights
	if s.slow > 0 { // somebody knows which one it is
		weights = append(weights, 20)
		for range s.endpoints - 1 {
			weights = append(weights, 100)
		}
	}
	return []balancer{atRandom(nil), atRandom(weights), leastOfIPVS{}, ofTwo{}, &feedback{}, &feedback{refused: true}}
}

// BenchmarkLeastConnectionsStep: one step of 1,000 endpoints with counts by chance.
func BenchmarkLeastConnectionsStep(b *testing.B) {
	rng := rand.New(rand.NewPCG(5, 6))
	loads := make([]Load, 1000)
	for i := range loads {
		loads[i] = Load{Weight: 400, Open: rng.IntN(50), Slots: leastPerEndpoint}
	}
	for b.Loop() {
		LeastConnections(loads, leastPerEndpoint*len(loads), 64)
	}
}

// BenchmarkLeastConnections prints what docs/evidence/least-connections.md has: means of three runs.
func BenchmarkLeastConnections(b *testing.B) {
	var text strings.Builder
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "\trandom\tweighted\tIPVS lc\ttwo choices\tfeedback\tand refused\tmoved\tswing")
	const runs = 3
	for _, q := range questions() {
		s := usual()
		q.edit(&s)
		fmt.Fprint(out, q.name)
		var moves, swing float64
		for column := range balancers(s) {
			mean := 0.0
			for seed := range uint64(runs) {
				o := simulate(s, balancers(s)[column], seed)
				mean += q.of(o) / runs
				if column == 4 {
					moves, swing = moves+o.moves/runs, swing+o.swing/runs
				}
			}
			fmt.Fprintf(out, "\t%.3g", mean)
		}
		fmt.Fprintf(out, "\t%.2g\t%.2f\n", moves, swing)
	}
	out.Flush()
	fmt.Print("\n", text.String())
}

// TestLeastConnectionsInTime: what the page about the simulation concludes. Feedback spreads connections that last
// better than chance does, and those that do not hardly worse; a slow endpoint delays few; one that refuses all gets
// little more than its part, where IPVS gives it most; a new one has its part long before it would by chance.
func TestLeastConnectionsInTime(t *testing.T) {
	by := map[string]question{}
	for _, q := range questions() {
		by[q.name] = q
	}
	for _, c := range []struct {
		name string
		// to is what feedback has beside another balancer, at most.
		beside balancer
		to     float64
	}{
		{"60 s, 100 clients", atRandom(nil), 0.8},
		{"60 s, 20 nodes, 600 clients in all", atRandom(nil), 0.95},
		{"60 s, 100 nodes, 600 clients in all", atRandom(nil), 1},
		{"never closed, 100 clients", atRandom(nil), 0.9},
		{"0.2 s, 100 clients", atRandom(nil), 1.15},
		{"0.2 s, 1,000 clients", atRandom(nil), 1.3},
		{"2 s, counted every 20 s", atRandom(nil), 1.25},
		{"60 s, 11 times the clients within 2 s: peak", atRandom(nil), 1},
		{"0.1 s, one 5 times as slow: 99th percentile, s", atRandom(nil), 0.3},
		{"10 s, one refuses: its share, %", atRandom(nil), 1.2},
		{"10 s, one refuses: its share, %", leastOfIPVS{}, 0.25},
		{"0.2 s, one refuses: its share, %", leastOfIPVS{}, 0.5},
		{"60 s, one replaced: until 80 %, s", atRandom(nil), 0.7},
	} {
		q, known := by[c.name]
		if !known {
			t.Fatalf("no question %q", c.name)
		}
		s := usual()
		q.edit(&s)
		mine, others := 0.0, 0.0
		for seed := range uint64(2) {
			mine += q.of(simulate(s, &feedback{}, seed))
			others += q.of(simulate(s, c.beside, seed))
		}
		if mine > c.to*others {
			t.Errorf("%s: feedback has %.3g times what %T has, want %.3g at most", c.name, mine/others, c.beside, c.to)
		}
	}
}
