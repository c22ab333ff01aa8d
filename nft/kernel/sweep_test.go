package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
)

// remembered is the entry of the i-th client of a service, with one of ten endpoints.
func remembered(f nft.Family, i int) kernel.Entry {
	return kernel.Entry{
		Key:     addrValue(f, i) + servicePrefix(f, 1, 6, 80),
		Data:    endpoint(f, 1000+i%10, 8080),
		Timeout: time.Hour,
	}
}

func rememberedBy(f nft.Family, from, to int) []kernel.Entry {
	var all []kernel.Entry
	for i := from; i < to; i++ {
		all = append(all, remembered(f, i))
	}
	return all
}

// unlessEndpoint refuses the entries with one of the endpoints.
func unlessEndpoint(f nft.Family, endpoints ...int) func(key, data nft.Value) bool {
	var gone []nft.Value
	for _, i := range endpoints {
		gone = append(gone, endpoint(f, 1000+i, 8080))
	}
	return func(_, data nft.Value) bool { return !slices.Contains(gone, data) }
}

// learnt is the contents of a dynamic map, without times.
func learnt(t *testing.T, c *kernel.Conn, f nft.Family, set *nft.Set) map[nft.Value]nft.Value {
	t.Helper()
	entries, err := c.Learned(table(f), set)
	must(t, err)
	all := map[nft.Value]nft.Value{}
	for _, e := range entries {
		// The kernel lists 0 for an entry whose time has run out since it looked whether to list it.
		if e.Expires < 0 || e.Expires > e.Timeout || e.Timeout == 0 {
			t.Errorf("entry %q expires in %v of %v", set.Key.Format(f, e.Key), e.Expires, e.Timeout)
		}
		all[e.Key] = e.Data
	}
	return all
}

// awaitLearnt waits until dumps have all entries of a dynamic map that was just filled.
// Dumps can leave some out while a worker of the kernel resizes the hash. The kernel
// does not say when the worker has finished. One complete dump may be from before the
// worker starts, so awaitLearnt waits for several.
func awaitLearnt(t *testing.T, c *kernel.Conn, f nft.Family, set *nft.Set, all int) {
	t.Helper()
	const row, patience = 10, time.Minute
	deadline := time.Now().Add(patience)
	for whole := 0; whole < row; {
		n := len(learnt(t, c, f, set))
		if whole++; n != all {
			whole = 0
		}
		if time.Now().After(deadline) {
			t.Fatalf("the last dump has %d entries of %d, still not %d in a row all after %v", n, all, row, patience)
		}
	}
}

func kept(entries []kernel.Entry, keep func(key, data nft.Value) bool) map[nft.Value]nft.Value {
	all := map[nft.Value]nft.Value{}
	for _, e := range entries {
		if keep(e.Key, e.Data) {
			all[e.Key] = e.Data
		}
	}
	return all
}

// withoutDestroy runs a test in both families, and once more as on a kernel that cannot
// destroy elements (before 6.3).
func withoutDestroy(t *testing.T, test func(t *testing.T, f nft.Family, open func(t *testing.T) *kernel.Conn)) {
	for _, hidden := range []bool{false, true} {
		for _, f := range nft.Families() {
			if testing.Short() && hidden == (f == nft.IPv4) {
				continue // each family once
			}
			t.Run(fmt.Sprintf("%s, without destroy %v", f, hidden), func(t *testing.T) {
				test(t, f, func(t *testing.T) *kernel.Conn {
					_, c := open(t)
					if hidden {
						c.HideDestroy()
					}
					return c
				})
			})
		}
	}
}

