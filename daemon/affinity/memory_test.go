package affinity

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// compiled is the program of one Service with affinity and one without. Both have
// these endpoints in each family.
func compiled(endpoints ...int) *nft.Program {
	b := snapshots.NewBuilder(service.Node{Name: "node-0"})
	for i, timeout := range []time.Duration{time.Hour, 0} {
		p := service.Port{Protocol: service.TCP, Port: 80}
		var list []service.Endpoint
		for _, n := range endpoints {
			for _, pattern := range []string{"10.0.0.%d:80", "[fd00:1::%d]:80"} {
				list = append(list, service.Endpoint{
					Addr: netip.MustParseAddrPort(fmt.Sprintf(pattern, n+1)), Ready: true, Serving: true,
				})
			}
		}
		p.Endpoints = service.MergeEndpoints(list)
		b.Set(&service.Service{
			Name: service.NewName("default", fmt.Sprint("web-", i)), AffinityTimeout: timeout,
			ClusterIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.96.0.", i+1)),
				netip.MustParseAddr(fmt.Sprint("fd00:96::", i+1))},
			Ports: []service.Port{p},
		})
	}
	return ruleset.Compile(ruleset.Config{Table: "test"}, b.Snapshot())
}

// compiledBy is the program of two Services. The first has a number of endpoints for
// its address. The second has a node port and five endpoints; those on the node serve
// clients from outside.
func compiledBy(address, onNode int) *nft.Program {
	endpoints := func(n, onNode int, patterns ...string) service.Endpoints {
		var all []service.Endpoint
		for i := range n {
			for _, pattern := range patterns {
				e := service.Endpoint{Addr: netip.MustParseAddrPort(fmt.Sprintf(pattern, i+1)), Ready: true, Serving: true}
				if i < onNode {
					e.Node = "node-0"
				}
				all = append(all, e)
			}
		}
		return service.MergeEndpoints(all)
	}
	b := snapshots.NewBuilder(service.Node{Name: "node-0"})
	b.Set(&service.Service{
		Name: "default/inside", AffinityTimeout: time.Hour,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")},
		Ports: []service.Port{{Protocol: service.TCP, Port: 80, Endpoints: endpoints(address, 0, "10.0.0.%d:80",
			"[fd00:1::%d]:80")}},
	})
	b.Set(&service.Service{
		Name: "default/outside", AffinityTimeout: time.Hour, ExternalPolicy: service.Local,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.2"), netip.MustParseAddr("fd00:96::2")},
		Ports: []service.Port{{Protocol: service.TCP, Port: 80, NodePort: 30080, Endpoints: endpoints(5, onNode,
			"10.0.1.%d:80", "[fd00:2::%d]:80")}},
	})
	return ruleset.Compile(ruleset.Config{Table: "test"}, b.Snapshot())
}

// clientsMap is the map of the Service with affinity in compiled.
const clientsMap = "affinity-default/web-0/tcp/80"

// memory is a Kernel without a kernel.
type memory struct {
	// mu is for the race detector: the time in a bubble orders nothing for it.
	mu sync.Mutex
	// clients are those in the map clientsMap of both tables.
	clients map[nft.TableID]map[nft.Value]nft.Value
	// takes is how long a sweep takes after its calls of keep. takesOf has the maps
	// for which it is otherwise.
	takes   time.Duration
	takesOf map[string]time.Duration
	// fail is the error of each sweep of the map failing; of all maps if that is empty.
	fail    error
	failing string
	// misses is how many sweeps miss a stale client before one finds it.
	misses int
	missed map[nft.Value]int
	// sweeps are the maps that were swept, in order.
	sweeps []swept
	// forgotten are the maps that were emptied, in order.
	forgotten []swept
	busy      bool
	// during is called once, in the middle of a sweep.
	during func()
}

// swept says when a sweep of a map began.
type swept struct {
	at  time.Time
	Map string
}

func newMemory() *memory {
	return &memory{clients: map[nft.TableID]map[nft.Value]nft.Value{}, missed: map[nft.Value]int{}}
}

// learn puts a client for each endpoint that the program allows into clientsMap.
func (m *memory) learn(p *nft.Program, client byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range nft.Families() {
		t := p.Table(f)
		if m.clients[t.ID()] == nil {
			m.clients[t.ID()] = map[nft.Value]nft.Value{}
		}
		for _, part := range t.Parts.All() {
			for i, e := range part.Elements {
				if e.Set != "affinity-endpoints" {
					continue
				}
				source := make([]byte, f.AddrLen())
				source[0], source[1] = client, byte(i)
				at := len(e.Key) - f.AddrLen() - 4 // the endpoint's address and port
				m.clients[t.ID()][nft.Value(source)] = e.Key[at:]
			}
		}
	}
}

// count is the number of clients of each family.
func (m *memory) count() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := map[nft.Family]int{}
	for table, clients := range m.clients {
		n[table.Family] += len(clients)
	}
	return fmt.Sprintf("%d and %d", n[nft.IPv4], n[nft.IPv6])
}

// Forget empties a map in a hundredth of a sweep's time.
func (m *memory) Forget(table nft.TableID, set *nft.Set) error {
	m.mu.Lock()
	if set.Name == clientsMap {
		clear(m.clients[table])
	}
	m.forgotten = append(m.forgotten, swept{time.Now(), table.Family.String() + " " + set.Name})
	takes := m.takesOf[set.Name] / 100
	m.mu.Unlock()
	time.Sleep(takes)
	return nil
}

func (m *memory) Sweep(ctx context.Context, table nft.TableID, set *nft.Set,
	keep func(key, data nft.Value) bool) (left, gone int, err error) {
	m.mu.Lock()
	if m.busy {
		panic("two sweeps at a time")
	}
	m.busy = true
	m.sweeps = append(m.sweeps, swept{time.Now(), table.Family.String() + " " + set.Name})
	during := m.during
	m.during = nil
	m.mu.Unlock()
	if during != nil {
		during()
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	if set.Name == clientsMap {
		for key, data := range m.clients[table] {
			switch {
			case keep(key, data):
				left++
			case m.missed[key] < m.misses:
				m.missed[key]++
			default:
				delete(m.clients[table], key)
				gone++
			}
		}
	}
	fail, takes := m.fail, m.takes
	if t, ok := m.takesOf[set.Name]; ok {
		takes = t
	}
	if m.failing != "" && m.failing != set.Name {
		fail = nil
	}
	m.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		fail = ctx.Err()
	}
	m.mu.Lock()
	m.busy = false
	if fail != nil {
		return left, gone, fmt.Errorf("sweep map %s %s: %w", table, set.Name, fail)
	}
	return left, gone, nil
}
