package ruleset_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// TestPurposes: every rule of every program has a purpose, and each purpose comes up. A foreign rule has none, at
// whatever place of a chain it stands.
func TestPurposes(t *testing.T) {
	seen := map[ruleset.Purpose]int{}
	foreign := []nft.Rule{
		{nft.MatchProto{Protocol: 17}, nft.Verdict{Code: nft.Drop}}, {nft.Verdict{Code: nft.Return}}, {nft.Unknown{}}, {},
		{nft.MatchLocal{Field: nft.Saddr}, nft.Masquerade{}}, {nft.Verdict{Code: nft.Accept}},
	}
	const trials = 60
	seeds(t, trials, func(t *testing.T, rng *rand.Rand) {
		p := newTrial(t, rng, map[string]int{}).program
		for _, f := range nft.Families() {
			for name, c := range p.Table(f).Chains.All() {
				for i, r := range c.Rules {
					purpose := ruleset.PurposeOf(c, i+1)
					if purpose == ruleset.NoPurpose {
						t.Errorf("rule %d of chain %s has no purpose: %s", i+1, name, r.Text(f))
					}
					seen[purpose]++
				}
				for _, r := range foreign {
					at := rng.IntN(len(c.Rules) + 1)
					changed := &nft.Chain{Name: c.Name, Hook: c.Hook, Rules: slices.Insert(slices.Clone(c.Rules), at, r)}
					if purpose := ruleset.PurposeOf(changed, at+1); purpose != ruleset.NoPurpose {
						t.Errorf("the foreign rule %q in chain %s has the purpose %q", r.Text(f), name, purpose)
					}
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
