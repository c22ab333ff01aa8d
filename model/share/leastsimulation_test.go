package share

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
)

// The simulation: clients on nodes open connections to the endpoints of one Service, hold each for a time, and pause.
// A node sees its own connections only. Times are in seconds. The same seed gives the same run.

// situation is what is simulated. The zero value of a field stands for none.
type situation struct {
	nodes, clients, endpoints int // clients of each node
	hold                      func(*rand.Rand) float64
	pause                     float64 // mean
	// weights are those of the endpoints; nil for equal ones.
	weights []uint32
	// slow is how much longer the first endpoint takes; fails says that it ends each connection at once.
	slow  float64
	fails bool
	// servers is how many connections an endpoint serves at a time: the others wait.
	servers int
	// replaced is when the first endpoint is replaced: its clients come to others, or to the new one.
	replaced float64
	// crowd more clients of each node come once, within two seconds of crowded.
	crowd   int
	crowded float64
	// every is how often a node counts, and most how many slots it then moves at most; 0 stands for each second, and for
	// any number.
	every float64
	most  int
	// Samples are taken in the time length after warm.
	warm, length float64
}

// outcome is what came of it. What concerns connections is about all nodes together, without an endpoint that fails.
type outcome struct {
	// spread is the coefficient of variation of the endpoints' open connections (for one of weight), greatest the greatest
	// of them beside the mean: on average over time. peak is the greatest spread at any time.
	spread, greatest, peak float64
	// share is the part of new connections that the first endpoint gets.
	share float64
	// late is the 99th percentile of the time that a connection waits and is served.
	late float64
	// settled is how long it takes until the replaced endpoint has four fifths of what the others have.
	settled float64
	// moves is how many slots a node moves in a step, and swing the standard deviation over time of an endpoint's slots on
	// one node, beside its part.
	moves, swing float64
}

func exponential(mean float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return r.ExpFloat64() * mean }
}

// pareto has infinite variance: its exponent is 1.5.
func pareto(mean float64) func(*rand.Rand) float64 {
	return func(r *rand.Rand) float64 { return mean / 3 / math.Pow(1-r.Float64(), 1/1.5) }
}

// balancer chooses endpoints.
type balancer interface {
	choose(w *world, node int) int
	// step is called when nodes have counted.
	step(w *world)
}

// world is a situation at a time.
type world struct {
	situation
	rng *rand.Rand
	now float64
	// open counts connections by node and endpoint, closed those that have ended in the two minutes before, or in the ten
	// seconds if they failed, and refused the latter only.
	open, closed, refused [][]int
	// orders are those in which nodes know endpoints.
	orders  [][]int
	busy    []int
	waiting [][]event
	// replacements counts those of an endpoint: what is older does not end again.
	replacements []int
	events       events
	ends         bool // Ended connections are remembered.
}

type event struct {
	at             float64
	what           func(event)
	node, endpoint int
	once, refused  bool
	replacements   int
	began          float64
}

// events are a heap by time.
type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

func (w *world) add(e event, in float64) {
	e.at = w.now + in
	heap.Push(&w.events, e)
}

func newWorld(s situation, seed uint64) *world {
	w := &world{situation: s, rng: rand.New(rand.NewPCG(seed, 0)), busy: make([]int, s.endpoints),
		waiting: make([][]event, s.endpoints), replacements: make([]int, s.endpoints)}
	if w.every == 0 {
		w.every = 1
	}
	if w.weights == nil {
		w.weights = slices.Repeat([]uint32{1}, s.endpoints)
	}
	for range s.nodes {
		w.open, w.closed = append(w.open, make([]int, s.endpoints)), append(w.closed, make([]int, s.endpoints))
		w.refused, w.orders = append(w.refused, make([]int, s.endpoints)), append(w.orders, w.rng.Perm(s.endpoints))
	}
	return w
}

