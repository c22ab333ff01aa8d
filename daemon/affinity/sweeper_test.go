package affinity

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// bench is a running Sweeper, in a synctest bubble.
type bench struct {
	*Sweeper
	t      *testing.T
	kernel *memory
	began  time.Time
	runs   []Run
	stop   func() // returns after Run
}

func start(t *testing.T) *bench {
	b := &bench{t: t, kernel: newMemory(), began: time.Now()}
	b.Sweeper = NewSweeper(b.kernel, func() time.Duration { return time.Since(b.began) }, func(r Run) {
		b.runs = append(b.runs, r)
	})
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

// rows returns when sweeps begin if each reason comes after the sweeps for the one
// before. The sweeps take no time.
func rows(reasons ...time.Duration) []time.Duration {
	var all []time.Duration
	for _, at := range reasons {
		all = append(all, at)
		for _, wait := range lateWaits() {
			at += wait
			all = append(all, at)
		}
	}
	return all
}

// after sleeps in the bubble's time. Then sweeps of clientsMap in IPv4 must have begun
// at the times since the start, and left is the number of clients of each family.
func (b *bench) after(d time.Duration, left string, starts ...time.Duration) {
	b.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	var got []time.Duration
	b.kernel.mu.Lock()
	for _, s := range b.kernel.sweeps {
		if s.Map == "ip "+clientsMap {
			got = append(got, s.at.Sub(b.began))
		}
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
		b.after(time.Minute, "2 and 2", rows(time.Minute)...)

		// Neither growth nor an equal program is a reason.
		b.Notify(three, false)
		b.kernel.learn(three, 2)
		b.Notify(compiled(0, 1, 2), false)
		b.after(time.Minute, "5 and 5", rows(time.Minute)...)

		b.Notify(one, false)
		b.after(time.Minute, "2 and 2", rows(time.Minute, 3*time.Minute)...)
		var swept []int
		for _, r := range b.runs {
			if r.Err != nil {
				t.Error(r.Err)
			}
			swept = append(swept, r.Swept)
		}
		if diff := cmp.Diff([]int{1, 1, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0}, swept); diff != "" {
			t.Errorf("swept (-want +got):\n%s", diff)
		}
		for i, f := range nft.Families() {
			r := b.runs[len(b.runs)-2+i]
			if want := (ruleset.AffinityName{Family: f, Map: clientsMap, Service: "default/web-0"}); r.Name != want ||
				r.Clients != 2 || r.Limit != 65_535 {
				t.Errorf("one of the last sweeps: %+v", r)
			}
		}
	})
}

// swept returns the maps that were swept since its last call, by the time of each
// sweep since the start.
func (b *bench) swept() map[time.Duration][]string {
	b.kernel.mu.Lock()
	defer b.kernel.mu.Unlock()
	all := map[time.Duration][]string{}
	for _, s := range b.kernel.sweeps {
		at := s.at.Sub(b.began)
		all[at] = append(all[at], s.Map)
	}
	b.kernel.sweeps = nil
	return all
}

// TestSweptMaps: the start sweeps all maps. Then only the maps that lose an endpoint
// are swept, each until its own row of sweeps is over.
func TestSweptMaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const m, s = time.Minute, time.Second
		of := func(names ...string) (all []string) {
			for _, f := range nft.Families() {
				for _, name := range names {
					all = append(all, f.String()+" "+name+"/tcp/80")
				}
			}
			return all
		}
		inside, local := of("affinity-default/inside"), of("local-affinity-default/outside")
		both := of("affinity-default/inside", "local-affinity-default/outside")
		b := start(t)
		want := map[time.Duration][]string{}
		add := func(names []string, times ...time.Duration) {
			for _, t := range times {
				want[t] = append(want[t], names...)
			}
		}
		check := func(what string) {
			t.Helper()
			time.Sleep(time.Until(b.began.Add(time.Since(b.began).Truncate(m) + m)))
			synctest.Wait()
			if diff := cmp.Diff(want, b.swept()); diff != "" {
				t.Errorf("%s: swept (-want +got):\n%s", what, diff)
			}
			clear(want)
		}

		b.Notify(compiledBy(5, 5), true)
		add(of("affinity-default/inside", "affinity-default/outside", "local-affinity-default/outside"), rows(0)...)
		check("the start")

		b.Notify(compiledBy(4, 5), false)
		add(inside, rows(m)...)
		check("one list")

		b.kernel.during = func() {
			b.Notify(compiledBy(2, 5), false)
			b.Notify(compiledBy(2, 4), false)
		}
		b.Notify(compiledBy(3, 5), false)
		add(inside[:1], 2*m)
		add(both, rows(2*m)...)
		check("several before one sweep")

		b.Notify(compiledBy(1, 4), false)
		add(inside, rows(3*m)...)
		time.Sleep(5 * s)
		b.Notify(compiledBy(1, 3), false)
		add(local, rows(3*m + 5*s)[:3]...)
		time.Sleep(9 * s)
		b.Notify(compiledBy(1, 2), false)
		add(local, rows(3*m+14*s)...)
		check("one after the other")
	})
}

