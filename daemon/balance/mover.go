package balance

import (
	"iter"
	"maps"
	"net/netip"

	"nftproxy/conntrack"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/share"
	"nftproxy/model/treap"
)

// The bounds on one step.
const (
	// mostOfRow is how many slots of a row move.
	mostOfRow = 64
	// mostElements is how many elements of maps change, about: of one Service after the other, until they are used up. A
	// row has a slot at each address of its Service. The last Service moves one slot of each of its rows in any case.
	mostElements = 1024
	// A list of endpoints that is looked at costs as much as an element, with a row or without. So do so many slots of a
	// row that changes, and so many endpoints or slots that are only looked at.
	comparedFor, seenFor = 64, 256
)

// mover decides which slots move. It reads no clock.
type mover struct {
	// snapshot has only the Services that follow connections.
	snapshot service.Snapshot
	all      treap.Map[service.Name, *service.Service] // as they came
	index    *conntrack.Index
	turns    turns
}

func newMover(addresses service.NodePortAddresses) *mover {
	return &mover{index: conntrack.NewIndex(conntrack.Options{NodePortAddresses: addresses}), turns: newTurns()}
}

func (m *mover) services() int { return m.snapshot.Services.Len() }

// follow takes the snapshot that is in force. Its cost grows with the change.
func (m *mover) follow(s service.Snapshot) {
	edits := map[service.Name]*service.Service{}
	for c := range treap.Diff(m.all, s.Services) {
		if c.HasNew && follows(c.New) {
			edits[c.Key] = c.New
			m.turns.add(c.Key)
		} else if m.snapshot.Services.At(c.Key) != nil {
			edits[c.Key] = nil
		}
	}
	m.all = s.Services
	m.snapshot.Services = m.snapshot.Services.Apply(treap.Edits(edits))
	m.snapshot.Node, m.snapshot.Conflicts, m.snapshot.Owners = s.Node, s.Conflicts, s.Owners
	if m.services() == 0 {
		if m.turns = newTurns(); len(edits) == 0 {
			return
		}
	}
	m.index.Update(m.snapshot)
	m.index.Forget(m.index.Epoch()) // Nobody asks which connections are stale.
}

// follows says whether a Service follows connections: it asks for that, and there is room for its slots.
func follows(s *service.Service) bool {
	return s.Options.Balance == service.ByLeastConnections && s.SlotLimit != service.NoSlots
}

// count counts a connection if it goes to a Service that follows them.
func (m *mover) count(open openTo, f conntrack.Flow) bool {
	_, p, ok := m.index.Owner(f)
	if !ok {
		return false
	}
	endpoint := f.Reply.Src
	if p.IsRange() {
		endpoint = netip.AddrPortFrom(endpoint.Addr(), 0)
	}
	if open[p] == nil {
		open[p] = map[netip.AddrPort]int{}
	}
	open[p][endpoint]++
	return true
}

// step returns the Services whose slots move, with all slots that they have then.
func (m *mover) step(open openTo) map[service.Name]service.Slotted {
	next := map[service.Name]service.Slotted{}
	left := mostElements
	m.turns.each(m.snapshot.Services, func(s *service.Service) bool {
		slots, cost := m.move(s, open, left)
		if left -= cost; slots != nil {
			next[s.Name] = slots
		}
		return left > 0
	})
	return next
}

// move moves slots of one Service, of about so many elements, and one slot of each row at least.
func (m *mover) move(s *service.Service, open openTo, elements int) (slots service.Slotted, cost int) {
	for r := range m.rows(s) {
		if cost += 1 + r.port.Endpoints.Len()/seenFor; r.LeastRow == nil {
			continue
		}
		for i, a := range r.Addrs {
			r.Loads[i].Open = open[r.port][a]
		}
		n := r.Step(min(mostOfRow, max(1, (elements-cost)/r.ways)))
		if cost += r.Len() / seenFor; n == 0 {
			continue
		}
		cost += r.ways * (n + r.Len()/comparedFor)
		if slots == nil {
			slots = service.Slotted{}
			maps.Copy(slots, s.Slotted())
		}
		r.note(slots)
	}
	return slots, max(1, cost)
}

// row is a row of a port, which each of so many ways to the port has. It is nil for a list that needs none.
type row struct {
	*share.LeastRow
	port  *service.Port
	local bool
	ways  int
}

// rows yields the rows of a Service: for each port and family that for policy Cluster, also if it is nil, and that for
// policy Local if there is one.
func (m *mover) rows(s *service.Service) iter.Seq[row] {
	return func(yield func(row) bool) {
		for i := range s.Ports {
			p := &s.Ports[i]
			for _, family := range ip.Families() {
				if !s.InFamily(family) {
					continue
				}
				choice := share.Choose(s, p, m.snapshot.Node, family)
				for _, local := range []bool{false, true} {
					least := share.NewLeastRow(s, p, m.snapshot.Node, &choice, local)
					if (!local || least != nil) && !yield(row{least, p, local, waysTo(s, p, family)}) {
						return
					}
				}
			}
		}
	}
}

// note writes down what the endpoints of the row have now.
func (r row) note(slots service.Slotted) {
	for i, a := range r.Addrs {
		at, n := r.port.At(a), uint16(r.Loads[i].Slots)
		have := slots[at]
		if r.local {
			have.Local = n
		} else {
			have.Cluster = n
		}
		slots[at] = have
	}
}

// waysTo counts the addresses and node ports by which a port is reached.
func waysTo(s *service.Service, p *service.Port, family ip.Family) (n int) {
	for range s.ClaimsOf(p, family) {
		n++
	}
	return max(1, n)
}