// simulate runs a situation.
func simulate(s situation, b balancer, seed uint64) outcome {
	w := newWorld(s, seed)
	_, w.ends = b.(leastOfIPVS)
	if f, ok := b.(*feedback); ok {
		w.ends = f.refused
	}
	m := measure{world: w}
	var arrive, finish func(event)
	serve := func(e event) {
		w.busy[e.endpoint]++
		takes := w.hold(w.rng)
		switch {
		case w.fails && e.endpoint == 0:
			takes, e.refused = 0.001, true
		case w.slow > 0 && e.endpoint == 0:
			takes *= w.slow
		}
		e.what = finish
		w.add(e, takes)
	}
	arrive = func(e event) {
		e.endpoint = b.choose(w, e.node)
		e.began, e.replacements = w.now, w.replacements[e.endpoint]
		w.open[e.node][e.endpoint]++
		m.opened(e)
		if w.servers > 0 && w.busy[e.endpoint] == w.servers {
			w.waiting[e.endpoint] = append(w.waiting[e.endpoint], e)
			return
		}
		serve(e)
	}
	finish = func(e event) {
		if e.replacements != w.replacements[e.endpoint] {
			return // Its client has come back already.
		}
		w.open[e.node][e.endpoint]--
		w.busy[e.endpoint]--
		m.ended(e)
		w.remember(e)
		if queue := w.waiting[e.endpoint]; len(queue) > 0 {
			w.waiting[e.endpoint] = queue[1:]
			serve(queue[0])
		}
		if !e.once {
			w.add(event{what: arrive, node: e.node}, w.rng.ExpFloat64()*w.pause)
		}
	}
	for node := range s.nodes {
		for range s.clients {
			w.add(event{what: arrive, node: node}, w.rng.Float64()*30)
		}
		for range s.crowd {
			w.add(event{what: arrive, node: node, once: true}, s.crowded+2*w.rng.Float64())
		}
	}
	if s.replaced > 0 {
		w.add(event{what: func(event) { w.replace(arrive) }}, s.replaced)
	}
	steps := 0.0
	var tick func(event)
	tick = func(event) {
		m.sample()
		if w.now >= (steps+1)*w.every {
			steps++
			b.step(w)
			m.stepped(b)
		}
		w.add(event{what: tick}, 1)
	}
	w.add(event{what: tick}, 1)
	for w.now < s.warm+s.length {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.what(e)
	}
	return m.outcome()
}

// replace replaces the first endpoint. Its clients connect again, each after a second on average.
func (w *world) replace(arrive func(event)) {
	w.replacements[0]++
	for node := range w.nodes {
		for range w.open[node][0] {
			w.add(event{what: arrive, node: node}, w.rng.ExpFloat64())
		}
		w.open[node][0], w.closed[node][0], w.refused[node][0] = 0, 0, 0
	}
	w.busy[0], w.waiting[0] = 0, nil
}

// remember remembers the end of a connection for as long as IPVS and connection tracking do (Linux: 2 min in
// TIME_WAIT, 10 s in CLOSE).
func (w *world) remember(e event) {
	if !w.ends {
		return
	}
	count := func(e event, by int) {
		if e.replacements == w.replacements[e.endpoint] {
			w.closed[e.node][e.endpoint] += by
			if e.refused {
				w.refused[e.node][e.endpoint] += by
			}
		}
	}
	count(e, 1)
	e.what = func(e event) { count(e, -1) }
	if e.refused {
		w.add(e, 10)
	} else {
		w.add(e, 120)
	}
}

// measure collects an outcome.
type measure struct {
	*world
	sum            outcome
	samples, steps float64
	times          []float64
	all, first     float64
	slots, squares []float64 // of the first node
	settled        bool
}

func (m *measure) measures() bool { return m.now > m.warm }

func (m *measure) opened(e event) {
	if m.measures() {
		m.all++
		if e.endpoint == 0 {
			m.first++
		}
	}
}

func (m *measure) ended(e event) {
	if m.measures() && !e.refused {
		m.times = append(m.times, m.now-e.began)
	}
}

func (m *measure) sample() {
	loads := make([]float64, m.endpoints)
	for i := range loads {
		for node := range m.nodes {
			loads[i] += float64(m.open[node][i])
		}
		loads[i] /= float64(m.weights[i])
	}
	rest, _, _ := spreadOf(loads[1:])
	if m.replaced > 0 && m.now > m.replaced && !m.settled && loads[0] >= 0.8*rest {
		m.settled, m.sum.settled = true, m.now-m.replaced
	}
	if m.fails {
		loads = loads[1:]
	}
	if mean, spread, greatest := spreadOf(loads); m.measures() && mean > 0 {
		m.samples++
		m.sum.spread += spread
		m.sum.greatest += greatest
		m.sum.peak = max(m.sum.peak, spread)
	}
}

