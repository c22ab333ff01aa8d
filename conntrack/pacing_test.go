package conntrack

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// The time of a wait for a sync does not count for the rest after the pass.
func TestCleanerDoesNotRestFromWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const dump, sync = 100 * time.Millisecond, 10 * time.Second
		table := &slowTable{dump: dump, flows: []Flow{flow(service.UDP, "10.96.0.1:80", 0)}}
		b := start(t, table)
		t0 := time.Now()
		b.SyncDone(parse(t, cluster), true)
		b.SyncBegins()
		b.after(sync, t0)
		b.SyncDone(parse(t, cluster), false)
		if diff := cmp.Diff([]time.Duration{0, sync + rest*dump}, b.after(firstLate/2, t0)); diff != "" {
			t.Errorf("starts of passes (-want +got):\n%s", diff)
		}
	})
}

// rolled returns a Service with a hundred endpoints. The first ones, so many, are
// replaced.
func rolled(t *testing.T, b *snapshots.Builder, replaced int) service.Snapshot {
	text := cluster + "service default/rolled created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.1\n  external-ip " +
		"203.0.113.9\n  port dns udp 53\n"
	for i := range 100 {
		generation := 1
		if i < replaced {
			generation = 2
		}
		text += fmt.Sprintf("    endpoint 10.%d.0.%d:53 n1 ready serving\n", generation, i)
	}
	return become(b, parse(t, text))
}

// Every 100 ms one endpoint of a hundred is replaced. The Cleaner removes the stale flows
// soon, also on a busy machine, where a pass takes longer than its CPU time.
func TestCleanerKeepsUpWithRollingUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		entries         int
		filtered, whole time.Duration // CPU time
		stretch         int           // wall time by CPU time
		most            time.Duration
	}{
		"10,000 flows, busy machine": {10_000, 12 * time.Millisecond, 24 * time.Millisecond, 3, 200 * time.Millisecond},
		"200,000 flows":              {200_000, 35 * time.Millisecond, 250 * time.Millisecond, 1, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				builder := snapshots.NewBuilder(service.Node{})
				table := &slowTable{entries: c.entries, dump: c.whole, filtered: c.filtered, stretch: c.stretch}
				b := start(t, table)
				b.SyncDone(rolled(t, builder, 0), true)
				b.after(time.Minute, time.Now())
				var lags []time.Duration
				for i := range 100 {
					stale := dnated(service.UDP, "10.0.0.9", "10.97.0.1:53", fmt.Sprintf("10.1.0.%d:53", i), SeenReply)
					table.set(func() { table.flows = append(table.flows, stale) })
					b.SyncDone(rolled(t, builder, i+1), false)
					told := time.Now()
					go func() {
						for gone := false; !gone; time.Sleep(time.Millisecond) {
							table.set(func() { gone = !slices.Contains(table.flows, stale) })
						}
						table.set(func() { lags = append(lags, time.Since(told)) })
					}()
					time.Sleep(100 * time.Millisecond)
				}
				b.after(time.Minute, time.Now())
				if len(lags) != 100 {
					t.Fatalf("%d of 100 stale flows were removed", len(lags))
				}
				for i, lag := range lags {
					if lag > c.most {
						t.Errorf("flow %d: removed %v after the sync, want at most %v", i, lag, c.most)
					}
				}
			})
		})
	}
}

// Changes that never end get the budget's share in the long run, whatever a pass costs.
// Each change still has its first and its second pass.
func TestCleanerStaysWithinBudget(t *testing.T) {
	for name, c := range map[string]struct {
		entries         int
		filtered, whole time.Duration
	}{
		"small table": {800, 11 * time.Millisecond, 12 * time.Millisecond},
		"large table": {200_000, 35 * time.Millisecond, 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const changes, every = 6000, 100 * time.Millisecond
				table := &slowTable{entries: c.entries, dump: c.whole, filtered: c.filtered}
				b := start(t, table)
				snapshots := []service.Snapshot{withAddress(t, 1), withAddress(t, 2)}
				t0 := time.Now()
				for i := range changes {
					b.SyncDone(snapshots[i%2], false)
					time.Sleep(every)
				}
				synctest.Wait()
				share := time.Since(t0) / rest
				table.set(func() {
					if most := share + burst + c.whole; table.spent > most || table.spent < share/2 {
						t.Errorf("%v of CPU time in %v, want at most %v", table.spent, time.Since(t0), most)
					}
					if n := len(b.agenda.changes); n > 100 {
						t.Errorf("%d changes are waited for", n)
					}
				})
				b.after(time.Hour, t0)
				table.set(func() {
					if len(b.agenda.changes) > 0 || b.judge.index.departed.due() > 0 {
						t.Errorf("still due: %+v", b.agenda)
					}
				})
			})
		})
	}
}