func TestSweep(t *testing.T) {
	withoutDestroy(t, func(t *testing.T, f nft.Family, open func(t *testing.T) *kernel.Conn) {
		c := open(t)
		p := everything()
		must(t, c.Apply(load(p)))
		set := p.Table(f).Set("affinity")
		entries := rememberedBy(f, 0, 5000)
		must(t, c.Remember(table(f), set, entries))
		all := func(key, data nft.Value) bool { return true }
		if diff := cmp.Diff(kept(entries, all), learnt(t, c, f, set)); diff != "" {
			t.Fatalf("remembered and read (-want +got):\n%s", diff)
		}
		for _, test := range []struct {
			keep func(key, data nft.Value) bool
			want int
		}{{all, 0}, {unlessEndpoint(f, 3, 7), 1000}, {unlessEndpoint(f, 3, 7), 0},
			{unlessEndpoint(f, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9), 4000}, {all, 0}} {
			_, swept, err := c.Sweep(t.Context(), table(f), set, test.keep)
			if err != nil || swept != test.want {
				t.Fatalf("swept %d, error %v, want %d", swept, err, test.want)
			}
			entries = slices.DeleteFunc(entries, func(e kernel.Entry) bool { return !test.keep(e.Key, e.Data) })
			if diff := cmp.Diff(kept(entries, all), learnt(t, c, f, set)); diff != "" {
				t.Errorf("entries after the sweep (-want +got):\n%s", diff)
			}
		}
		// All other elements have stayed.
		m, err := c.Read(p)
		must(t, err)
		if b, _ := nft.Adopt(m, p).Plan(p, timeZero); !b.Empty() {
			t.Errorf("after the sweep there is to be changed:\n%s", b)
		}
	})
}

// An entry disappears between the dump and its deletion. Sweep deletes the others all the
// same.
func TestSweepOfDeletedEntries(t *testing.T) {
	withoutDestroy(t, func(t *testing.T, f nft.Family, open func(t *testing.T) *kernel.Conn) {
		c := open(t)
		p := everything()
		must(t, c.Apply(load(p)))
		set := p.Table(f).Set("affinity")
		must(t, c.Remember(table(f), set, rememberedBy(f, 0, 1500)))
		// These are more entries than the kernel's queue has room for refusals.
		var goes []nft.OwnedElement
		for i := range 700 {
			goes = append(goes, owned("", nft.Element{Set: set.Name, Key: remembered(f, 2*i).Key}))
		}
		var once sync.Once
		_, _, err := c.Sweep(t.Context(), table(f), set, func(key, data nft.Value) bool {
			once.Do(func() {
				must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteElements{Table: table(f), Set: set, Elements: goes}}}))
			})
			return false
		})
		must(t, err)
		if left := learnt(t, c, f, set); len(left) > 0 {
			t.Errorf("%d entries are left", len(left))
		}
	})
}

// An entry expires between the dump and its deletion.
func TestSweepOfExpiringEntries(t *testing.T) {
	withoutDestroy(t, func(t *testing.T, f nft.Family, open func(t *testing.T) *kernel.Conn) {
		c := open(t)
		p := everything()
		must(t, c.Apply(load(p)))
		set := p.Table(f).Set("affinity")
		short, long := remembered(f, 1), remembered(f, 2)
		seen := false
		for short.Timeout = 20 * time.Millisecond; !seen; short.Timeout *= 2 { // until a dump has it
			must(t, c.Remember(table(f), set, []kernel.Entry{short, long}))
			_, _, err := c.Sweep(t.Context(), table(f), set, func(key, data nft.Value) bool {
				if key == short.Key {
					seen = true
					time.Sleep(2 * short.Timeout) // it expires by the clock alone, without an event
				}
				return false
			})
			must(t, err)
		}
		if left := learnt(t, c, f, set); len(left) > 0 {
			t.Errorf("entries left: %q", left)
		}
	})
}

