package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/test/lib/netlinkfault"
)

// An entry that cannot be removed, such as one in a flow table, does not hold up others,
// and the pass reports its error.
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
		b.SyncDone(parse(t, cluster), true)
		b.after(time.Millisecond, time.Now())
		if diff := gocmp.Diff(table.stay, table.flows, gocmp.Comparer(func(a, b Flow) bool { return a == b })); diff != "" {
			t.Errorf("flows left (-want +got):\n%s", diff)
		}
		if run := b.runs[0]; !errors.Is(run.Err, unix.EBUSY) || run.Removed[ServiceAddress] != 2*deleteBatch ||
			run.Scanned != 2*deleteBatch+1 {
			t.Errorf("run %+v, want EBUSY and all but one removed", run)
		}
	})
}

// An entry that the kernel never removes does not hold up later changes. It is tried again, ever
// less often, and told once. When it can be removed, it is.
func TestCleanerTriesRefusedEntryAgain(t *testing.T) {
	for name, size := range map[string]int{"small table": 100, "large table": 1_000_000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				busy := dnated(service.UDP, "10.0.0.8", "10.97.0.1:53", "10.1.0.0:53", SeenReply)
				table := &slowTable{entries: size, dump: time.Millisecond, denied: unix.EBUSY, stay: []Flow{busy},
					flows: []Flow{busy}}
				builder := snapshots.NewBuilder(service.Node{})
				b := start(t, table)
				b.SyncDone(rolled(t, builder, 0), true)
				b.after(10*time.Second, time.Now())
				t0 := time.Now()
				const changes = 100
				for i := range changes {
					f := busy
					f.Original.Src = netip.AddrPortFrom(f.Original.Src.Addr(), uint16(1000+i))
					f.Reply = Tuple{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 53), f.Original.Src}
					table.set(func() { table.flows = append(table.flows, f) })
					b.SyncDone(rolled(t, builder, i+1), false)
					b.after(6*time.Second, time.Now())
					table.set(func() {
						if len(table.flows) != 1 {
							t.Fatalf("change %d: left %v, want only the refused entry", i, table.flows)
						}
					})
				}
				told, worst, whole := 0, time.Duration(0), 0
				table.set(func() {
					for _, run := range b.runs {
						if run.Err != nil && !run.Repeated {
							told++
						}
						if run.Walks == 0 {
							whole++
						}
						worst = max(worst, run.Lag)
					}
					if n := len(table.tries); n < 10 || n > 2*changes+50 { // some passes look at everything
						t.Errorf("tried %d times in %v", n, time.Since(t0))
					}
				})
				if told != 1 || worst > time.Second {
					t.Errorf("told %d times, want once; a change waited for %v", told, worst)
				}
				table.set(func() { table.stay, table.denied = nil, nil })
				b.after(2*refusedMost, time.Now())
				table.set(func() {
					if len(table.flows) > 0 {
						t.Errorf("left: %v", table.flows)
					}
				})
				passes := b.ended()
				b.after(2*refusedMost, time.Now())
				if n := b.ended() - passes; n > 2 {
					t.Errorf("%d passes with nothing to do", n)
				}
			})
		})
	}
}

// The waits between two tries grow up to a bound, and begin again once all entries are gone.
func TestRefusedWaits(t *testing.T) {
	var r refused
	now := time.Now()
	f := []Flow{dnated(service.UDP, "10.0.0.8", "10.97.0.1:53", "10.1.0.0:53", SeenReply)}
	r.add(f)
	r.plan(now)
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if _, ok := r.take(now.Add(want*time.Second - 1)); ok {
			t.Errorf("taken before %ds", want)
		}
		now = now.Add(want * time.Second)
		s, ok := r.take(now)
		if !ok || len(s.Filters) != 1 || !s.Selects(&f[0]) {
			t.Errorf("after %ds: %v, %v", want, s, ok)
		}
		r.add(f)
		r.plan(now)
	}
	now = r.due
	r.take(now)
	if r.plan(now); r.wait != 0 || !r.due.IsZero() {
		t.Errorf("nothing is refused: %+v", r)
	}
	for i := range 1000 {
		f[0].Original.Dst = netip.AddrPortFrom(f[0].Original.Dst.Addr(), uint16(i+1))
		r.add(f)
	}
	if !r.scope.Everything || len(r.scope.Filters) > 0 {
		t.Errorf("the scope of many entries is %+v", r.scope)
	}
}

// The real kernel has many stale entries, and refuses to remove the first of each request for a while,
// with one error or the other. The others go at once, and that one when the kernel lets it.
func TestRefusedDeletions(t *testing.T) {
	f := openFaulty(t)
	snapshot := faultyServices(t)
	for _, errno := range []unix.Errno{unix.EBUSY, unix.EPERM, unix.EAGAIN, unix.ENOBUFS, unix.ENOENT} {
		f.fill(t)
		synctest.Test(t, func(t *testing.T) {
			last := -1
			f.injector.Decide(func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
				first := p.Message == "delete entry" && p.Datagram != last
				if p.Message == "delete entry" {
					last = p.Datagram
				}
				return netlinkfault.Fault{Kind: netlinkfault.Refuse, Errno: errno}, first
			})
			defer f.injector.Decide(netlinkfault.None)
			ctx, cancel := context.WithCancel(t.Context())
			told, passes := 0, 0
			c := NewCleaner(f.table, NewIndex(Options{}), CleanerConfig{Observe: func(r Run) {
				if passes++; r.Err != nil && !r.Repeated {
					told++
					if left := (*RefusedError)(nil); !errors.As(r.Err, &left) || !errors.Is(r.Err, errno) || len(left.Flows) != 1 {
						t.Errorf("%s: error %v", unix.ErrnoName(errno), r.Err)
					}
				}
			}, Alone: func() bool { return true }})
			stopped := make(chan error)
			go func() { stopped <- c.Run(ctx) }()
			stale := func() (n int) {
				for _, f := range flows(t, f.other, Filter{}) {
					if f.Reply.Src.Addr() == netip.MustParseAddr("10.244.0.9") {
						n++
					}
				}
				return n
			}
			c.SyncDone(snapshot, true)
			time.Sleep(5 * time.Minute)
			synctest.Wait()
			if n := stale(); n != 1 || passes > 40 {
				t.Errorf("%s: %d stale entries are left after %d passes", unix.ErrnoName(errno), n, passes)
			}
			if want := map[bool]int{false: 1, true: 0}[errno == unix.ENOENT]; told != want {
				t.Errorf("%s: told %d times, want %d", unix.ErrnoName(errno), told, want)
			}
			f.injector.Decide(netlinkfault.None)
			if errno == unix.ENOENT {
				c.SyncDone(snapshot, true) // That answer says that there is no such entry any more.
			}
			time.Sleep(2 * refusedMost)
			synctest.Wait()
			if n := stale(); n > 0 {
				t.Errorf("%s: %d stale entries are left in the end", unix.ErrnoName(errno), n)
			}
			cancel()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}
