package affinity

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

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

// rows are when sweeps begin that take no time, if there was a reason at each of
// the times and then none for long.
func rows(reasons ...time.Duration) []time.Duration {
	var all []time.Duration
	for _, at := range reasons {
		all = append(all, at)
		for _, wait := range late() {
			at += wait
			all = append(all, at)
		}
	}
	return all
}

// after sleeps in the bubble's time; then sweeps must have begun at the times,
// by the map of addresses in IPv4, and so many clients be left.
func (b *bench) after(d time.Duration, left string, starts ...time.Duration) {
	b.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	var got []time.Duration
	b.kernel.mu.Lock()
	for _, s := range b.kernel.sweeps {
		if s.Map == "ip affinity" {
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

		// Growth, and what changes nothing, is no reason.
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
		if diff := cmp.Diff([]int{2, 0, 0, 0, 6, 0, 0, 0}, swept); diff != "" {
			t.Errorf("swept (-want +got):\n%s", diff)
		}
		want := []Map{
			{ruleset.AffinityName{Family: nft.IPv4, Map: "affinity"}, 2, 262144},
			{ruleset.AffinityName{Family: nft.IPv6, Map: "affinity"}, 2, 262144},
		}
		if diff := cmp.Diff(want, b.runs[len(b.runs)-1].Maps); diff != "" {
			t.Errorf("maps of the last sweep (-want +got):\n%s", diff)
		}
	})
}

// swept are the maps that were looked at since it was called last, by when.
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

// TestMapsConcerned: at first all maps are swept, then those of which an endpoint
// has left the list, each until its own row of sweeps is over.
func TestMapsConcerned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const m, s = time.Minute, time.Second
		addresses := []string{"ip affinity", "ip6 affinity"}
		local := []string{"ip node-port-local-affinity", "ip6 node-port-local-affinity"}
		both := []string{"ip affinity", "ip node-port-local-affinity", "ip6 affinity", "ip6 node-port-local-affinity"}
		b := start(t)
		want := map[time.Duration][]string{}
		add := func(maps []string, times ...time.Duration) {
			for _, t := range times {
				want[t] = append(want[t], maps...)
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
		add([]string{
			"ip affinity", "ip local-affinity", "ip node-port-affinity", "ip node-port-local-affinity",
			"ip6 affinity", "ip6 local-affinity", "ip6 node-port-affinity", "ip6 node-port-local-affinity",
		}, rows(0)...)
		check("the start")

		b.Notify(compiledBy(4, 5), false)
		add(addresses, rows(m)...)
		check("one list")

		b.kernel.during = func() {
			b.Notify(compiledBy(2, 5), false)
			b.Notify(compiledBy(2, 4), false)
		}
		b.Notify(compiledBy(3, 5), false)
		add(addresses, 2*m)
		add(both, rows(2*m)...)
		check("several before one sweep")

		b.Notify(compiledBy(1, 4), false)
		add(addresses, rows(3 * m)[:3]...)
		time.Sleep(5 * s)
		b.Notify(compiledBy(1, 3), false)
		add(both, rows(3*m + 5*s)[:3]...)
		time.Sleep(9 * s)
		b.Notify(compiledBy(1, 2), false)
		add(both, 3*m+14*s)
		add(local, rows(3*m + 14*s)[1:]...)
		check("one after the other")
	})
}

// TestFailedMapStaysConcerned: until it was swept, and the others are not any
// longer.
func TestFailedMapStaysConcerned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.kernel.fail, b.kernel.failing = errors.New("no"), "node-port-affinity"
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
		for at, maps := range got {
			if diff := cmp.Diff([]string{"ip node-port-affinity", "ip6 node-port-affinity"}, maps); diff != "" {
				t.Errorf("swept at %v (-want +got):\n%s", at, diff)
			}
		}
		if want := 1 + len(late()); len(got) != want {
			t.Errorf("%d sweeps after the failure, want %d", len(got), want)
		}
	})
}

// TestMissedEntries: what each of several sweeps misses goes with the next.
func TestMissedEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Notify(compiled(0, 1), true)
		b.kernel.learn(compiled(0, 1), 1)
		b.after(time.Minute, "2 and 2", rows(0)...)
		b.kernel.misses = len(late())
		b.Notify(compiled(0), false)
		b.after(late()[0]+late()[1], "2 and 2", append(rows(0), rows(time.Minute)[:3]...)...)
		b.after(time.Minute, "1 and 1", rows(0, time.Minute)...)
	})
}

// TestEndpointComesAndGoes: also where Run sees neither of the programs that
// had it.
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

// TestLateEntry: one that comes just after a sweep goes with the next.
func TestLateEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		b.Notify(compiled(0, 1), true)
		b.after(time.Minute, "0 and 0", rows(0)...)
		b.Notify(compiled(0), false)
		row := rows(time.Minute)
		b.after(0, "0 and 0", append(rows(0), row[0])...)
		for i, wait := range late() {
			b.kernel.learn(compiled(0, 1), 1)
			b.after(wait, "1 and 1", append(rows(0), row[:i+2]...)...)
		}
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
		b.after(late()[0], "0 and 0", 0, (1+pause)*sweep)
	})
}

// TestNewEndpointDuringSweep: its first clients are not taken for stale ones.
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
		b.after(time.Hour, "1 and 1", append([]time.Duration{0, 1 * s, 3 * s, 7 * s}, rows(15*s)...)...)
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