func TestSweepOfNothing(t *testing.T) {
	withoutDestroy(t, func(t *testing.T, f nft.Family, open func(t *testing.T) *kernel.Conn) {
		c := open(t)
		p := everything()
		set := p.Table(f).Set("affinity")
		never := func(key, data nft.Value) bool { return false }
		nothing := func(what string) {
			t.Helper()
			if _, swept, err := c.Sweep(t.Context(), table(f), set, never); swept != 0 || err != nil {
				t.Errorf("%s: swept %d, error %v", what, swept, err)
			}
			if entries, err := c.Learned(table(f), set); len(entries) != 0 || err != nil {
				t.Errorf("%s: %d entries, error %v", what, len(entries), err)
			}
		}
		nothing("no table")
		must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: table(f)}}}))
		nothing("no map")
		must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.AddSet{Table: table(f), Set: set}}}))
		nothing("an empty map")

		// The table disappears between dump and deletion.
		must(t, c.Remember(table(f), set, rememberedBy(f, 0, 10)))
		var once sync.Once
		_, _, err := c.Sweep(t.Context(), table(f), set, func(key, data nft.Value) bool {
			once.Do(func() { must(t, c.DeleteTables(tableName)) })
			return false
		})
		must(t, err)

		if _, _, err := c.Sweep(t.Context(), table(f), p.Table(f).Set("endpoints"), never); err == nil {
			t.Error("a map of the program's own was swept")
		}
	})
}

// The end of the context ends a sweep at the next entry or batch, however large the map
// is. The Conn works as before.
func TestSweepIsCutShort(t *testing.T) {
	withoutDestroy(t, func(t *testing.T, f nft.Family, open func(t *testing.T) *kernel.Conn) {
		c := open(t)
		p := everything()
		must(t, c.Apply(load(p)))
		set := p.Table(f).Set("affinity")
		const all = 10_000 // some 30 datagrams
		must(t, c.Remember(table(f), set, rememberedBy(f, 0, all)))
		awaitLearnt(t, c, f, set, all)
		for _, enough := range []int{0, 1, all / 100, all - 1, all} {
			ctx, cancel := context.WithCancel(t.Context())
			judged := 0
			stop := func() {
				if judged == enough {
					cancel()
				}
			}
			stop()
			_, swept, err := c.Sweep(ctx, table(f), set, func(key, data nft.Value) bool {
				judged++
				stop()
				return false
			})
			if !errors.Is(err, context.Canceled) || judged != enough || swept != 0 {
				t.Errorf("after %d entries: judged %d, swept %d, error %v", enough, judged, swept, err)
			}
			cancel()
			if n := len(learnt(t, c, f, set)); n != all {
				t.Fatalf("after %d entries: %d are left of %d", enough, n, all)
			}
			must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.FlushChain{Table: table(f), Chain: "empty"}}}))
		}
		_, swept, err := c.Sweep(t.Context(), table(f), set, unlessEndpoint(f, 3))
		if err != nil || swept != all/10 {
			t.Errorf("the next one swept %d, error %v", swept, err)
		}
	})
}

// Sweep deletes nothing in a table that another process owns, and the error says what helps.
func TestSweepOfAForeignTable(t *testing.T) {
	ns, c := open(t)
	p := everything()
	must(t, c.Apply(load(p)))
	withOwnership(t, ns, c)
	set := p.IPv4.Set("affinity")
	must(t, c.Remember(table(nft.IPv4), set, rememberedBy(nft.IPv4, 0, 10)))
	other := openIn(t, ns)
	_, _, err := other.Sweep(t.Context(), table(nft.IPv4), set, func(key, data nft.Value) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("error is %v", err)
	}
	if n := len(learnt(t, c, nft.IPv4, set)); n != 10 {
		t.Errorf("%d entries are left of 10", n)
	}
}

