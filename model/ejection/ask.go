package ejection

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"nftproxy/model/service"
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
	// answered is when it answered last, and missed when the last try failed.
	answered, missed time.Time
}

// waits says that nothing is to be asked before what is under way has ended.
func (t *tries) waits() bool {
	return t.asking > 0 && (t.failed >= enough || t.failed+t.asking >= enough)
}

// silent says that it has not answered for a try at least.
func (t *tries) silent() bool { return t.failed+t.asking >= enough }

func (t *tries) begin(now time.Time) {
	if t.begun.IsZero() {
		t.begun = now
	}
	t.asked, t.next = now, now.Add(between)
	t.asking++
}

// end takes what came of a try. most is the longest time to the next one.
func (t *tries) end(now time.Time, a Answer, round uint, most time.Duration, jitter func() float64) {
	switch {
	case a == Answered:
		*t = tries{round: t.round + 1, asked: t.asked, answered: now, next: now.Add(pause)}
		return
	case round != t.round:
		return
	}
	t.asking--
	if a == Unknown {
		t.next = now.Add(firstAgain)
		return
	}
	t.missed = now
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

// order returns the wishes in their turns, each with the turn and who pays.
func (q *queue) order(wishes []wish) (order []int, turns []float64, payers []string) {
	turns, payers = make([]float64, len(wishes)), make([]string, len(wishes))
	used := map[string]float64{}
	for i, w := range wishes {
		turns[i] = math.Inf(1)
		for _, n := range w.namespaces {
			after := max(q.turn, q.last[n], used[n]) + 1
			if after < turns[i] {
				turns[i], payers[i] = after, n
			}
		}
		used[payers[i]] = turns[i]
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turns[a], turns[b]) })
	return order, turns, payers
}

// serve returns the wishes that there is room for, and when there is room for more; zero if none is left.
func (q *queue) serve(now time.Time, wishes []wish) (asks []Ask, next time.Time) {
	q.room = min(q.burst, q.room+now.Sub(q.at).Seconds()*q.rate)
	q.at = now
	slices.SortStableFunc(wishes, func(a, b wish) int { return a.at.Compare(b.at) })
	order, turns, payers := q.order(wishes)
	for _, i := range order {
		if q.room < 1 {
			next = now.Add(time.Duration((1 - q.room) / q.rate * float64(time.Second)))
			break
		}
		q.room -= float64(max(1, len(wishes[i].To)))
		q.turn = max(q.turn, turns[i]-1)
		q.last[payers[i]] = turns[i]
		asks = append(asks, wishes[i].Ask)
	}
	maps.DeleteFunc(q.last, func(_ string, turn float64) bool { return turn <= q.turn })
	return asks, next
}

// Ask returns what is to be asked now, and when there may be more to ask; the zero time if that depends on other
// events.
func (m *Machine) Ask(now time.Time) (asks []Ask, next time.Time) {
	m.update(now)
	c := &choice{Machine: m, now: now}
	c.suspects()
	c.wantedNodes()
	c.members()
	for i, of := range [...][]wish{c.connects, c.lookups, c.others} {
		if len(of) > 0 {
			served, more := m.queues[i].serve(now, of)
			asks = append(asks, served...)
			c.later(more)
		}
	}
	for _, a := range asks {
		if a.about == nil {
			m.nodes[a.Node].looking = true
			continue
		}
		if a.about.begin(now); !a.about.waits() {
			c.later(a.about.next)
		}
	}
	return asks, c.next
}

// choice is a call of Ask.
type choice struct {
	*Machine
	now                       time.Time
	connects, lookups, others []wish
	next                      time.Time
}

// later notes a time when there is more to ask.
func (c *choice) later(at time.Time) {
	if !at.IsZero() && (c.next.IsZero() || at.Before(c.next)) {
		c.next = at
	}
}

// dueNow says that it is time for another try, or notes when it is.
func (c *choice) dueNow(t *tries) bool {
	if t.waits() {
		return false
	}
	if c.now.Before(t.next) {
		c.later(t.next)
		return false
	}
	return true
}