// spreadOf returns the mean, the coefficient of variation, and the greatest beside the mean.
func spreadOf(values []float64) (mean, spread, greatest float64) {
	squares := 0.0
	for _, v := range values {
		mean += v / float64(len(values))
		squares += v * v / float64(len(values))
	}
	if mean == 0 {
		return 0, 0, 0
	}
	return mean, math.Sqrt(max(0, squares-mean*mean)) / mean, slices.Max(values) / mean
}

func (m *measure) stepped(b balancer) {
	f, ok := b.(*feedback)
	if !ok || !m.measures() {
		return
	}
	if m.slots == nil {
		m.slots, m.squares = make([]float64, m.endpoints), make([]float64, m.endpoints)
	}
	m.steps++
	m.sum.moves += float64(f.moved) / float64(m.nodes)
	for i, n := range f.rows[0] {
		part := float64(n) / float64(f.size) * float64(m.endpoints)
		m.slots[i] += part
		m.squares[i] += part * part
	}
}

func (m *measure) outcome() outcome {
	o := m.sum
	o.spread, o.greatest, o.share = o.spread/m.samples, o.greatest/m.samples, m.first/m.all
	if !m.settled {
		o.settled = math.Inf(1)
	}
	slices.Sort(m.times)
	if n := len(m.times); n > 0 {
		o.late = m.times[n*99/100]
	}
	if m.steps > 0 {
		o.moves /= m.steps
		for i := range m.slots {
			mean := m.slots[i] / m.steps
			o.swing += math.Sqrt(max(0, m.squares[i]/m.steps-mean*mean)) / float64(m.endpoints)
		}
	}
	return o
}

// atRandom draws by weights.
type atRandom []uint32

func (a atRandom) choose(w *world, _ int) int {
	if a == nil {
		return w.rng.IntN(w.endpoints)
	}
	at := w.rng.Uint64N(sum(a))
	for i, weight := range a {
		if at < uint64(weight) {
			return i
		}
		at -= uint64(weight)
	}
	panic("no weight")
}

func (atRandom) step(*world) {}

// leastOfIPVS is IPVS' scheduler lc: the first endpoint of those with the least connections, of which an ended one
// counts as 1/256 of an open one (Linux, net/netfilter/ipvs/ip_vs_lc.c). kube-proxy adds endpoints in random order.
type leastOfIPVS struct{}

func (leastOfIPVS) choose(w *world, node int) int {
	best, least := -1, math.MaxInt
	for _, i := range w.orders[node] {
		if n := w.open[node][i]*256 + w.closed[node][i]; n < least {
			best, least = i, n
		}
	}
	return best
}

func (leastOfIPVS) step(*world) {}

// ofTwo takes the endpoint of fewer connections of two that it draws.
type ofTwo struct{}

func (ofTwo) choose(w *world, node int) int {
	a, b := w.rng.IntN(w.endpoints), w.rng.IntN(w.endpoints-1)
	if b >= a {
		b++
	}
	if w.open[node][b] < w.open[node][a] {
		return b
	}
	return a
}

func (ofTwo) step(*world) {}

// feedback is LeastConnections on each node.
type feedback struct {
	// refused counts failed connections as open ones for as long as connection tracking has them.
	refused bool
	size    int
	rows    [][]int
	moved   int // in the last step, by all nodes
}

func (f *feedback) choose(w *world, node int) int {
	if f.rows == nil {
		f.size = LeastConnectionsSize(w.weights, MaxSize)
		for range w.nodes {
			f.rows = append(f.rows, split(w.weights, f.size))
		}
	}
	at := w.rng.IntN(f.size)
	for i, n := range f.rows[node] {
		if at < n {
			return i
		}
		at -= n
	}
	panic("no slot")
}

func (f *feedback) step(w *world) {
	f.moved = 0
	for node, row := range f.rows {
		var loads []Load
		for _, i := range w.orders[node] {
			l := Load{Weight: w.weights[i], Open: w.open[node][i], Slots: row[i]}
			if f.refused {
				l.Open += w.refused[node][i]
			}
			loads = append(loads, l)
		}
		most := w.most
		if most == 0 {
			most = f.size
		}
		for at, n := range LeastConnections(loads, f.size, most) {
			i := w.orders[node][at]
			f.moved += max(0, n-row[i])
			row[i] = n
		}
	}
}
