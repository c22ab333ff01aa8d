package verify_test

import (
	"io"
	"testing"
	"time"

	"nftproxy/look/verify"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
	"nftproxy/test/gen"
)

// FuzzCompare: whatever tables others have left, they differ from the program just where
// the proxy would write, and the differences have words.
func FuzzCompare(f *testing.F) {
	for _, data := range gen.Seeds(20, 400) {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		rng := gen.Rand(data)
		cfg, _, _, b := gen.Cluster(rng)
		want := ruleset.Compile(cfg, b.Snapshot())
		m := gen.DamagedTables(rng, want, want)
		check.Bounded(t, 128<<20, func() {
			differences := verify.Compare(want, m)
			repair, _ := nft.Adopt(m, want).Plan(want, time.Unix(0, 0))
			if (differences.Len() == 0) != repair.Empty() {
				t.Errorf("%d differences, but the proxy would write:\n%s", differences.Len(), repair)
			}
			if n := differences.Lasting(differences).Len(); n != differences.Len() {
				t.Errorf("%d differences of %d are found again in the same tables", n, differences.Len())
			}
			report := differences.Report(1 << 10)
			if err := report.WriteText(io.Discard); err != nil {
				t.Error(err)
			}
		})
	})
}