// suspects adds the suspects whose time has come, each with others of its ports for comparison.
func (c *choice) suspects() {
	for _, addr := range slices.SortedFunc(maps.Keys(c.suspected), netip.AddrPort.Compare) {
		e := c.endpoints[addr]
		names, elsewhere := slices.Sorted(maps.Keys(e.services)), false
		for _, name := range names {
			c.compare(name, c.services[name])
			elsewhere = elsewhere || c.services[name].suspects[addr] != c.snapshot.Node.Name && !c.here(addr.Addr())
		}
		if c.dueNow(&e.tries) {
			c.connects = append(c.connects, wish{Ask{To: []netip.AddrPort{addr}, about: &e.tries, round: e.round,
				services:  names,
				elsewhere: elsewhere}, namespacesOf(names), e.next})
		}
	}
}

func namespacesOf(names []service.Name) (list []string) {
	for _, name := range names {
		namespace, _ := name.Split()
		list = append(list, namespace)
	}
	return slices.Compact(list)
}

// compare adds some endpoints of the Service that show whether the node may connect: those that were not asked for
// longest.
func (c *choice) compare(name service.Name, w *watched) {
	if len(w.spares) == 0 {
		return
	}
	if c.now.Before(w.compare) {
		c.later(w.compare)
		return
	}
	w.wait = min(max(between, 2*w.wait), mostAgain)
	w.compare = c.now.Add(w.wait)
	c.later(w.compare)
	slices.SortStableFunc(w.spares, func(a, b spare) int { return c.note(a.addr).asked.Compare(c.note(b.addr).asked) })
	namespace, _ := name.Split()
	for _, s := range w.spares[:min(len(w.spares), controls)] {
		if e := c.note(s.addr); e.asking == 0 {
			c.connects = append(c.connects, wish{Ask{To: []netip.AddrPort{s.addr}, about: &e.tries, round: e.round,
				services: []service.Name{name}, elsewhere: !s.here}, []string{namespace}, c.now})
		}
	}
}

// members adds endpoints that are left out with their node. Each comes back by its own first answer, too.
func (c *choice) members() {
	if len(c.dead) == 0 {
		return
	}
	if at := c.queues[members].at.Add(time.Second); c.now.Before(at) {
		c.later(at)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(c.services)) {
		namespace, _ := name.Split()
		for _, addr := range c.services[name].members {
			e := c.note(addr)
			if e.asking > 0 || c.now.Sub(e.asked) < mostAgain || c.suspected[addr] {
				continue
			}
			c.others = append(c.others, wish{Ask{To: []netip.AddrPort{addr}, about: &e.tries, round: e.round,
				services: []service.Name{name}}, []string{namespace}, e.asked})
		}
	}
}

// Answered tells what came of an Ask. facts matters only if the API server was asked.
func (m *Machine) Answered(now time.Time, a Ask, answer Answer, facts Facts) {
	if a.about == nil {
		m.lookedUp(now, a.Node, answer, facts)
		return
	}
	most := mostAgain
	if a.Node != "" {
		most = againNode
	}
	failed := a.about.failed
	a.about.end(now, answer, a.round, most, m.jitter)
	for _, name := range a.services {
		m.dirty[name] = true
		if w := m.services[name]; w != nil && answer == Answered && failed >= enough {
			w.back = now
			m.again(now, w)
		}
	}
	if answer != Answered {
		return
	}
	if a.Node != "" || !m.lookup && a.elsewhere {
		m.elsewhere = now
	}
	if a.Node != "" {
		if n := m.nodes[a.Node]; n != nil {
			n.spoke = now
			m.alive(now, n, pauseNode)
			if failed >= enough {
				m.allBack(now)
			}
		}
		return
	}
	addr := a.To[0]
	m.clear(addr)
	for _, n := range m.nodes {
		switch {
		case n.begun.IsZero() || !n.facts.has(addr.Addr()):
			if n.dead {
				n.living[addr] = true
			}
		default: // It is one of the Node's own addresses or pods, by the API server's words.
			n.tries.end(now, Answered, n.round, againNode, m.jitter)
			m.alive(now, n, pauseFiltered)
		}
	}
}

// allBack takes note that a Node, or the API server, answers again: it may have been this node's own network.
func (m *Machine) allBack(now time.Time) {
	m.back = now
	for _, w := range m.services {
		m.again(now, w)
	}
}

// again has the suspects that a Service keeps tried again.
func (m *Machine) again(now time.Time, w *watched) {
	for addr := range w.suspects {
		if e := m.endpoints[addr]; e.failed >= enough && !w.leaves(addr) {
			e.next, e.wait = now, 0
		}
	}
}
