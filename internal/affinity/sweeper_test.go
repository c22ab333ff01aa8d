package affinity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/internal/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// compiled is the program of a service with affinity and one without, with as
// many endpoints of each family.
func compiled(endpoints ...int) *nft.Program {
	b := service.NewBuilder(service.Node{Name: "node-0"})
	for i, timeout := range []time.Duration{time.Hour, 0} {
		p := service.Port{Protocol: service.TCP, Port: 80}
		for _, n := range endpoints {
			for _, pattern := range []string{"10.0.0.%d:80", "[fd00:1::%d]:80"} {
				p.Endpoints = append(p.Endpoints, service.Endpoint{
					Addr: netip.MustParseAddrPort(fmt.Sprintf(pattern, n+1)), Ready: true, Serving: true,
				})
			}
		}
		p.Endpoints = service.MergeEndpoints(p.Endpoints)
		b.Set(&service.Service{
			Name: service.NewName("default", fmt.Sprint("web-", i)), AffinityTimeout: timeout,
			ClusterIPs: []netip.Addr{netip.MustParseAddr(fmt.Sprint("10.96.0.", i+1)), netip.MustParseAddr(fmt.Sprint("fd00:96::", i+1))},
			Ports:      []service.Port{p},
		})
	}
	return ruleset.Compile(ruleset.Config{Table: "test"}, b.Snapshot())
}

// memory is a kernel's maps of clients.
type memory struct {
	// mu is for the race detector, to which time in a bubble orders nothing.
	mu sync.Mutex
	// clients are the entries of the map "affinity" of both tables.
	clients map[nft.TableID]map[nft.Value]nft.Value
	// takes is how long one map takes, after the entries were judged.
	takes time.Duration
	fail  error
	// starts are when the first map of each sweep was.
	starts []time.Time
	busy   bool
	// during is called once, in the middle of a sweep.
	during func()
}

func newMemory() *memory { return &memory{clients: map[nft.TableID]map[nft.Value]nft.Value{}} }

// learn puts a client for each endpoint that the program allows into the maps.
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
				m.clients[t.ID()][nft.Value(source)+e.Key[:at]] = e.Key[at:]
			}
		}
	}
}

// count are the clients of each family.
func (m *memory) count() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := map[nft.Family]int{}
	for table, clients := range m.clients {
		n[table.Family] += len(clients)
	}
	return fmt.Sprintf("%d and %d", n[nft.IPv4], n[nft.IPv6])
}

func (m *memory) Sweep(ctx context.Context, table nft.TableID, set *nft.Set, keep func(key, data nft.Value) bool) (int, error) {
	m.mu.Lock()
	if m.busy {
		panic("two sweeps at a time")
	}
	m.busy = true
	if table.Family == nft.IPv4 && set.Name == "affinity" {
		m.starts = append(m.starts, time.Now())
	}
	during := m.during
	m.during = nil
	m.mu.Unlock()
	if during != nil {
		during()
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	swept := 0
	if set.Name == "affinity" {
		for key, data := range m.clients[table] {
			if !keep(key, data) {
				delete(m.clients[table], key)
				swept++
			}
		}
	}
	fail, takes := m.fail, m.takes
	m.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
		fail = ctx.Err()
	}
	m.mu.Lock()
	m.busy = false
	if fail != nil {
		return swept, fmt.Errorf("sweep map %s %s: %w", table, set.Name, fail)
	}
	return swept, nil
}

// bench is a running Sweeper, in a synctest bubble.
type bench struct {
	*Sweeper
	t      *testing.T
	kernel *memory
	began  time.Time
	runs   []Run
	stop   func() // returns when Run has
}

func start(t *testing.T) *bench {
	b := &bench{t: t, kernel: newMemory(), began: time.Now()}
	b.Sweeper = NewSweeper(b.kernel, func(r Run) { b.runs = append(b.runs, r) })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- b.Run(ctx) }()
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(b.stop)
	return b
}

// after sleeps in the bubble's time; then sweeps must have begun at the times,
// and so many clients be left.
func (b *bench) after(d time.Duration, left string, starts ...time.Duration) {
	b.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	var got []time.Duration
	b.kernel.mu.Lock()
	for _, s := range b.kernel.starts {
		got = append(got, s.Sub(b.began))
	}
	b.kernel.mu.Unlock()
	if diff := cmp.Diff(starts, got); diff != "" {
		b.t.Errorf("sweeps began (-want +got):\n%s", diff)
	}
	if got := b.kernel.count(); got != left {
		b.t.Errorf("%s clients left, want %s", got, left)
	}
}

func TestSweeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		one, two, three := compiled(0), compiled(0, 1), compiled(0, 1, 2)
		b.kernel.learn(three, 1) // left over from before the start
		b.after(time.Minute, "3 and 3")
		b.Notify(two, true)
		b.after(0, "2 and 2", time.Minute)
		b.after(time.Minute, "2 and 2", time.Minute, time.Minute+late)

		// Growth, and what changes nothing, is no reason.
		b.Notify(three, false)
		b.kernel.learn(three, 2)
		b.Notify(compiled(0, 1, 2), false)
		b.after(time.Minute, "5 and 5", time.Minute, time.Minute+late)

		b.Notify(one, false)
		b.after(time.Minute, "2 and 2", time.Minute, time.Minute+late, 3*time.Minute, 3*time.Minute+late)
		var swept []int
		for _, r := range b.runs {
			if r.Err != nil {
				t.Error(r.Err)
			}
			swept = append(swept, r.Swept)
		}
		if diff := cmp.Diff([]int{2, 0, 6, 0}, swept); diff != "" {
			t.Errorf("swept (-want +got):\n%s", diff)
		}
	})
}

// TestEndpointComesAndGoes: also where Run sees neither of the programs that
// had it.
func TestEndpointComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Notify(compiled(0), true)
		b.after(time.Minute, "0 and 0", 0, late)
		b.Notify(compiled(0, 1), false)
		b.kernel.learn(compiled(0, 1), 1)
		b.Notify(compiled(0), false)
		b.after(0, "1 and 1", 0, late, time.Minute)
	})
}

// TestLateEntry: one that comes just after the sweep goes a second later.
func TestLateEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Notify(compiled(0, 1), true)
		b.after(time.Minute, "0 and 0", 0, late)
		b.Notify(compiled(0), false)
		b.after(0, "0 and 0", 0, late, time.Minute)
		b.kernel.learn(compiled(0, 1), 1)
		b.after(late, "1 and 1", 0, late, time.Minute, time.Minute+late)
	})
}

// TestCoalesces: whatever comes during a sweep is one sweep more, after a rest.
func TestCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.kernel.takes = 10 * time.Millisecond // times 8 maps
		const sweep = 80 * time.Millisecond
		programs := []*nft.Program{compiled(0, 1), compiled(0)}
		for n := range 70 {
			b.Notify(programs[n%2], n == 0)
			time.Sleep(time.Millisecond)
		}
		b.after(0, "0 and 0", 0)
		b.after(time.Minute, "0 and 0", 0, (1+pause)*sweep, (1+pause)*sweep+sweep+late)
	})
}

// TestNewEndpointDuringSweep: its first clients are not taken for stale ones.
func TestNewEndpointDuringSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		old, replaced, grown := compiled(0, 1), compiled(0, 2), compiled(0, 2, 3)
		b.Notify(old, true)
		b.after(time.Minute, "0 and 0", 0, late)
		b.kernel.learn(old, 1)
		b.kernel.during = func() {
			b.Notify(grown, false)
			b.kernel.learn(grown, 2)
		}
		b.Notify(replaced, false)
		b.after(0, "4 and 4", 0, late, time.Minute)
		b.after(time.Minute, "4 and 4", 0, late, time.Minute, time.Minute+late)
	})
}

// TestErrors: retried, less and less often, and told once. The other maps are
// swept all the same.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.kernel.fail = errors.New("no")
		b.kernel.learn(compiled(0, 1), 1)
		b.Notify(compiled(0), true)
		const s = time.Second
		b.after(10*s, "1 and 1", 0, 1*s, 3*s, 7*s)
		b.kernel.mu.Lock()
		b.kernel.fail = nil
		b.kernel.mu.Unlock()
		b.after(time.Hour, "1 and 1", 0, 1*s, 3*s, 7*s, 15*s, 16*s)
		var repeated []bool
		for _, r := range b.runs {
			if r.Err != nil {
				repeated = append(repeated, r.Repeated)
			}
		}
		if diff := cmp.Diff([]bool{false, true, true, true}, repeated); diff != "" {
			t.Errorf("repeated (-want +got):\n%s", diff)
		}
		if err := b.runs[0].Err; err == nil || b.runs[0].Swept != 2 {
			t.Errorf("first run: %+v", b.runs[0])
		}
	})
}

// TestNothingInForce: a family that has no maps yet is passed over, and swept
// once it has.
func TestNothingInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		p := compiled(0)
		b.kernel.learn(compiled(0, 1), 1)
		b.Notify(&nft.Program{IPv4: p.IPv4, IPv6: &nft.Table{Family: nft.IPv6}}, true)
		b.after(0, "1 and 2", 0)
		b.Notify(p, true)
		b.after(0, "1 and 1", 0, 0)
	})
}

// TestStopsInSweep: the end waits neither for the rest of the map nor for those
// to come, and is no failure.
func TestStopsInSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.kernel.takes = time.Minute
		b.Notify(compiled(0), true)
		time.Sleep(time.Second)
		asked := time.Now()
		b.stop()
		if took := time.Since(asked); took > 0 || len(b.runs) > 0 {
			t.Errorf("took %v, observed %v", took, b.runs)
		}
	})
}
