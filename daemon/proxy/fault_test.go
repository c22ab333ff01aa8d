package proxy_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netlinkfault"
)

// faultWindow is how long a loop runs in TestFaults: until idle chains have been deleted. After an
// error the tables are read, and what is idle in them stays for another IdleLife.
const faultWindow = 2*nft.IdleLife + 5*time.Second

// TestFaults: one answer of the kernel goes wrong, in each of many ways, at each kind of message: at
// the first, a middle and the last one of its kind in each transaction and among the requests. Soon
// afterwards the kernel has what a fresh compile gives, and no Service is left out but one that the
// kernel itself named.
func TestFaults(t *testing.T) {
	every := 7 // of those that are not the first of their sort
	switch {
	case os.Getenv("FAULTS") == "all":
		every = 1
	case testing.Short():
		every = 1000
	}
	r := newFaultRig(t)
	total, cases, worst, most := 0, 0, time.Duration(0), 0
	covered := map[string]map[string]int{}
	for _, c := range faultCases() {
		var places []netlinkfault.Place
		plain := r.run(t, &c, func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
			places = append(places, p)
			return netlinkfault.Fault{}, false
		})
		if plain.wrong != "" || plain.recovered > 0 {
			t.Fatalf("%s without a fault: recovered after %s, the kernel differs:\n%s", c.name, plain.recovered, plain.wrong)
		}
		for _, at := range netlinkfault.Choose(places) {
			for _, f := range netlinkfault.Faults(at) {
				if total++; total%every > 0 && covered[at.Message][f.String()] > 0 {
					continue
				}
				cases++
				hit := false
				run := r.run(t, &c, func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
					if p.Number != at.Number {
						return netlinkfault.Fault{}, false
					}
					hit = true
					return f, true
				})
				if !hit {
					t.Errorf("%s: %s at %s did not come", c.name, f, at)
				}
				what := fmt.Sprintf("%s, %s at message %d: %s", c.name, f, at.Number, at)
				run.check(t, what, mayBlame(f, at))
				if extra := len(run.syncs) - len(plain.syncs); extra > 4 {
					t.Errorf("%s: %d syncs more than without a fault", what, extra)
				} else {
					most = max(most, extra)
				}
				worst = max(worst, run.recovered)
				if covered[at.Message] == nil {
					covered[at.Message] = map[string]int{}
				}
				covered[at.Message][f.String()]++
			}
			if t.Failed() {
				t.FailNow() // Many more would follow.
			}
		}
	}
	for _, message := range slices.Sorted(maps.Keys(covered)) {
		n := 0
		for _, count := range covered[message] {
			n += count
		}
		t.Logf("%-16s %5d cases of %2d faults", message, n, len(covered[message]))
	}
	t.Logf("%d cases of %d; the slowest was right after %s, with at most %d syncs more than without a fault", cases, total,
		worst, most)
	for _, message := range []string{
		"add table", "delete table", "add chain", "delete chain", "add rule", "delete rule", "add set", "delete set",
		"add element", "delete element",
		netlinkfault.Begin, netlinkfault.End, "get generation", "get table", "dump rule", "dump chain", "dump set",
		"dump element",
	} {
		if covered[message] == nil {
			t.Errorf("no fault came at a message %q", message)
		}
	}
}

// check checks that the loop came through. blamed is how many parts the faults may have named.
func (run *faultRun) check(t *testing.T, what string, blamed int) {
	t.Helper()
	if run.wrong != "" {
		t.Errorf("%s: the kernel differs (-want +got):\n%s", what, run.wrong)
	}
	if len(run.leftOut) > blamed {
		t.Errorf("%s: %v were left out, and %d parts may be to blame", what, run.leftOut, blamed)
	}
	if n := len(run.syncs); n == 0 || run.syncs[n-1].Err != nil || len(run.syncs[n-1].Quarantined) > 0 {
		t.Errorf("%s: the last of %d syncs failed, or left parts out", what, n)
	}
	const soon = 3 * time.Second // a retry comes after one second
	if run.recovered > soon {
		t.Errorf("%s: it took %s", what, run.recovered)
	}
}

// mayBlame is how many parts the fault names: the one of the element that it is about.
func mayBlame(f netlinkfault.Fault, at netlinkfault.Place) int {
	blames := f.Errno == unix.EEXIST || f.Errno == unix.ENOENT || f.Errno == unix.EBUSY
	if f.Kind <= netlinkfault.RefuseUnlocated && blames && at.Elements() {
		return 1
	}
	return 0
}

// faultCases are the ways to a program: from nothing, by a change, after a restart with another
// configuration, and from a table that has to be replaced.
func faultCases() []faultCase {
	// One service has more endpoints later, so that there are new chains, and old ones become idle.
	rng := rand.New(rand.NewPCG(15, 3))
	node := gen.PlainNode()
	first, second := snapshots.NewBuilder(node), snapshots.NewBuilder(node)
	for i, s := range gen.Services(rng, &node) {
		if i < 6 {
			first.Set(s)
		}
		if i%4 > 0 {
			second.Set(gen.Mutated(rng, s))
		}
	}
	for i, endpoints := range []int{20, 3, 4} {
		first.Set(gen.UniformService(i, endpoints))
		second.Set(gen.UniformService(i, endpoints+9))
	}
	a, b := first.Snapshot(), second.Snapshot()
	counting := rulesetConfig()
	counting.Counters = true
	unowned := func(t *testing.T, r *faultRig) { r.addUnownedTables(t) }
	inForce := func(apply func(*testing.T, *faultRig, nft.Batch)) func(*testing.T, *faultRig) {
		return func(t *testing.T, r *faultRig) {
			load, _ := nft.State{}.Plan(ruleset.Compile(rulesetConfig(), a), time.Now())
			apply(t, r, load)
		}
	}
	byConn := func(t *testing.T, r *faultRig, b nft.Batch) {
		if err := r.conn.Apply(b); err != nil {
			t.Fatal(err)
		}
	}
	byNobody := func(t *testing.T, r *faultRig, b nft.Batch) { r.writeUnowned(t, b) }
	list := []faultCase{
		{name: "first load", wanted: &a},
		{name: "first load, unowned", wanted: &a, before: unowned},
		{name: "change", earlier: &a, wanted: &b},
		{name: "change, unowned", earlier: &a, wanted: &b, before: unowned},
		{name: "restart", wanted: &b, config: counting, before: inForce(byConn)},
		{name: "restart, unowned", wanted: &b, config: counting, before: inForce(byNobody)},
		{name: "other layout", wanted: &a, before: func(t *testing.T, r *faultRig) {
			id := nft.TableID{Family: nft.IPv4, Name: rulesetConfig().Table}
			byNobody(t, r, nft.Batch{Ops: []nft.Op{
				nft.AddTable{Table: id},
				nft.AddSet{Table: id, Set: &nft.Set{Name: "services", Key: nft.Fields{nft.Daddr}}},
			}})
		}},
	}
	for i := range list {
		list[i].faults = faultWindow
		if list[i].config.Table == "" {
			list[i].config = rulesetConfig()
		}
	}
	return list
}
