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
			n.failed, n.asking, now.Sub(n.asked), now.Sub(n.spoke), now.Sub(n.begun), n.next.Sub(now), n.dead, n.away,
			now.Sub(n.wanted), n.until.Sub(now), n.nextLookup.Sub(now))
	}
	for a := range m.suspected {
		e := m.endpoints[a]
		fmt.Fprintf(&b, "%v: failed %d, asking %d, unanswered %d, begun %v, next %v, missed %v, %v\n", a, e.failed, e.asking,
			e.unanswered, now.Sub(e.begun), e.next.Sub(now), now.Sub(e.missed), e.services)
	}
	for name, w := range m.services {
		fmt.Fprintf(&b, "%s: back %v, all back %v\n", name, now.Sub(w.back), now.Sub(m.back))
	}
	s, a, v := m.silentNodes(now)
	fmt.Fprintf(&b, "%d silent, %d answering, server %d, names %v", s, a, v, m.names)
	return b.String()
}
