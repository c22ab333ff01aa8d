// Package traffic counts how many new connections each Service port and endpoint gets, as totals and as rates; and how
// many first packets the rules refuse or drop, by cause and by Service, at a cost that no flood of such packets raises.
// The kernel counts: connections in the elements of the tables (ruleset.Config.Counters), refusals in a chain for each
// cause and an element for each frontend that refuses or drops. The package reads these counters and adds them up over
// the time in which elements come and go.
//
// An element that is replaced begins again at 0. A Service's element is replaced when the number of
// its endpoints changes; connections between the last read and that moment are not counted.
//
// The package decides neither what is refused nor where it is counted (nft/ruleset does). It
// knows the Service for the causes whose packets meet an element of the Service. Unknown
// ports and unallocated addresses have a number for the node only.
package traffic

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// Kernel has the counters.
type Kernel interface {
	// AllCounts visits all elements of a set that have a counter.
	AllCounts(table nft.TableID, set *nft.Set, visit func(kernel.Count)) error
	// Counts visits the elements with these keys that are there and have a counter.
	Counts(table nft.TableID, set *nft.Set, keys []nft.Value, visit func(kernel.Count)) error
}

// Port names a Service port.
type Port struct {
	Service service.Name
	// Name is the port's name, or its number where it has none.
	Name     string
	Protocol service.Protocol
}

// Connections is how many new connections there were.
type Connections struct {
	// Total counts from the beginning of the kernel's counters.
	Total uint64
	// Rate is the number in a second, between the last two reads. It is 0 if Known is false:
	// then there was one read only.
	Rate  float64
	Known bool
}

// PortTraffic is the new connections of a Service port, at all of its addresses and node ports
// together. Those that were refused count too.
type PortTraffic struct {
	Port
	Connections
}

// Reader reads the counters of one proxy's tables. It is not safe for concurrent use.
type Reader struct {
	kernel Kernel
	clock  func() time.Time
	// declared has the tables' names and the declarations of their sets.
	declared *nft.Program
	snapshot service.Snapshot
	// places are the elements that count for Service ports, ports their sums.
	places map[place]*placed
	ports  map[Port]*meter
	// services has the places of each Service.
	services map[service.Name][]place
	// ranged has the Services with ranges of ports. Only while there are any, a table has the sets that count for these.
	ranged map[service.Name]bool
	meters endpointMeters
	read   time.Time
	// total has the connections of all ports, also of those that have gone.
	total uint64
}

// place is where an element is.
type place struct {
	family nft.Family
	set    string
	key    nft.Value
}

// placed is the Service port of an element, and what its counter said last.
type placed struct {
	port Port
	last uint64
}

// meter adds up counters that may begin again.
type meter struct{ total, before uint64 }

// since is how many packets a counter has counted since it said last. A lower number is that
// of a new counter.
func since(last, now uint64) uint64 {
	if now < last {
		return now
	}
	return now - last
}

// connections is what the meter has counted, given the time of the read before; zero for none.
func (m *meter) connections(took time.Duration) Connections {
	c := Connections{Total: m.total}
	if took > 0 {
		c.Rate, c.Known = float64(m.total-m.before)/took.Seconds(), true
	}
	return c
}

// NewReader makes a Reader of the tables with this name. The clock is time.Now, but in tests.
func NewReader(k Kernel, table string, clock func() time.Time) *Reader {
	return &Reader{
		kernel: k, clock: clock,
		declared: ruleset.Compile(ruleset.Config{Table: table}, service.Snapshot{Node: &service.Node{}}),
		places:   map[place]*placed{}, ports: map[Port]*meter{}, services: map[service.Name][]place{},
		ranged: map[service.Name]bool{},
	}
}

// Follow says which Services the tables serve. The cost follows the changes since the last
// snapshot.
func (r *Reader) Follow(s service.Snapshot) {
	names := map[service.Name]bool{}
	for d := range treap.Diff(r.snapshot.Services, s.Services) {
		names[d.Key] = true
	}
	for d := range treap.Diff(r.snapshot.Conflicts, s.Conflicts) {
		names[d.Key] = true
	}
	r.snapshot = s
	// Places may move from one Service to another, so all old ones go first.
	old, lost := map[place]*placed{}, map[Port]bool{}
	for name := range names {
		for _, at := range r.services[name] {
			old[at], lost[r.places[at].port] = r.places[at], true
			delete(r.places, at)
		}
		delete(r.services, name)
		delete(r.ranged, name)
	}
	for name := range names {
		if svc := s.Services.At(name); svc != nil {
			r.addService(svc, s.Conflicts.At(name), old, lost)
		}
	}
	for p := range lost {
		delete(r.ports, p)
	}
}

// addService adds the places of a Service. old has what the places counted before, and lost the
// ports that have none any more.
func (r *Reader) addService(svc *service.Service, conflicts *service.Conflicts, old map[place]*placed,
	lost map[Port]bool) {
	for i := range svc.Ports {
		p := portOf(svc, &svc.Ports[i])
		for _, c := range ruleset.CounterPlaces(svc, &svc.Ports[i]) {
			at := place{c.Family, c.Set, c.Key}
			if conflicts.Has(c.Claim) || r.places[at] != nil {
				continue
			}
			now := &placed{port: p}
			if was := old[at]; was != nil && was.port == p {
				now.last = was.last
			}
			r.places[at] = now
			r.services[svc.Name] = append(r.services[svc.Name], at)
			if svc.Ports[i].IsRange() {
				r.ranged[svc.Name] = true
			}
			delete(lost, p)
			if r.ports[p] == nil {
				r.ports[p] = &meter{}
			}
		}
	}
}

func portOf(svc *service.Service, p *service.Port) Port {
	return Port{svc.Name, p.Label(), p.Protocol}
}

// setOf returns the declaration of a set that counts; not every table has those of ranges of ports.
func setOf(t *nft.Table, name string) *nft.Set {
	if s := t.Set(name); s != nil {
		return s
	}
	return ruleset.RangeSet(name)
}

// Read reads the counters of all Service ports, and returns them by rate, then total, the
// greatest first. Its cost grows with the number of Services.
func (r *Reader) Read() ([]PortTraffic, error) {
	for _, m := range r.ports {
		m.before = m.total
	}
	for _, f := range nft.Families() {
		table := r.declared.Table(f)
		for _, name := range ruleset.FrontendSets() {
			if table.Set(name) == nil && len(r.ranged) == 0 {
				continue
			}
			err := r.kernel.AllCounts(table.ID(), setOf(table, name), func(n kernel.Count) {
				if at := r.places[place{f, name, n.Key}]; at != nil {
					more := since(at.last, n.Packets)
					r.ports[at.port].total += more
					r.total += more
					at.last = n.Packets
				}
			})
			if err != nil {
				return nil, fmt.Errorf("read connections of Services: %w", err)
			}
		}
	}
	now, took := r.clock(), time.Duration(0)
	if !r.read.IsZero() {
		took = now.Sub(r.read)
	}
	r.read = now
	list := make([]PortTraffic, 0, len(r.ports))
	for p, m := range r.ports {
		list = append(list, PortTraffic{p, m.connections(took)})
	}
	slices.SortFunc(list, func(a, b PortTraffic) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Total, a.Total), comparePorts(a.Port, b.Port))
	})
	return list, nil
}

func comparePorts(a, b Port) int {
	return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol))
}
