package ejection

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"
)

// tries are the tries to hear from an endpoint or a Node since it last answered.
type tries struct {
	// round is that of these tries: what comes of earlier ones says nothing about now.
	round uint
	// begun is when the first one began, asked when the last one did.
	begun, asked   time.Time
	failed, asking int
	next           time.Time
	wait           time.Duration
	answered       time.Time // last
}

// silent says that it has not answered for a try at least.
func (t *tries) silent() bool { return t.failed+t.asking >= enough }

// waits says that nothing is to be asked before what is under way has ended.
func (t *tries) waits() bool { return t.asking > 0 && t.silent() }

func (t *tries) begin(now time.Time) {
	if t.begun.IsZero() {
		t.begun = now
	}
	t.asked, t.next = now, now.Add(between)
	t.asking++
}

func (t *tries) answer(now time.Time) {
	t.answered = now
	t.anew()
}

// fail takes note of a try without an answer. most is the longest time to the next one.
func (t *tries) fail(now time.Time, a Answer, round uint, most time.Duration, jitter func() float64) {
	if round != t.round {
		return
	}
	t.asking--
	if a == Unknown {
		t.next = now.Add(firstAgain)
		return
	}
	if t.failed++; t.failed >= enough {
		t.wait = min(max(firstAgain, 2*t.wait), most)
		t.next = now.Add(time.Duration(float64(t.wait) * (0.75 + jitter()/2)))
	}
}

// anew forgets the tries that failed.
func (t *tries) anew() {
	*t = tries{round: t.round + 1, asked: t.asked, answered: t.answered, next: t.answered.Add(pause)}
}

// wish is an ask on behalf of namespaces, of which one pays for it.
type wish struct {
	Ask
	namespaces []string
	at         time.Time // when it was due
	turn       float64
	payer      string
}

// wish is to ask an endpoint on behalf of those that list it.
func (e *endpoint) wish(at time.Time) wish {
	w := wish{Ask: Ask{To: []netip.AddrPort{e.addr}, about: &e.tries, round: e.round}, at: at}
	for _, l := range e.listings {
		w.add(l.group)
	}
	return w
}

func (w *wish) add(g *group) {
	w.by, w.namespaces = append(w.by, g), append(w.namespaces, g.namespace)
}

// queue shares a rate of asks among namespaces: the first of each goes before the second of any, also over time. So a
// namespace's crowd delays itself.
type queue struct {
	rate, burst float64
	room        float64
	at          time.Time
	// turn is the number of the turn that is served, and last has the turn in which each namespace was served last, if
	// later.
	turn float64
	last map[string]float64
}

func newQueue(rate, burst float64) queue {
	return queue{rate: rate, burst: burst, last: map[string]float64{}}
}

// order sorts the wishes by their turns.
func (q *queue) order(wishes []wish) {
	slices.SortStableFunc(wishes, func(a, b wish) int { return a.at.Compare(b.at) })
	used := map[string]float64{}
	for i := range wishes {
		w := &wishes[i]
		w.turn = math.Inf(1)
		for _, n := range w.namespaces {
			if after := max(q.turn, q.last[n], used[n]) + 1; after < w.turn {
				w.turn, w.payer = after, n
			}
		}
		used[w.payer] = w.turn
	}
	slices.SortStableFunc(wishes, func(a, b wish) int { return cmp.Compare(a.turn, b.turn) })
}

// serve returns the wishes that there is room for, and when there is room for more; zero if none is left.
func (q *queue) serve(now time.Time, wishes []wish) (asks []Ask, next time.Time) {
	q.room = min(q.burst, q.room+now.Sub(q.at).Seconds()*q.rate)
	q.at = now
	q.order(wishes)
	for _, w := range wishes {
		if q.room < 1 {
			next = now.Add(time.Duration((1 - q.room) / q.rate * float64(time.Second)))
			break
		}
		q.room -= float64(max(1, len(w.To)))
		q.turn = max(q.turn, w.turn-1)
		q.last[w.payer] = w.turn
		asks = append(asks, w.Ask)
	}
	maps.DeleteFunc(q.last, func(_ string, turn float64) bool { return turn <= q.turn })
	return asks, next
}
