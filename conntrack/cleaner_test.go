package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
)

// slowTable is a table whose passes take a known time.
type slowTable struct {
	// mu is for the race detector, which does not know the order of time in a bubble.
	mu    sync.Mutex
	flows []Flow
	// dump is the CPU time of a dump, and filtered that of a filtered dump, if not
	// zero. The wall time is stretch times as long, if not zero.
	dump, filtered time.Duration
	stretch        int
	entries        int   // the answer of Size; 0 for a million
	fail           error // of Flows, at its end
	// denied is the error of Delete, about the flows in stay, or about all if stay
	// is nil.
	denied error
	stay   []Flow
	// tries are the times of deletions of flows in stay.
	tries  []time.Time
	starts []time.Time
	// filters has the filters of all dumps.
	filters []Filter
	// spent is the CPU time of all dumps.
	spent time.Duration
}

func (s *slowTable) Size(context.Context) (entries, buckets int, err error) {
	return cmp.Or(s.entries, 1_000_000), usualBuckets, nil
}

func (s *slowTable) cpuTime() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spent
}

func (s *slowTable) Flows(ctx context.Context, filter Filter, yield func(Flow) error) error {
	s.mu.Lock()
	s.starts, s.filters = append(s.starts, time.Now()), append(s.filters, filter)
	list, fail := slices.Clone(s.flows), s.fail
	cost := s.dump
	if filter != (Filter{}) {
		cost = cmp.Or(s.filtered, s.dump)
	}
	s.spent += cost
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
	case <-time.After(cost * time.Duration(cmp.Or(s.stretch, 1))):
		return fail
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowTable) Delete(_ context.Context, flows []Flow) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied != nil && s.stay == nil {
		return 0, &RefusedError{slices.Clone(flows), s.denied}
	}
	before := len(s.flows)
	s.flows = slices.DeleteFunc(s.flows, func(f Flow) bool {
		return slices.Contains(flows, f) && !slices.Contains(s.stay, f)
	})
	if left := slices.DeleteFunc(slices.Clone(flows), func(f Flow) bool {
		return !slices.Contains(s.stay, f)
	}); len(left) > 0 {
		s.tries = append(s.tries, time.Now())
		return before - len(s.flows), &RefusedError{left, s.denied}
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
	stop  func() // ends Run and waits for it
}

// start starts a Cleaner that is alone.
func start(t *testing.T, table *slowTable) *bench {
	return startWith(t, table, CleanerConfig{Alone: func() bool { return true }})
}

// startWith starts a Cleaner that the bench observes.
func startWith(t *testing.T, table *slowTable, c CleanerConfig) *bench {
	b := &bench{table: table}
	c.Observe = func(r Run) { table.set(func() { b.runs = append(b.runs, r) }) }
	b.Cleaner = NewCleaner(table, NewIndex(Options{}), c)
	b.cpu = table.cpuTime
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

// ended is how many passes have ended. A pass may be at work meanwhile.
func (b *bench) ended() (n int) {
	b.table.set(func() { n = len(b.runs) })
	return n
}

// after sleeps in the bubble's time and returns the times when passes began, from t0 on.
func (b *bench) after(d time.Duration, t0 time.Time) []time.Duration {
	time.Sleep(d)
	synctest.Wait()
	var starts []time.Duration
	b.table.set(func() {
		for _, s := range b.table.starts {
			starts = append(starts, s.Sub(t0))
		}
	})
	return starts
}

func TestCleanerRemoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		live := dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.1:8081", SeenReply)
		elsewhere := flow(service.UDP, "198.51.100.1:80", 0)
		table := &slowTable{dump: time.Millisecond, flows: []Flow{live, elsewhere}}
		for port := range uint16(3 * deleteBatch) { // more than one batch of deletions
			f := flow(service.UDP, "10.96.0.1:80", 0)
			f.Original.Src = netip.AddrPortFrom(f.Original.Src.Addr(), port)
			table.flows = append(table.flows, f)
		}
		table.flows = append(table.flows, flow(service.TCP, "10.96.0.1:82", 0), flow(service.TCP, "192.168.0.2:30080", 0),
			dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.2:8081", SeenReply))
		b := start(t, table)
		b.SyncDone(parse(t, replace("  port stream sctp 80\n", "  port stream sctp 80\n  port dns udp 81\n    endpoint "+
			"10.0.0.1:8081 n1 ready serving\n")(cluster)), true)
		b.after(10*time.Millisecond, time.Now())
		want := []Run{{
			Scanned: 3*deleteBatch + 5, Duration: time.Millisecond, CPU: time.Millisecond, Lag: time.Millisecond,
			Removed: map[Reason]int{ServiceAddress: 3 * deleteBatch, ClusterIP: 1, NodePort: 1, EndpointGone: 1},
		}}
		if diff := gocmp.Diff(want, b.runs); diff != "" {
			t.Errorf("runs (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff([]Flow{live, elsewhere}, table.flows, gocmp.Comparer(func(a, b Flow) bool {
			return a == b
		})); diff != "" {
			t.Errorf("flows left (-want +got):\n%s", diff)
		}
	})
}

