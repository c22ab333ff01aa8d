package conntrack

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
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"nftproxy/internal/service"
)

// slowTable is a table whose passes take a known time.
type slowTable struct {
	// mu is for the race detector, to which time in a bubble orders nothing.
	mu    sync.Mutex
	flows []Flow
	dump  time.Duration
	fail  error // of Flows, at its end
	// denied is the error of Delete: about those that stay, or all if none do.
	denied error
	stay   []Flow
	starts []time.Time
	// filters are those of all dumps.
	filters []Filter
}

func (s *slowTable) Flows(ctx context.Context, filter Filter, yield func(Flow) error) error {
	s.mu.Lock()
	s.starts, s.filters = append(s.starts, time.Now()), append(s.filters, filter)
	list, fail := slices.Clone(s.flows), s.fail
	s.mu.Unlock()
	for _, f := range list {
		if !filter.Selects(&f) {
			continue
		}
		if err := yield(f); err != nil {
			return err
		}
	}
	select {
	case <-time.After(s.dump):
		return fail
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowTable) Delete(_ context.Context, flows []Flow) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied != nil && s.stay == nil {
		return 0, s.denied
	}
	before := len(s.flows)
	s.flows = slices.DeleteFunc(s.flows, func(f Flow) bool { return slices.Contains(flows, f) && !slices.Contains(s.stay, f) })
	if slices.ContainsFunc(flows, func(f Flow) bool { return slices.Contains(s.stay, f) }) {
		return before - len(s.flows), s.denied
	}
	return before - len(s.flows), nil
}

// set changes the table between passes.
func (s *slowTable) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// bench is a running Cleaner over a slowTable, in a synctest bubble.
type bench struct {
	*Cleaner
	table *slowTable
	runs  []Run
	stop  func() // returns when Run has
}

func start(t *testing.T, table *slowTable) *bench {
	b := &bench{table: table}
	b.Cleaner = NewCleaner(table, NewIndex(Options{}), func(r Run) { b.runs = append(b.runs, r) })
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
	synctest.Wait()
	return b
}

// after sleeps in the bubble's time and returns when passes began, from t0 on.
func (b *bench) after(d time.Duration, t0 time.Time) []time.Duration {
	time.Sleep(d)
	synctest.Wait()
	var starts []time.Duration
	for _, s := range b.table.starts {
		starts = append(starts, s.Sub(t0))
	}
	return starts
}

func TestCleanerRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.1:8081", SeenReply)
		elsewhere := flow(service.UDP, "198.51.100.1:80", 0)
		table := &slowTable{dump: time.Millisecond, flows: []Flow{live, elsewhere}}
		for port := range uint16(3 * deleteBatch) { // more than one deletion's worth
			f := flow(service.UDP, "10.96.0.1:80", 0)
			f.Original.Src = netip.AddrPortFrom(f.Original.Src.Addr(), port)
			table.flows = append(table.flows, f)
		}
		table.flows = append(table.flows, flow(service.TCP, "10.96.0.1:82", 0), flow(service.TCP, "192.168.0.2:30080", 0),
			dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.2:8081", SeenReply))
		b := start(t, table)
		b.Notify(parse(t, replace("  port stream sctp 80\n", "  port stream sctp 80\n  port dns udp 81\n    endpoint 10.0.0.1:8081 n1 ready serving\n")(cluster)), true)
		b.after(10*time.Millisecond, time.Now())
		want := []Run{{
			Scanned: 3*deleteBatch + 5, Duration: time.Millisecond,
			Removed: map[Reason]int{ServiceAddress: 3 * deleteBatch, ClusterIP: 1, NodePort: 1, EndpointGone: 1},
		}}
		if diff := cmp.Diff(want, b.runs); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]Flow{live, elsewhere}, table.flows, cmp.Comparer(func(a, b Flow) bool { return a == b })); diff != "" {
			t.Errorf("flows left (-want +got):\n%s", diff)
		}
	})
}