// Other clients come in during a sweep, so that the kernel resizes its hash and a dump is
// no snapshot. Sweep deletes every entry that keep refuses all the same.
func TestSweepUnderAFlood(t *testing.T) {
	withoutDestroy(t, func(t *testing.T, f nft.Family, open func(t *testing.T) *kernel.Conn) {
		c := open(t)
		p := everything()
		must(t, c.Apply(load(p)))
		set := p.Table(f).Set("affinity")
		before, flood := 20_000, 30_000
		if testing.Short() {
			before, flood = 2_000, 3_000
		}
		must(t, c.Remember(table(f), set, rememberedBy(f, 0, before)))
		keep := unlessEndpoint(f, 3, 7)
		var flooding sync.WaitGroup
		flooding.Go(func() {
			admitted := slices.DeleteFunc(rememberedBy(f, before, before+flood), func(e kernel.Entry) bool {
				return !keep(e.Key, e.Data)
			})
			if err := c.Remember(table(f), set, admitted); err != nil {
				t.Error(err)
			}
		})
		_, swept, err := c.Sweep(t.Context(), table(f), set, keep)
		flooding.Wait()
		if err != nil || swept != before/5 {
			t.Errorf("swept %d, error %v", swept, err)
		}
		for key, data := range learnt(t, c, f, set) {
			if !keep(key, data) {
				t.Fatalf("%s is left", set.Key.Format(f, key))
			}
		}
	})
}

// Once a second the kernel collects expired entries, here tens of thousands. Meanwhile
// dumps leave out some of the others. No stale entry is left after several sweeps, as
// daemon/affinity makes them. Here they follow each other at once, so that most of them
// meet the collection.
func TestRowOfSweepsWhileEntriesExpire(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the kernel collects so many entries for seconds")
	}
	// A dump takes about as long as the time between two collections. Each dump misses a
	// few in a hundred of the entries that are left. So ten sweeps are enough.
	const row, all = 10, 110_000
	const f = nft.IPv4
	_, c := open(t)
	p := everything()
	must(t, c.Apply(load(p)))
	set, gone := p.Table(f).Set("affinity"), endpoint(f, 2000, 8080)
	entries, stale := rememberedBy(f, 0, all), 0
	for i := range entries {
		switch i % 20 {
		case 0:
			entries[i].Data = gone
			stale++
		case 1, 3, 5, 7, 9, 11, 13, 15:
			entries[i].Timeout = time.Duration(500+i%3000) * time.Millisecond // so that several collections have work
		}
	}
	must(t, c.Remember(table(f), set, entries))
	for len(learnt(t, c, f, set)) == all {
		// No entry has expired yet.
	}
	var found []int
	for len(found) < row && stale > 0 {
		_, swept, err := c.Sweep(t.Context(), table(f), set, func(_, data nft.Value) bool { return data != gone })
		must(t, err)
		found = append(found, swept)
		stale -= swept
	}
	t.Logf("stale entries found by each sweep: %v", found)
	if stale != 0 {
		t.Errorf("%d stale entries are left", stale)
	}
}

// After a restart the maps are recognised, and keep what they have learned.
func TestRestartKeepsWhatWasLearned(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	p := everything()
	must(t, c.Apply(load(p)))
	for _, f := range nft.Families() {
		must(t, c.Remember(table(f), p.Table(f).Set("affinity"), rememberedBy(f, 0, 100)))
	}
	must(t, c.Close())

	next := openIn(t, ns)
	must(t, own(next, p))
	m, err := next.Read(p)
	must(t, err)
	if b, _ := nft.Adopt(m, p).Plan(p, timeZero); !b.Empty() {
		t.Errorf("a restart with nothing changed writes:\n%s", b)
	}
	for _, f := range nft.Families() {
		set := p.Table(f).Set("affinity")
		if got := m.Table(table(f)).Sets[set.Name]; got.Set != set || len(got.Elements) > 0 {
			t.Errorf("map %s of table %s is read as %+v with %d elements", set.Name, f, got.Set, len(got.Elements))
		}
		if n := len(learnt(t, next, f, set)); n != 100 {
			t.Errorf("table %s: %d entries are left of 100", f, n)
		}
		listing, err := cmd.Run(ns, "", "list", "map", f.String(), tableName, set.Name)
		must(t, err)
		want := set.Key.Format(f, remembered(f, 7).Key) + " timeout 1h expires"
		if !strings.Contains(listing, want) {
			t.Errorf("nft prints no %q:\n%s", want, listing)
		}
	}
}
