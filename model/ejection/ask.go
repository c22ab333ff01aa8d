package ejection

import (
	"cmp"
	"slices"
	"time"

	"nftproxy/model/service"
)

// Ask is a connect that the node is to try, for Patience.
type Ask struct {
	Target
	node, namespace string
	// about is the suspect that is asked; nil for a comparison.
	about *suspect
}

// Ask returns what is to be asked now, and when there may be more to ask; the zero time if that depends on other events.
func (m *Machine) Ask(now time.Time) (asks []Ask, next time.Time) {
	if !m.Doubts() {
		return nil, time.Time{}
	}
	if now.Sub(m.window) >= time.Second {
		m.window, m.asked = now, 0
	}
	c := &choice{Machine: m, now: now, chosen: map[Target]bool{}}
	c.suspects()
	c.comparisons()
	c.opinions()
	c.otherNodes()
	asks = shareOut(c.asks)
	if room := max(0, min(mostAsking-m.asking, mostAsks-m.asked)); len(asks) > room {
		asks = asks[:room]
		c.later(m.window.Add(time.Second))
	}
	for i, a := range asks {
		m.asking, m.asked = m.asking+1, m.asked+1
		if s := m.suspects[a.Target]; s != nil {
			asks[i].about = s
			s.asking++
			s.next = now.Add(between)
			if s.begun.IsZero() {
				s.begun = now
			}
			if s.failed+s.asking < tries {
				c.later(s.next)
			}
		} else {
			m.compared[a.Target] = now
		}
	}
	return asks, c.next
}

// choice is a call of Ask.
type choice struct {
	*Machine
	now    time.Time
	asks   []Ask
	chosen map[Target]bool
	next   time.Time
}

// later notes a time when there is more to ask.
func (c *choice) later(at time.Time) {
	if c.next.IsZero() || at.Before(c.next) {
		c.next = at
	}
}

func (c *choice) add(t Target, e *service.Endpoint, namespace string) {
	if !c.chosen[t] {
		c.chosen[t] = true
		c.asks = append(c.asks, Ask{t, nodeOf(e), namespace, nil})
	}
}

// suspects adds those whose time has come.
func (c *choice) suspects() {
	dead := c.dead(c.silentNodes())
	asked := map[share]int{} // confirmed ones on dead nodes: some stand for all
	for _, t := range c.targets() {
		s := c.Machine.suspects[t]
		if on := (share{s.endpoint.Node, s.namespace}); dead.of(on) {
			if asked[on] += boolInt(s.confirmed()); !s.confirmed() || asked[on] > opinions {
				continue
			}
		}
		switch {
		case !s.known, s.since.IsZero() && !s.opinion && len(s.waiting) < ahead:
		case s.failed >= tries && s.asking > 0, s.failed < tries && s.failed+s.asking >= tries:
		case c.now.Before(s.next):
			c.later(s.next)
		default:
			c.add(t, &s.endpoint, s.namespace)
		}
	}
}

// comparisons adds other endpoints of the ports with suspects: first those on other nodes.
func (c *choice) comparisons() {
	for i := range c.view.Ports {
		p := &c.view.Ports[i]
		if p.Port.Protocol != service.TCP {
			continue
		}
		begun := c.firstAsk(p)
		if begun.IsZero() {
			continue
		}
		for _, e := range c.comparable(p) {
			c.compare(p.target(e), e, begun, p.namespace())
		}
	}
}

// firstAsk is when the first suspect of the port was asked; zero if none was, or will be.
func (c *choice) firstAsk(p *Port) (begun time.Time) {
	for j := range p.Ready {
		t := p.target(&p.Ready[j])
		if s := c.Machine.suspects[t]; s != nil && (s.asking > 0 || s.failed > 0 || c.chosen[t]) {
			if at := cmp.Or(s.begun, c.now); begun.IsZero() || at.Before(begun) {
				begun = at
			}
		}
	}
	return begun
}

// comparable returns some endpoints of the port that are no suspects: first those on other nodes, then those that were
// not asked lately.
func (c *choice) comparable(p *Port) (list []*service.Endpoint) {
	worst := func(a, b *service.Endpoint) int {
		return cmp.Or(cmp.Compare(c.here(a), c.here(b)), c.compared[p.target(a)].Compare(c.compared[p.target(b)]))
	}
	for j := range p.Ready {
		if e := &p.Ready[j]; c.Machine.suspects[p.target(e)] == nil {
			list = append(list, e)
			slices.SortStableFunc(list, worst)
			list = list[:min(len(list), controls)]
		}
	}
	return list
}

func (m *Machine) here(e *service.Endpoint) int { return boolInt(e.Node == m.view.Node) }

// compare adds an endpoint that is no suspect unless it has answered since and lately, or has just been asked.
func (c *choice) compare(t Target, e *service.Endpoint, since time.Time, namespace string) {
	if at, ok := c.answers[t]; ok && !at.Before(since) && c.now.Sub(at) < fresh/2 {
		return
	}
	if again := c.compared[t].Add(Patience + between); c.now.Before(again) {
		c.later(again)
		return
	}
	c.add(t, e, namespace)
}

// opinions makes suspects of some more endpoints on nodes of which a suspect is confirmed, for each namespace.
func (c *choice) opinions() {
	asked := map[share]int{}
	for _, s := range c.Machine.suspects {
		asked[share{s.endpoint.Node, s.namespace}]++
	}
	wanted := c.WantedNodes()
	for i := range c.view.Ports {
		p := &c.view.Ports[i]
		for j := range p.Ready {
			e := &p.Ready[j]
			t, on := p.target(e), share{e.Node, p.namespace()}
			if !wanted[e.Node] || asked[on] >= opinions || p.Port.Protocol != service.TCP || c.Machine.suspects[t] != nil || len(c.Machine.suspects) >= 2*mostTargets {
				continue
			}
			asked[on]++
			c.Machine.suspects[t] = &suspect{endpoint: *e, known: true, doubted: true, namespace: p.namespace(), opinion: true, wait: firstAgain}
			c.wants++
			c.add(t, e, p.namespace())
		}
	}
}

// otherNodes adds endpoints on other nodes until more nodes are asked than are silent.
func (c *choice) otherNodes() {
	silent := c.silentNodes()
	want := len(silent) + 1 - c.answering(c.now, silent)
	for i := range c.view.Others {
		e := &c.view.Others[i]
		at, answered := c.nodes[nodeOf(e)]
		if want <= 0 || len(silent) == 0 {
			return
		}
		if _, is := silent[nodeOf(e)]; is || e.Node == c.view.Node || answered && c.now.Sub(at) < fresh/2 {
			continue
		}
		want--
		c.compare(TCP(e.Addr), e, c.now, "")
	}
}

// shareOut puts the first ask of each namespace before the second of any.
func shareOut(asks []Ask) []Ask {
	turn := map[string]int{}
	type ranked struct {
		Ask
		turn int
	}
	list := make([]ranked, len(asks))
	for i, a := range asks {
		list[i] = ranked{a, turn[a.namespace]}
		turn[a.namespace]++
	}
	slices.SortStableFunc(list, func(a, b ranked) int { return cmp.Compare(a.turn, b.turn) })
	for i := range list {
		asks[i] = list[i].Ask
	}
	return asks
}