// What is made by rules that come while the table is read is not judged by the
// services that were before them.
func TestCleanerSparesFlowsOfYoungerRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		with := func(endpoints string) service.Snapshot {
			return parse(t, replace("  port stream sctp 80\n", "  port stream sctp 80\n  port dns udp 81\n"+endpoints)(cluster))
		}
		const one, two = "    endpoint 10.0.0.1:8081 n1 ready serving\n", "    endpoint 10.0.0.2:8081 n1 ready serving\n"
		old := dnated(service.UDP, "10.0.0.8", "10.96.0.1:81", "10.0.0.3:8081", SeenReply)
		young := dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.2:8081", SeenReply)
		table := &slowTable{dump: 50 * time.Millisecond, flows: []Flow{old, young}}
		b := start(t, table)
		b.Notify(with(one), true)
		b.after(table.dump/2, time.Now()) // both have been read
		b.Notify(with(one+two), false)
		b.after(time.Minute, time.Now())
		if diff := cmp.Diff([]Flow{young}, table.flows, cmp.Comparer(func(a, b Flow) bool { return a == b })); diff != "" {
			t.Errorf("flows left (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[Reason]int{EndpointGone: 1}, b.runs[0].Removed); diff != "" {
			t.Errorf("removed by the first pass (-want +got):\n%s", diff)
		}
	})
}