// TestFailedMapIsSweptAgain: a map is swept until a sweep succeeds. Other maps are not
// swept for it.
func TestFailedMapIsSweptAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.kernel.fail, b.kernel.failing = errors.New("no"), "affinity-default/outside/tcp/80"
		b.Notify(compiledBy(2, 2), true)
		time.Sleep(time.Hour)
		synctest.Wait()
		b.swept()
		b.kernel.mu.Lock()
		b.kernel.fail = nil
		b.kernel.mu.Unlock()
		time.Sleep(time.Hour)
		synctest.Wait()
		got := b.swept()
		for at, names := range got {
			if diff := cmp.Diff([]string{"ip affinity-default/outside/tcp/80", "ip6 affinity-default/outside/tcp/80"},
				names); diff != "" {
				t.Errorf("swept at %v (-want +got):\n%s", at, diff)
			}
		}
		if want := 1 + len(lateWaits()); len(got) != want {
			t.Errorf("%d sweeps after the failure, want %d", len(got), want)
		}
	})
}

// TestMissedClients: a later sweep removes the clients that earlier ones missed.
func TestMissedClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Notify(compiled(0, 1), true)
		b.kernel.learn(compiled(0, 1), 1)
		b.after(time.Minute, "2 and 2", rows(0)...)
		b.kernel.misses = len(lateWaits())
		b.Notify(compiled(0), false)
		b.after(lateWaits()[0]+lateWaits()[1], "2 and 2", append(rows(0), rows(time.Minute)[:3]...)...)
		b.after(time.Minute, "1 and 1", rows(0, time.Minute)...)
	})
}

// TestEndpointComesAndGoes: the clients of an endpoint are swept also if Run has not
// seen the program that had the endpoint.
func TestEndpointComesAndGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Notify(compiled(0), true)
		b.after(time.Minute, "0 and 0", rows(0)...)
		b.Notify(compiled(0, 1), false)
		b.kernel.learn(compiled(0, 1), 1)
		b.Notify(compiled(0), false)
		b.after(0, "1 and 1", append(rows(0), time.Minute)...)
	})
}

// TestLateClient: a stale client that comes just after a sweep goes with the next.
func TestLateClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Notify(compiled(0, 1), true)
		b.after(time.Minute, "0 and 0", rows(0)...)
		b.Notify(compiled(0), false)
		row := rows(time.Minute)
		b.after(0, "0 and 0", append(rows(0), row[0])...)
		for i, wait := range lateWaits() {
			b.kernel.learn(compiled(0, 1), 1)
			b.after(wait, "1 and 1", append(rows(0), row[:i+2]...)...)
		}
	})
}

// TestCoalesces: all changes during a sweep lead to one more sweep, after a rest.
func TestCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		const ms = time.Millisecond
		b.kernel.takes = 10 * ms
		programs := []*nft.Program{compiled(0, 1), compiled(0)}
		for n := range 71 {
			b.Notify(programs[n%2], n == 0)
			time.Sleep(ms)
		}
		// The families take turns, and each sweep waits for as long as the last took.
		want := []time.Duration{0, 30 * ms, 70 * ms}
		b.after(0, "0 and 0", want...)
		b.after(lateWaits()[0], "0 and 0", want...)
	})
}