// TestCleanerLearnsTogether: the Cleaner learns of a sync at once after a rest. It learns of those that follow within
// readEvery together with the first one after that, or where none comes, at readLatest.
func TestCleanerLearnsTogether(t *testing.T) {
	for _, c := range []struct {
		name string
		// pauses are those before each further sync.
		pauses []time.Duration
		// learned is the time of the second look, after the first sync.
		learned time.Duration
	}{
		{"another sync", []time.Duration{readEvery / 3, readEvery / 3, readEvery / 2}, readEvery/3*2 + readEvery/2},
		{"no other sync", []time.Duration{readEvery / 3, readEvery / 3}, readLatest},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, &slowTable{dump: time.Millisecond})
				s := parse(t, cluster)
				begun := time.Now()
				lastRead := func() time.Time {
					b.reports.mu.Lock()
					defer b.reports.mu.Unlock()
					return b.reports.lastRead
				}
				b.SyncDone(s, false)
				for _, pause := range c.pauses {
					b.after(pause, time.Now())
					synctest.Wait()
					if lastRead() != begun {
						t.Fatal("it has learned of a sync too early")
					}
					b.SyncDone(s, false)
				}
				b.after(readLatest, begun)
				b.after(time.Second, time.Now())
				if at := lastRead().Sub(begun); at != c.learned {
					t.Errorf("it learned of the later syncs after %v, want %v", at, c.learned)
				}
				b.stop()
				if n := b.judge.index.Epoch(); n != uint64(1+len(c.pauses)) {
					t.Errorf("it learned of %d syncs, want %d", n, 1+len(c.pauses))
				}
			})
		})
	}
}

// TestCleanerSeesEachSync: flows leave an endpoint that came and went between two looks at the reports. Without the
// sync that had it, they would seem to be another program's.
func TestCleanerSeesEachSync(t *testing.T) {
	web := func(endpoint string) service.Snapshot {
		text := "node n1\nservice default/web created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.1\n  port x udp 80\n"
		if endpoint != "" {
			text += "    endpoint " + endpoint + " n1 ready serving\n"
		}
		return parse(t, text)
	}
	for name, c := range map[string]struct{ syncs int }{"some": {3}, "more than a report holds": {2 * mostServed}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &slowTable{dump: time.Millisecond}
				b := start(t, table)
				b.SyncDone(web(""), false)
				b.after(time.Millisecond, time.Now()) // The look at the first report begins the rest.
				table.set(func() {
					table.flows = []Flow{dnated(service.UDP, "10.0.0.9", "10.97.0.1:80", "10.0.0.1:8080", SeenReply)}
				})
				b.SyncDone(web("10.0.0.1:8080"), false)
				for range c.syncs {
					b.SyncDone(web("10.0.0.2:8080"), false)
				}
				b.after(time.Minute, time.Now())
				if len(table.flows) > 0 {
					t.Errorf("left: %v, runs %v", table.flows, b.runs)
				}
			})
		})
	}
}