// What is made by the rules of a sync before that is told of is not judged by
// the services that were before them: nothing is removed meanwhile. Syncs that
// begin later, and those that changed nothing, hold nothing up.
func TestCleanerWaitsForSync(t *testing.T) {
	const one, two = "    endpoint 10.0.0.1:8081 n1 ready serving\n", "    endpoint 10.0.0.2:8081 n1 ready serving\n"
	old := dnated(service.UDP, "10.0.0.8", "10.96.0.1:81", "10.0.0.3:8081", SeenReply)
	young := dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.2:8081", SeenReply)
	for name, c := range map[string]struct {
		end  func(b *bench, now service.Snapshot)
		left []Flow
	}{
		"the rules changed": {func(b *bench, now service.Snapshot) { b.Notify(now, false) }, []Flow{young}},
		"another sync at once": {func(b *bench, now service.Snapshot) {
			b.Notify(now, false)
			b.Begin()
		}, []Flow{young}},
		"the rules are what they were": {func(b *bench, _ service.Snapshot) { b.Unchanged() }, nil},
		"nobody knew, and the next one tells": {func(b *bench, now service.Snapshot) {
			b.Begin()
			b.Notify(now, true)
		}, []Flow{young}},
		"nobody knows, and the process ends": {func(b *bench, _ service.Snapshot) { b.stop() }, []Flow{old, young}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				with := func(endpoints string) service.Snapshot {
					return parse(t, replace("  port stream sctp 80\n", "  port stream sctp 80\n  port dns udp 81\n"+endpoints)(cluster))
				}
				table := &slowTable{dump: time.Millisecond}
				b := start(t, table)
				b.Notify(with(one), true)
				b.after(time.Minute, time.Now())
				b.Begin()
				table.set(func() { table.flows = []Flow{old, young} }) // the kernel has the new rules
				b.Again()
				b.after(time.Minute, time.Now())
				table.set(func() {
					if len(table.flows) != 2 {
						t.Errorf("left while the sync is under way: %v", table.flows)
					}
				})
				c.end(b, with(one+two))
				b.after(time.Minute, time.Now())
				if diff := cmp.Diff(c.left, table.flows, cmp.Comparer(func(a, b Flow) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("flows left (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// What the wait for a sync has cost is no reason to rest.
func TestCleanerDoesNotRestFromWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dump, sync = 100 * time.Millisecond, 10 * time.Second
		table := &slowTable{dump: dump, flows: []Flow{flow(service.UDP, "10.96.0.1:80", 0)}}
		b := start(t, table)
		t0 := time.Now()
		b.Notify(parse(t, cluster), true)
		b.Begin()
		b.after(sync, t0)
		b.Notify(parse(t, cluster), false)
		if diff := cmp.Diff([]time.Duration{0, sync + pause*dump}, b.after(time.Minute, t0)); diff != "" {
			t.Errorf("starts of passes (-want +got):\n%s", diff)
		}
	})
}

// withAddress is the cluster with a service more.
func withAddress(t *testing.T, i int) service.Snapshot {
	return parse(t, fmt.Sprintf("%sservice default/new created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.%d\n"+
		"  port x udp 80\n    endpoint 10.0.0.1:80 n1 ready serving\n", cluster, i))
}

func TestCleanerPace(t *testing.T) {
	const dump = 100 * time.Millisecond
	steps := []struct {
		name   string
		notify func(t *testing.T, b *bench)
		wait   time.Duration
		want   []time.Duration
	}{
		{"first sync: at once, and once more", func(t *testing.T, b *bench) {
			b.Notify(parse(t, cluster), true)
		}, 10 * time.Minute, []time.Duration{0, dump + pause*dump}},
		{"many syncs that leave something stale: at a twentieth of the time", func(t *testing.T, b *bench) {
			for i := range 100 {
				b.Notify(withAddress(t, i), false)
				time.Sleep(50 * time.Millisecond)
			}
		}, 10 * time.Minute, []time.Duration{
			0, 2100 * time.Millisecond, 4200 * time.Millisecond, 6300 * time.Millisecond, 8400 * time.Millisecond,
		}},
		{"many syncs that leave nothing stale: the whole table at a two-hundredth", func(t *testing.T, b *bench) {
			s := parse(t, cluster)
			for range 1000 {
				b.Notify(s, false)
				time.Sleep(50 * time.Millisecond)
			}
		}, 10 * time.Minute, []time.Duration{
			0, 2100 * time.Millisecond, 22200 * time.Millisecond, 42300 * time.Millisecond, 62400 * time.Millisecond,
		}},
		{"something else than a sync", func(t *testing.T, b *bench) {
			b.Notify(parse(t, cluster), true)
			time.Sleep(time.Minute)
			b.Again()
		}, 10 * time.Minute, []time.Duration{0, dump + pause*dump, time.Minute, time.Minute + dump + pause*dump}},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, &slowTable{dump: dump})
				t0 := time.Now()
				step.notify(t, b)
				if diff := cmp.Diff(step.want, b.after(step.wait, t0)); diff != "" {
					t.Errorf("starts of passes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A pass soon after one on a small table waits for the late entries that the
// second pass is for.
func TestCleanerLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{dump: time.Microsecond}
		b := start(t, table)
		t0 := time.Now()
		b.Notify(parse(t, cluster), true)
		b.after(late/2, t0)
		table.set(func() { table.flows = []Flow{flow(service.UDP, "10.96.0.1:80", 0)} })
		if diff := cmp.Diff([]time.Duration{0, late + time.Microsecond}, b.after(time.Hour, t0)); diff != "" {
			t.Errorf("starts of passes (-want +got):\n%s", diff)
		}
		if len(table.flows) > 0 {
			t.Errorf("left: %v", table.flows)
		}
	})
}

// After the first pass a change leads to dumps of what it concerns: at once, and
// again for late entries, also if other changes come between. Then what has
// gone is forgotten.
func TestCleanerLooksWhereSomethingChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{dump: 50 * time.Millisecond}
		b := start(t, table)
		b.Notify(parse(t, cluster), true)
		b.after(2*late, time.Now())
		table.set(func() { table.filters = nil })
		t0 := time.Now()
		b.Notify(withAddress(t, 1), false)
		b.after(late/2, t0)
		b.Notify(withAddress(t, 2), false)
		b.after(late, t0)
		table.set(func() {
			if len(b.index.departed.from) == 0 {
				t.Error("what departed is not remembered")
			}
		})
		b.after(3*late, t0)
		one, two := Filter{Dst: netip.MustParseAddr("10.97.0.1")}, Filter{Dst: netip.MustParseAddr("10.97.0.2")}
		want := []Filter{one, one, two, two, one}
		if diff := cmp.Diff(want, table.filters, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("dumps (-want +got):\n%s", diff)
		}
		table.set(func() {
			if len(b.due) > 0 || len(b.index.departed.from) > 0 {
				t.Errorf("still to be covered: %v, %v", b.due, b.index.departed)
			}
		})
		b.after(time.Hour, t0)
		if diff := cmp.Diff(append(want, Filter{}), table.filters, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("dumps, with the whole table after a rest (-want +got):\n%s", diff)
		}
	})
}

// A pass that failed may have missed anything.
func TestCleanerLooksEverywhereAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{dump: 50 * time.Millisecond}
		b := start(t, table)
		b.Notify(parse(t, cluster), true)
		b.after(2*late, time.Now())
		table.set(func() { table.filters, table.fail = nil, ErrInterrupted })
		b.Notify(withAddress(t, 1), false)
		b.after(late/2, time.Now())
		table.set(func() { table.fail = nil })
		b.after(time.Minute, time.Now())
		want := []Filter{{Dst: netip.MustParseAddr("10.97.0.1")}, {}, {}}
		if diff := cmp.Diff(want, table.filters, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("dumps (-want +got):\n%s", diff)
		}
	})
}

