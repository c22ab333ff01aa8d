package ruleset_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// modelTables is a model of the kernel, as tables for a script.
type modelTables struct{ *nft.Model }

func (m modelTables) Read(*nft.Program) (*nft.Model, error) { return m.Model, nil }

func (m modelTables) Restart() error { return nil }

func (m modelTables) Apply(b nft.Batch) error { return strict.Apply(m.Model, b) }

// checkWays carries out the script in these ways, and returns what happened.
func checkWays(t *testing.T, rng *rand.Rand, script *check.Script, list []check.Way) (total check.Counts) {
	t.Helper()
	snapshot, config := script.Final()
	fresh := ruleset.Compile(*config, *snapshot)
	want := check.Text(fresh.Model(), fresh)
	served := ruleset.ReadBack(fresh.Model(), config.Table, snapshot.Node).String()
	for _, way := range list {
		m, program, counts, err := way.Run(rng, script, modelTables{nft.NewModel()})
		if err != nil {
			t.Fatalf("%s: %v", way.Name, err)
		}
		if got := check.Text(m, fresh); got != want {
			t.Fatalf("%s (-fresh +way):\n%s", way.Name, cmp.Diff(want, got))
		}
		if got := program.Model().String(); got != fresh.Model().String() {
			t.Fatalf("%s: another program (-fresh +way):\n%s", way.Name, cmp.Diff(fresh.Model().String(), got))
		}
		if got := ruleset.ReadBack(m, config.Table, snapshot.Node).String(); got != served {
			t.Fatalf("%s: read back (-fresh +way):\n%s", way.Name, cmp.Diff(served, got))
		}
		total.Syncs += counts.Syncs
		total.Transactions += counts.Transactions
		total.Reads += counts.Reads
		total.Restarts += counts.Restarts
		total.Errors += counts.Errors
	}
	return total
}

// TestWays: a script ends in the same tables in whatever way it is carried out, and they are
// those of a fresh compile.
func TestWays(t *testing.T) {
	var total check.Counts
	scripts := 0
	seeds(t, 32, func(t *testing.T, rng *rand.Rand) {
		script := check.NewScript(rng, 10+rng.IntN(30))
		counts := checkWays(t, rng, &script, check.Ways())
		scripts++
		total.Syncs += counts.Syncs
		total.Transactions += counts.Transactions
		total.Reads += counts.Reads
		total.Restarts += counts.Restarts
		total.Errors += counts.Errors
	})
	t.Logf("%d scripts in %d ways: %+v", scripts, len(check.Ways()), total)
	if least := scripts * 10; total.Restarts < least || total.Errors < least || total.Reads < total.Errors {
		t.Errorf("%+v: the ways differ too little", total)
	}
}

// FuzzWays lets the fuzzer choose a short script, two ways, and what happens on them. An
// input may take ten seconds.
func FuzzWays(f *testing.F) {
	for _, data := range gen.Seeds(4, 1000) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rng := gen.Rand(data)
		script := check.NewScript(rng, 1+rng.IntN(5))
		all := check.Ways()
		list := []check.Way{all[rng.IntN(len(all))], all[rng.IntN(len(all))]}
		if counts := checkWays(t, rng, &script, list); counts.Syncs == 0 {
			t.Error("nothing happened")
		}
	})
}
