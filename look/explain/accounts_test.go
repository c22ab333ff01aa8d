package explain

import (
	"regexp"
	"testing"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// TestAccounts: all names in the texts stand for facts.
func TestAccounts(t *testing.T) {
	x := &explainer{contents: &nft.Contents{}}
	facts := x.factsOf(&nft.Step{}, &nft.Way{})
	names := regexp.MustCompile(`{([^}]*)}`)
	check := func(p ruleset.Purpose, text string) {
		for _, name := range names.FindAllStringSubmatch(text, -1) {
			if facts[name[1]] == nil {
				t.Errorf("rules that %s: %q is no fact", p, name[1])
			}
		}
	}
	for p, a := range accounts() {
		if a.matched.says == "" {
			t.Errorf("rules that %s have no text", p)
		}
		check(p, a.matched.says+a.masquerades)
		for _, o := range a.otherwise {
			check(p, o.says)
		}
	}
}