// TestFloodedServices: many Services have full maps and lose endpoints all the time.
// The sweep of another Service waits for one of theirs at most. They take at most half of
// the time at first, and a twentieth later.
func TestFloodedServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const flooded, dump = 20, time.Second
		b := start(t)
		takes := map[string]time.Duration{}
		for i := range flooded {
			takes[fmt.Sprintf("affinity-ns/svc-%d/tcp/80", i)] = dump
		}
		b.kernel.takesOf = takes
		program := func(n, small int) *nft.Program {
			build := snapshots.NewBuilder(service.Node{Name: "node-0"})
			for i := range flooded + 1 {
				endpoints := 1 + n%2
				if i == flooded {
					endpoints = small
				}
				var list []service.Endpoint
				for e := range endpoints {
					list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i), byte(e)}),
						80), Ready: true, Serving: true})
				}
				p := service.Port{Protocol: service.TCP, Port: 80, Endpoints: service.MergeEndpoints(list)}
				name := service.NewName("ns", fmt.Sprint("svc-", i))
				build.Set(&service.Service{Name: name, AffinityTimeout: time.Hour,
					ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(i)})}, Ports: []service.Port{p}})
			}
			return ruleset.Compile(ruleset.Config{Table: "test"}, build.Snapshot())
		}
		b.Notify(program(0, 9), true)
		small := fmt.Sprintf("ip affinity-ns/svc-%d/tcp/80", flooded)
		for n := 1; n < 100; n++ {
			time.Sleep(777 * time.Millisecond)
			b.Notify(program(n, 9), false)
			if n%20 > 0 {
				continue
			}
			synctest.Wait()
			b.swept()
			asked := time.Since(b.began)
			b.Notify(program(n, 9-n/20), false)
			time.Sleep(dump)
			synctest.Wait()
			first := time.Duration(-1)
			for at, names := range b.swept() {
				if slices.Contains(names, small) && (first < 0 || at < first) {
					first = at
				}
			}
			if first < asked || first > asked+dump {
				t.Errorf("program %d: asked for at %v, swept at %v", n, asked, first)
			}
		}
		total := time.Since(b.began)
		b.stop() // for the race detector, which does not know the order of time in a bubble
		busy := time.Duration(0)
		for _, r := range b.runs {
			busy += r.Duration
		}
		// Before the first sweep of a map its duration is not known, so it does not wait.
		if busy < burst || busy > total/longRest+burst+flooded*dump {
			t.Errorf("%v of %v spent sweeping", busy, total)
		}
		if len(b.kernel.forgotten) == 0 {
			t.Error("no map was emptied")
		}
	})
}

// TestNewEndpointDuringSweep: a sweep keeps the first clients of an endpoint that is
// newer than the sweep.
func TestNewEndpointDuringSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		old, replaced, grown := compiled(0, 1), compiled(0, 2), compiled(0, 2, 3)
		b.Notify(old, true)
		b.after(time.Minute, "0 and 0", rows(0)...)
		b.kernel.learn(old, 1)
		b.kernel.during = func() {
			b.Notify(grown, false)
			b.kernel.learn(grown, 2)
		}
		b.Notify(replaced, false)
		b.after(0, "4 and 4", append(rows(0), time.Minute)...)
		b.after(time.Minute, "4 and 4", rows(0, time.Minute)...)
	})
}

// TestErrors: a sweep that fails is repeated, after ever longer waits. Only the first
// failure is reported as new. The other maps are swept too.
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
		b.after(time.Hour, "1 and 1", append([]time.Duration{0, 1 * s, 3 * s, 7 * s}, rows(15*s)...)...)
		var repeated []bool
		for _, r := range b.runs {
			if r.Err != nil {
				repeated = append(repeated, r.Repeated)
			}
		}
		if diff := cmp.Diff([]bool{false, true, true, true, true, true, true, true}, repeated); diff != "" {
			t.Errorf("repeated (-want +got):\n%s", diff)
		}
		if err := b.runs[0].Err; err == nil || b.runs[0].Swept != 1 {
			t.Errorf("first run: %+v", b.runs[0])
		}
	})
}

// TestNothingInForce: a family without maps needs no sweep. Its maps are swept once
// it has some.
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

// TestStopsInSweep: Run ends in the middle of a sweep, and that is no failure.
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

// TestNeighbourKeepsNoSweepWaiting: the endpoints of one Service come and go all the
// time, and its small sweeps have no end. The large sweep of another Service comes
// nevertheless.
func TestNeighbourKeepsNoSweepWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const large, every, most = "local-affinity-default/outside/tcp/80", 200 * time.Millisecond, 10 * time.Second
		b := start(t)
		b.kernel.takesOf = map[string]time.Duration{large: time.Second}
		b.Notify(compiledBy(5, 5), true)
		time.Sleep(time.Minute)
		b.Notify(compiledBy(5, 4), false) // the Service with the large map loses an endpoint
		time.Sleep(3 * time.Second)
		b.swept()
		lost := time.Since(b.began)
		b.Notify(compiledBy(5, 3), false) // and another one
		for n := range int(most / every) {
			time.Sleep(every)
			b.Notify(compiledBy(5-n%2, 3), false)
		}
		synctest.Wait()
		for at, names := range b.swept() {
			if at > lost && slices.Contains(names, "ip "+large) {
				return
			}
		}
		t.Errorf("the large map was not swept within %v", most)
	})
}
