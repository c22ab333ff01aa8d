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
	// mostElements is how many elements of maps change: of one row after the other, until they are used up. A row has a
	// slot at each address of its Service. Where these are more than that, one slot moves, and nothing else in this step.
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
	// index knows all Services while some follow connections: the connections of another one may go to an address of
	// theirs, to a port in its ranges, and to the same endpoint.
	index *conntrack.Index
	turns turns
	// next says with which list a Service goes on that was stopped (rows). stuck is the Service that goes on first, since
	// the last step had no room for it; empty for none.
	next  map[service.Name]int
	stuck service.Name
	// turned is how many Services have had their turn since all had one.
	turned int
}

func newMover(addresses service.NodePortAddresses) *mover {
	return &mover{index: conntrack.NewIndex(conntrack.Options{NodePortAddresses: addresses}), turns: newTurns(),
		next: map[service.Name]int{}}
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
			delete(m.next, c.Key)
		}
	}
	m.all = s.Services
	m.snapshot.Services = m.snapshot.Services.Apply(treap.Edits(edits))
	m.snapshot.Node = s.Node
	if m.services() == 0 {
		if m.turns = newTurns(); len(edits) == 0 {
			return
		}
		s = service.Snapshot{Node: s.Node}
	}
	m.index.Update(s)
	m.index.Forget(m.index.Epoch()) // Nobody asks which connections are stale.
}

// follows says whether a Service follows connections: it asks for that, and there is room for its slots.
func follows(s *service.Service) bool {
	return s.Options.Balance == service.ByLeastConnections && s.SlotLimit != service.NoSlots
}

// count counts a connection if it goes to a Service that follows them.
func (m *mover) count(open openTo, f conntrack.Flow) bool {
	s, p, ok := m.index.Owner(f)
	if !ok || !follows(s) {
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

// step returns the Services whose slots move, with all slots that they have then, and whether all have had a turn since
// the last step that said so.
func (m *mover) step(open openTo) (moved map[service.Name]service.Slotted, all bool) {
	moved = map[service.Name]service.Slotted{}
	left, first := mostElements, m.snapshot.Services.At(m.stuck)
	visit := func(s *service.Service) bool {
		slots, cost := m.move(s, open, left, len(moved) == 0)
		if left -= cost; slots != nil {
			moved[s.Name] = slots
		}
		if _, stopped := m.next[s.Name]; !stopped {
			m.turned++
		}
		return left > 0 && m.stuck == ""
	}
	m.stuck = ""
	if first == nil || visit(first) {
		m.turns.each(m.snapshot.Services, func(s *service.Service) bool { return s == first || visit(s) })
	}
	if all = m.turned >= m.services(); all {
		m.turned = 0
	}
	return moved, all
}

// move moves slots of one Service, of at most so many elements, and goes on where it stopped last. If nothing else has
// moved, one slot does even if its row has more elements.
func (m *mover) move(s *service.Service, open openTo, elements int, alone bool) (slots service.Slotted, cost int) {
	from := m.next[s.Name]
	delete(m.next, s.Name)
	for at, r := range m.rows(s, from) {
		if cost >= elements {
			m.next[s.Name] = at
			break
		}
		if cost += 1 + r.port.Endpoints.Len()/seenFor; r.LeastRow == nil {
			continue
		}
		for i, a := range r.Addrs {
			r.Loads[i].Open = open[r.port][a]
		}
		room := (elements-cost)/r.ways - r.Len()/comparedFor
		n := r.Step(min(mostOfRow, max(1, room)))
		if cost += r.Len() / seenFor; n == 0 {
			continue
		}
		if room < 1 && !(alone && slots == nil) {
			if m.next[s.Name] = at; at == from {
				m.stuck = s.Name
			}
			break
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

// rows yields the rows of a Service from a number on, and then those before it, each with its number: for each port and
// family that for policy Cluster, also if it is nil, and that for policy Local if there is one.
func (m *mover) rows(s *service.Service, from int) iter.Seq2[int, row] {
	return func(yield func(int, row) bool) {
		var choice share.Choice
		families := ip.Families()
		lists := 2 * len(families) * len(s.Ports)
		for i := range lists {
			at := (from + i) % lists
			p, family, local := &s.Ports[at/2/len(families)], families[at/2%len(families)], at%2 == 1
			if !s.InFamily(family) {
				continue
			}
			if i == 0 || !local {
				choice = share.Choose(s, p, m.snapshot.Node, family)
			}
			least := share.NewLeastRow(s, p, m.snapshot.Node, &choice, local)
			if (!local || least != nil) && !yield(at, row{least, p, local, waysTo(s, p, family)}) {
				return
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
