package kernel_test

import (
	"testing"

	"nftproxy/test/nftcmd"
)

// TestTryCounters: this kernel can count, and the trial leaves nothing behind, also where it is
// made twice.
func TestTryCounters(t *testing.T) {
	ns, c := open(t)
	for range 2 {
		must(t, c.TryCounters())
	}
	listing, err := nftcmd.ForTest(t).Ruleset(ns)
	must(t, err)
	if listing != "" {
		t.Errorf("the trial left behind:\n%s", listing)
	}
}
