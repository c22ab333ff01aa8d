package proxy_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/snapshots"
	"nftproxy/test/gen"
	"nftproxy/test/lib/netlinkfault"
)

// TestRandomFaults: random clusters change while random answers of the kernel go wrong, few or many,
// for some twenty seconds of the loop's clock. When the faults have ended, the kernel has what a
// fresh compile gives and no Service is left out. In every other run no fault blames an element or the
// kernel's memory. Then no Service is left out meanwhile either.
//
// SEED is the first run's, and FAULT_TIME how long the test goes on.
func TestRandomFaults(t *testing.T) {
	seed, end, least := uint64(1), time.Now(), 12
	if testing.Short() {
		least = 4
	}
	if text := os.Getenv("SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	if text := os.Getenv("FAULT_TIME"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatal(err)
		}
		end = end.Add(d)
	}
	r := newFaultRig(t)
	runs, faults, failed, longest := 0, 0, 0, time.Duration(0)
	for ; runs < least || time.Now().Before(end); runs++ {
		c, decide, injected := randomCase(seed + uint64(runs))
		run := r.run(t, c, decide)
		if n := len(run.syncs); run.wrong != "" || n == 0 || run.syncs[n-1].Err != nil ||
			len(run.syncs[n-1].Quarantined) > 0 {
			t.Errorf("SEED=%d: %d faults; the last of %d syncs failed, left parts out, or the kernel differs (-want +got):\n%s",
				seed+uint64(runs), *injected, n, run.wrong)
		}
		if c.name == "innocent" && len(run.leftOut) > 0 {
			t.Errorf("SEED=%d: %v were left out, and no fault blamed a part", seed+uint64(runs), run.leftOut)
		}
		faults += *injected
		longest = max(longest, run.recovered)
		for _, s := range run.syncs {
			if s.Err != nil {
				failed++
			}
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("seeds %d to %d: %d faults, %d syncs failed; right again %s after the begin of the faults at the latest", seed,
		seed+uint64(runs)-1, faults, failed, longest)
}

// randomCase is a cluster with changes, the function that chooses the faults, and their number.
func randomCase(seed uint64) (*faultCase, func(netlinkfault.Place) (netlinkfault.Fault, bool), *int) {
	rng := rand.New(rand.NewPCG(seed, 15))
	config, _ := gen.Config(rng)
	config.Table = rulesetConfig().Table
	config.Counters = rng.IntN(2) == 0 && !config.Uncounted
	node := gen.Node(rng)
	b := snapshots.NewBuilder(node)
	list := gen.Services(rng, &node)
	for _, s := range list {
		b.Set(s)
	}
	first := b.Snapshot()
	c := &faultCase{name: "any", wanted: &first, config: config, faults: 20 * time.Second, settle: 15 * time.Minute}
	for range 1 + rng.IntN(6) {
		for range 1 + rng.IntN(3) {
			switch s := list[rng.IntN(len(list))]; rng.IntN(4) {
			case 0:
				b.Delete(s.Name)
			default:
				b.Set(gen.Mutated(rng, s))
			}
		}
		c.changes = append(c.changes, b.Snapshot())
	}
	if rng.IntN(2) == 0 {
		c.before = func(t *testing.T, r *faultRig) { r.addUnownedTables(t) }
	}
	if rng.IntN(2) == 0 {
		c.earlier = &first
	}
	if seed%2 == 0 {
		c.name = "innocent"
	}
	oneIn := []int{2000, 300, 40}[rng.IntN(3)]
	injected := new(int)
	return c, func(p netlinkfault.Place) (netlinkfault.Fault, bool) {
		if rng.IntN(oneIn) > 0 {
			return netlinkfault.Fault{}, false
		}
		all := netlinkfault.Faults(p)
		f := all[rng.IntN(len(all))]
		if c.name == "innocent" && blames(f) {
			return netlinkfault.Fault{}, false
		}
		*injected++
		return f, true
	}, injected
}

// blames says that the fault is an errno which may be the fault of an element, or of the size of a
// batch. An unread answer is none.
func blames(f netlinkfault.Fault) bool {
	blaming := []unix.Errno{unix.EEXIST, unix.ENOENT, unix.EBUSY, unix.ENOMEM, unix.ENOBUFS}
	return f.Kind <= netlinkfault.Unsent && f.Kind != netlinkfault.RefuseSilently && slices.Contains(blaming, f.Errno)
}
