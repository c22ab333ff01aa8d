package ejection

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// tries are the tries to hear from an endpoint or a Node since it last answered. Those under way when it answers keep
// the old ones, so that what comes of them says nothing about now.
type tries struct {
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

// fail takes note of a try without an answer. most is the longest time to the next one.
func (t *tries) fail(now time.Time, a Answer, most time.Duration, jitter func() float64) {
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

// anew returns tries that none has failed of.
func (t *tries) anew() *tries {
	return &tries{asked: t.asked, answered: t.answered, next: t.answered.Add(pause)}
}

// wish is an ask on behalf of Services, of which one's namespace pays for it.
type wish struct {
	Ask
	at    time.Time // when it was due
	turn  int
	payer string
}

// wish is to ask an endpoint on behalf of the Services that list it.
func (e *endpoint) wish(at time.Time) wish {
	w := wish{Ask: Ask{To: []netip.AddrPort{e.addr}, about: e.tries}, at: at}
	for _, l := range e.listings {
		w.by = append(w.by, l.name)
	}
	return w
}

// queue shares a rate of asks among namespaces: the first of each goes before the second of any, also over time. So a
// namespace's crowd delays itself.
type queue struct {
	// paid is until when what was asked has used the rate up.
	paid time.Time
	// turn is the number of the turn that is served, and last has the turn in which each namespace was served last, if
	// later.
	turn int
	last map[string]int
}

// order sorts the wishes by their turns.
func (q *queue) order(wishes []wish) {
	slices.SortStableFunc(wishes, func(a, b wish) int { return a.at.Compare(b.at) })
	last := map[string]int{}
	maps.Copy(last, q.last)
	after := func(namespace string) int { return max(q.turn, last[namespace]) + 1 }
	for i := range wishes {
		w := &wishes[i]
		for j, name := range w.by {
			if n := namespaceOf(name); j == 0 || after(n) < after(w.payer) {
				w.payer = n
			}
		}
		w.turn = after(w.payer)
		last[w.payer] = w.turn
	}
	slices.SortStableFunc(wishes, func(a, b wish) int { return cmp.Compare(a.turn, b.turn) })
}

// serve returns the wishes that there is room for.
func (q *queue) serve(now time.Time, wishes []wish) (asks []Ask) {
	q.paid = pace.Later(q.paid, now)
	q.order(wishes)
	for _, w := range wishes {
		if q.paid.Sub(now) > asksBurst*askTime {
			break
		}
		cost := len(w.To)
		if cost == 0 {
			cost = lookupCost
		}
		q.paid = q.paid.Add(time.Duration(cost) * askTime)
		q.turn = max(q.turn, w.turn-1)
		q.last[w.payer] = w.turn
		asks = append(asks, w.Ask)
	}
	maps.DeleteFunc(q.last, func(_ string, turn int) bool { return turn <= q.turn })
	return asks
}

func namespaceOf(name service.Name) string {
	namespace, _ := name.Split()
	return namespace
}
