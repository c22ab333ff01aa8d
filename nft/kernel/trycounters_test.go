package kernel_test

import (
	"testing"

	"nftproxy/test/nftcmd"
)

// TestTryCounters: this kernel can count, and a trial leaves nothing behind: no table, and no new
// generation of the ruleset.
func TestTryCounters(t *testing.T) {
	ns, c := open(t)
	before, err := c.Generation()
	must(t, err)
	for range 2 {
		must(t, c.TryCounters())
	}
	if after, err := c.Generation(); err != nil || after != before {
		t.Errorf("the trial raised the generation from %d to %d, err %v", before, after, err)
	}
	listing, err := nftcmd.ForTest(t).Ruleset(ns)
	must(t, err)
	if listing != "" {
		t.Errorf("the trial left behind:\n%s", listing)
	}
}
