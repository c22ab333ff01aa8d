package ruleset_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// TestPurposes: every rule of every program has a purpose, and each purpose comes up.
func TestPurposes(t *testing.T) {
	seen := map[ruleset.Purpose]int{}
	const trials = 60
	seeds(t, trials, func(t *testing.T, rng *rand.Rand) {
		p := newTrial(t, rng, map[string]int{}).program
		for _, f := range nft.Families() {
			for name, c := range p.Table(f).Chains.All() {
				for i, r := range c.Rules {
					purpose := ruleset.PurposeOf(r)
					if purpose == ruleset.NoPurpose {
						t.Errorf("rule %d of chain %s has no purpose: %s", i+1, name, r.Text(f))
					}
					seen[purpose]++
				}
			}
		}
	})
	if len(seen) < 25 && !testing.Short() {
		t.Errorf("only %d purposes came up: %v", len(seen), seen)
	}
}

// TestNameInComment: comments name Services, also where they were cut.
func TestNameInComment(t *testing.T) {
	long := strings.Repeat("x", nft.MaxComment-3) + "..."
	for comment, want := range map[string]ruleset.ServiceName{
		"shop/cart:http":                    {Service: "shop/cart", Port: "http"},
		"shop/cart":                         {Service: "shop/cart"},
		"cluster IP also of shop/cart:http": {Service: "shop/cart", Port: "http", Shared: true},
		long:                                {Service: long, Cut: true},
		"":                                  {},
	} {
		if got := ruleset.NameInComment(comment); got != want {
			t.Errorf("%q: %+v, want %+v", comment, got, want)
		}
	}
}