// The Cleaner removes nothing between the begin of a sync and its outcome: the new rules
// may already have made a flow, and the old Services must not judge it. Later syncs, and
// syncs that changed nothing, do not hold it up.
func TestCleanerWaitsForSync(t *testing.T) {
	const one, two = "    endpoint 10.0.0.1:8081 n1 ready serving\n", "    endpoint 10.0.0.2:8081 n1 ready serving\n"
	old := dnated(service.UDP, "10.0.0.8", "10.96.0.1:81", "10.0.0.3:8081", SeenReply)
	young := dnated(service.UDP, "10.0.0.9", "10.96.0.1:81", "10.0.0.2:8081", SeenReply)
	for name, c := range map[string]struct {
		end  func(b *bench, now service.Snapshot)
		left []Flow
	}{
		"the rules changed": {func(b *bench, now service.Snapshot) { b.SyncDone(now, false) }, []Flow{young}},
		"another sync at once": {func(b *bench, now service.Snapshot) {
			b.SyncDone(now, false)
			b.SyncBegins()
		}, []Flow{young}},
		"the rules are what they were": {func(b *bench, _ service.Snapshot) { b.SyncChangedNothing() }, nil},
		"nobody knew, and the next one tells": {func(b *bench, now service.Snapshot) {
			b.SyncBegins()
			b.SyncDone(now, true)
		}, []Flow{young}},
		"nobody knows, and the process ends": {func(b *bench, _ service.Snapshot) { b.stop() }, []Flow{old, young}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				with := func(endpoints string) service.Snapshot {
					return parse(t, replace("  port stream sctp 80\n", "  port stream sctp 80\n  port dns udp 81\n"+
						endpoints)(cluster))
				}
				table := &slowTable{dump: time.Millisecond}
				b := start(t, table)
				b.SyncDone(with(one+two+"    endpoint 10.0.0.3:8081 n1 ready serving\n"), true)
				b.after(time.Second, time.Now())
				b.SyncDone(with(one), false)
				b.after(time.Minute, time.Now())
				b.SyncBegins()
				table.set(func() { table.flows = []Flow{old, young} }) // The kernel has the new rules.
				b.CheckAll()
				b.after(time.Minute, time.Now())
				table.set(func() {
					if len(table.flows) != 2 {
						t.Errorf("left while the sync is under way: %v", table.flows)
					}
				})
				c.end(b, with(one+two))
				b.after(time.Minute, time.Now())
				if diff := gocmp.Diff(c.left, table.flows, gocmp.Comparer(func(a, b Flow) bool { return a == b }),
					cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("flows left (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// withAddress returns the cluster with one more Service.
func withAddress(t *testing.T, i int) service.Snapshot {
	return parse(t, fmt.Sprintf("%sservice default/new created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.%d\n"+
		"  port x udp 80\n    endpoint 10.0.0.1:80 n1 ready serving\n", cluster, i))
}

// On a small table too, the second pass waits for late entries.
func TestCleanerLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{dump: time.Microsecond}
		b := start(t, table)
		t0 := time.Now()
		b.SyncDone(parse(t, cluster), true)
		b.after(secondPassAfter/2, t0)
		table.set(func() { table.flows = []Flow{flow(service.UDP, "10.96.0.1:80", 0)} })
		if diff := gocmp.Diff([]time.Duration{0, secondPassAfter}, b.after(firstLate/2, t0)); diff != "" {
			t.Errorf("starts of passes (-want +got):\n%s", diff)
		}
		if len(table.flows) > 0 {
			t.Errorf("left: %v", table.flows)
		}
	})
}

// After the first pass, each change leads to dumps in its scope: one at once, and one
// later for late entries, also if other changes come between. Then the departed endpoints
// are covered.
func TestCleanerLooksWhereSomethingChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{dump: 50 * time.Millisecond}
		b := start(t, table)
		b.SyncDone(parse(t, cluster), true)
		b.after(2*secondPassAfter, time.Now())
		table.set(func() { table.filters = nil })
		t0 := time.Now()
		b.SyncDone(withAddress(t, 1), false)
		b.after(secondPassAfter/2, t0)
		b.SyncDone(withAddress(t, 2), false)
		b.after(secondPassAfter, t0)
		table.set(func() {
			if b.judge.index.departed.due() == 0 {
				t.Error("the index does not remember the departed endpoints")
			}
		})
		b.after(3*secondPassAfter, t0)
		one, two := Filter{Dst: netip.MustParseAddr("10.97.0.1")}, Filter{Dst: netip.MustParseAddr("10.97.0.2")}
		want := []Filter{one, two, one, one, two, one}
		if diff := gocmp.Diff(want, table.filters, cmpopts.EquateComparable(Filter{})); diff != "" {
			t.Errorf("dumps (-want +got):\n%s", diff)
		}
		table.set(func() {
			if len(b.agenda.changes) > 0 || b.judge.index.departed.due() > 0 {
				t.Errorf("still to be covered: %v, %v", b.agenda, b.judge.index.departed)
			}
		})
		b.after(time.Hour, t0)
		if diff := gocmp.Diff(append(want, Filter{}, Filter{}), table.filters,
			cmpopts.EquateComparable(Filter{})); diff != "" {
			t.Errorf("dumps, with the late ones of the whole table (-want +got):\n%s", diff)
		}
	})
}