// At a low rate, each change costs two passes. The routine passes over everything add
// none: they are one with these.
func TestCleanerCostOfRareChanges(t *testing.T) {
	const changes, every, walk = 40, 2500 * time.Millisecond, 11 * time.Millisecond
	for name, entries := range map[string]int{"all but empty table": 900, "large table": 100_000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &slowTable{entries: entries, dump: walk, filtered: walk}
				b := start(t, table)
				builder := snapshots.NewBuilder(service.Node{})
				b.SyncDone(rolled(t, builder, 0), true)
				b.after(time.Minute, time.Now())
				before := table.cpuTime()
				for i := range changes {
					b.SyncDone(rolled(t, builder, i+1), false)
					time.Sleep(every)
				}
				if got, most := table.cpuTime()-before, 2*changes*walk; got > most {
					t.Errorf("%v of CPU time for %d changes, want at most two passes for each, %v", got, changes, most)
				}
			})
		})
	}
}

// A pass follows the first sync at once, a second one later, and then two late ones. The same holds
// after CheckAll.
func TestCleanerPace(t *testing.T) {
	const dump = 100 * time.Millisecond
	again := dump + rest*dump // A second pass takes its share.
	late, later := dump+firstLate, 2*dump+firstLate+secondLate
	for name, c := range map[string]struct {
		notify func(t *testing.T, b *bench)
		want   []time.Duration
	}{
		"first sync": {func(t *testing.T, b *bench) { b.SyncDone(parse(t, cluster), true) }, []time.Duration{0, again, late,
			later}},
		"many syncs that leave nothing stale: no pass for them": {func(t *testing.T, b *bench) {
			s := parse(t, cluster)
			for range 1000 {
				b.SyncDone(s, false)
				time.Sleep(50 * time.Millisecond)
			}
		}, []time.Duration{0, again, late, later}},
		"something else than a sync": {func(t *testing.T, b *bench) {
			b.SyncDone(parse(t, cluster), true)
			time.Sleep(time.Minute)
			b.CheckAll()
		}, []time.Duration{0, again, time.Minute, time.Minute + again, time.Minute + late, time.Minute + later}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := start(t, &slowTable{dump: dump})
				t0 := time.Now()
				c.notify(t, b)
				if diff := cmp.Diff(c.want, b.after(10*time.Minute, t0)); diff != "" {
					t.Errorf("starts of passes (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestLatePasses: an entry that appears long after the last change is removed, although nothing
// changes any more. Its packet was held, by a network policy engine for example.
func TestLatePasses(t *testing.T) {
	for _, held := range []time.Duration{40 * time.Second, 3 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			table := &slowTable{dump: time.Millisecond}
			b := start(t, table)
			b.SyncDone(parse(t, cluster), false)
			b.after(held, time.Now())
			table.set(func() { table.flows = []Flow{flow(service.UDP, "10.96.0.1:80", 0)} })
			passes := b.ended()
			b.after(formerFor-held, time.Now())
			table.set(func() {
				if len(table.flows) > 0 {
					t.Errorf("held for %s: the entry stays", held)
				}
			})
			if more := b.ended() - passes; more > 2 {
				t.Errorf("held for %s: %d passes without a change", held, more)
			}
			passes = b.ended()
			if b.after(24*time.Hour, time.Now()); b.ended() != passes {
				t.Errorf("%d more passes on a day without changes", b.ended()-passes)
			}
		})
	}
}
