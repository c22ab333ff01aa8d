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
			n.failed, n.asking, now.Sub(n.asked), now.Sub(n.answered), now.Sub(n.begun), n.next.Sub(now), n.isDead(),
			!m.askServer.IsZero(),
			now.Sub(n.wanted), n.until.Sub(now), m.askServer.Sub(now))
	}
	for _, e := range m.suspects() {
		fmt.Fprintf(&b, "%v: failed %d, asking %d, unanswered %d, begun %v, next %v, %v\n", e.addr, e.failed, e.asking,
			e.unanswered, now.Sub(e.begun), e.next.Sub(now), len(e.listings))
	}
	for name, g := range m.groups {
		fmt.Fprintf(&b, "%s: open %v\n", name, g.open)
	}
	fmt.Fprintf(&b, "%+v", m.network(now))
	return b.String()
}