// A failed pass may have missed any entry, so the next one looks at the whole table.
func TestCleanerLooksEverywhereAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{dump: 50 * time.Millisecond}
		b := start(t, table)
		b.SyncDone(parse(t, cluster), true)
		b.after(2*secondPassAfter, time.Now())
		table.set(func() { table.filters, table.fail = nil, ErrInterrupted })
		b.SyncDone(withAddress(t, 1), false)
		b.after(secondPassAfter/2, time.Now())
		table.set(func() { table.fail = nil })
		b.after(time.Minute, time.Now())
		want := []Filter{{Dst: netip.MustParseAddr("10.97.0.1")}, {}}
		if diff := gocmp.Diff(want, table.filters, cmpopts.EquateComparable(Filter{})); diff != "" {
			t.Errorf("dumps (-want +got):\n%s", diff)
		}
	})
}

// The snapshot from before this process distinguishes our former flows from flows of
// other programs. The Cleaner asks for it only together with the present snapshot.
func TestCleanerKnowsWhatWasServedBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours := dnated(service.UDP, "198.51.100.7", "203.0.113.5:80", "10.0.0.1:8080", SeenReply)
		others := dnated(service.UDP, "198.51.100.8", "203.0.113.5:80", "172.17.0.2:8080", SeenReply)
		table := &slowTable{flows: []Flow{ours, others}}
		b := start(t, table)
		const before = "service default/old created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.1\n  external-ip " +
			"203.0.113.5\n" +
			"  port x udp 80\n    endpoint 10.0.0.1:8080 n1 ready serving\n"
		asked := 0
		b.ServedBefore(func() service.Snapshot {
			asked++
			return parse(t, before)
		})
		if b.after(time.Minute, time.Now()); asked > 0 {
			t.Error("asked before there was a sync")
		}
		b.SyncDone(parse(t, "node n1\n"), true)
		b.after(time.Minute, time.Now())
		if diff := gocmp.Diff([]Flow{others}, table.flows, gocmp.Comparer(func(a, b Flow) bool {
			return a == b
		})); diff != "" || asked != 1 {
			t.Errorf("asked %d times; flows left (-want +got):\n%s", asked, diff)
		}
		if b.runs[0].Removed[ServiceGone] != 1 {
			t.Errorf("removed %v", b.runs[0].Removed)
		}
	})
}

// TestCleanerRoutesBeforeServices: local routes make no pass before there is a snapshot, since the first sync makes one
// over the whole table anyway.
func TestCleanerRoutesBeforeServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, began := start(t, &slowTable{dump: time.Millisecond}), time.Now()
		b.LocalRoutes(prefixes("127.0.0.0/8"))
		if starts := b.after(5*time.Second, began); len(starts) > 0 {
			t.Errorf("passes at %v, before there was a sync", starts)
		}
		b.SyncDone(parse(t, "node n1\n"), true)
		synced := b.after(5*time.Second, began)
		if diff := gocmp.Diff([]time.Duration{5 * time.Second, 5*time.Second + secondPassAfter}, synced); diff != "" {
			t.Errorf("passes after a sync (-want +got):\n%s", diff)
		}
		b.LocalRoutes(prefixes("127.0.0.0/8", "198.51.100.0/24"))
		if starts := b.after(5*time.Second, began); len(starts) != len(synced)+2 {
			t.Errorf("passes at %v; want two more than %v", starts, synced)
		}
	})
}

func TestCleanerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{fail: unix.EPERM}
		b := start(t, table)
		t0 := time.Now()
		b.SyncDone(parse(t, cluster), true)
		seconds := func(list ...time.Duration) []time.Duration {
			for i := range list {
				list[i] *= time.Second
			}
			return list
		}
		want := seconds(0, 1, 3, 7, 15, 31, 63, 123, 183)
		if diff := gocmp.Diff(want, b.after(200*time.Second, t0)); diff != "" {
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
		b.SyncDone(parse(t, cluster), true)
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
		if diff := gocmp.Diff(reports, got); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
	})
}

func TestCleanerStopsInPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t, &slowTable{dump: time.Hour})
		b.SyncDone(parse(t, cluster), true)
		synctest.Wait()
		b.stop()
		if len(b.table.starts) != 1 || len(b.runs) > 0 {
			t.Errorf("%d passes begun, %d observed, want 1 and 0", len(b.table.starts), len(b.runs))
		}
	})
}