// What the rules served before the process came tells its flows from those of
// others. It is asked only together with what is served now.
func TestCleanerInherits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := dnated(service.UDP, "198.51.100.7", "203.0.113.5:80", "10.0.0.1:8080", SeenReply)
		others := dnated(service.UDP, "198.51.100.8", "203.0.113.5:80", "172.17.0.2:8080", SeenReply)
		table := &slowTable{flows: []Flow{ours, others}}
		b := start(t, table)
		const before = "service default/old created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.1\n  external-ip 203.0.113.5\n" +
			"  port x udp 80\n    endpoint 10.0.0.1:8080 n1 ready serving\n"
		asked := 0
		b.Inherit(func() service.Snapshot {
			asked++
			return parse(t, before)
		})
		if b.after(time.Minute, time.Now()); asked > 0 {
			t.Error("asked before there was a sync")
		}
		b.Notify(parse(t, "node n1\n"), true)
		b.after(time.Minute, time.Now())
		if diff := cmp.Diff([]Flow{others}, table.flows, cmp.Comparer(func(a, b Flow) bool { return a == b })); diff != "" || asked != 1 {
			t.Errorf("asked %d times; flows left (-want +got):\n%s", asked, diff)
		}
		if b.runs[0].Removed[ServiceGone] != 1 {
			t.Errorf("removed %v", b.runs[0].Removed)
		}
	})
}

func TestCleanerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{fail: unix.EPERM}
		b := start(t, table)
		t0 := time.Now()
		b.Notify(parse(t, cluster), true)
		seconds := func(list ...time.Duration) []time.Duration {
			for i := range list {
				list[i] *= time.Second
			}
			return list
		}
		want := seconds(0, 1, 3, 7, 15, 31, 63, 123, 183)
		if diff := cmp.Diff(want, b.after(200*time.Second, t0)); diff != "" {
			t.Errorf("starts of passes (-want +got):\n%s", diff)
		}
		table.set(func() { table.fail = unix.EINVAL })
		b.after(time.Minute, t0)
		table.set(func() { table.fail = nil })
		b.after(time.Minute, t0)
		table.set(func() {
			table.denied = errors.New("denied")
			table.flows = []Flow{flow(service.UDP, "10.96.0.1:80", 0)}
		})
		b.Notify(parse(t, cluster), true)
		b.after(30*time.Second, t0)

		type report struct {
			Err      string
			Repeated bool
		}
		var got []report
		for _, run := range b.runs {
			r := report{"", run.Repeated}
			if run.Err != nil {
				r.Err = run.Err.Error()
			}
			if len(got) == 0 || got[len(got)-1] != r {
				got = append(got, r)
			}
		}
		reports := []report{
			{unix.EPERM.Error(), false}, {unix.EPERM.Error(), true}, {unix.EINVAL.Error(), false},
			{"", false}, {"denied", false}, {"denied", true},
		}
		if diff := cmp.Diff(reports, got); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

// One entry that cannot be removed, as in a flow table, keeps no other, and the
// pass says so in the end.
func TestCleanerGoesOnAfterError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := flow(service.UDP, "10.96.0.1:80", 0)
		table := &slowTable{denied: unix.EBUSY, stay: []Flow{busy}, flows: []Flow{busy}}
		for port := range uint16(2 * deleteBatch) {
			f := busy
			f.Original.Src = netip.AddrPortFrom(busy.Original.Src.Addr(), port)
			table.flows = append(table.flows, f)
		}
		b := start(t, table)
		b.Notify(parse(t, cluster), true)
		b.after(time.Millisecond, time.Now())
		if diff := cmp.Diff(table.stay, table.flows, cmp.Comparer(func(a, b Flow) bool { return a == b })); diff != "" {
			t.Errorf("flows left (-want +got):\n%s", diff)
		}
		if run := b.runs[0]; !errors.Is(run.Err, unix.EBUSY) || run.Removed[ServiceAddress] != 2*deleteBatch || run.Scanned != 2*deleteBatch+1 {
			t.Errorf("run %+v, want EBUSY and all but one removed", run)
		}
	})
}

func TestCleanerStopsInPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &slowTable{dump: time.Hour})
		b.Notify(parse(t, cluster), true)
		synctest.Wait()
		b.stop()
		if len(b.table.starts) != 1 || len(b.runs) > 0 {
			t.Errorf("%d passes begun, %d observed, want 1 and 0", len(b.table.starts), len(b.runs))
		}
	})
}
