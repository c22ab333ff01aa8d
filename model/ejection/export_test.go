package ejection

import (
	"fmt"
	"strings"
	"time"
)

// Dump says what the machine knows.
func (m *Machine) Dump(now time.Time) string {
	var b strings.Builder
	for _, n := range m.nodes {
		fmt.Fprintf(&b, "node %s: %d addrs, failed %d, asking %d, asked %v, spoke %v, begun %v, next %v, dead %v, away %v, "+
			"wanted %v until %v nextlookup %v\n", n.name, len(n.facts.Addrs),
			n.failed, n.asking, now.Sub(n.asked), now.Sub(n.spoke), now.Sub(n.begun), n.next.Sub(now), n.isDead(), m.away,
			now.Sub(n.wanted), n.until.Sub(now), m.askServer.Sub(now))
	}
	for _, e := range m.suspects {
		fmt.Fprintf(&b, "%v: failed %d, asking %d, unanswered %d, begun %v, next %v, %v\n", e.addr, e.failed, e.asking,
			e.unanswered, now.Sub(e.begun), e.next.Sub(now), len(e.listings))
	}
	for name, g := range m.groups {
		fmt.Fprintf(&b, "%s: open %v, asks %v, next %v\n", name, g.open, g.ask, g.more.Sub(now))
	}
	s, a, v := m.silentNodes(now)
	fmt.Fprintf(&b, "%d silent, %d answering, server %d, names %v", s, a, v, m.names)
	return b.String()
}
