package kernel_test

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/internal/nftcmd"
	"nftproxy/internal/testnet"
	"nftproxy/nft"
)

// ownerMarks are what a listing shows of who owns a table: nft 1.0.6 prints the
// flags that it knows, and the owner as a comment.
var ownerMarks = regexp.MustCompile(`(?m)^\tflags [^\n]*\n\n?| # progname [^\n]*`)

func ruleset(t *testing.T, cmd nftcmd.Command, ns *testnet.Namespace) string {
	t.Helper()
	s, err := cmd.Ruleset(ns)
	must(t, err)
	return ownerMarks.ReplaceAllString(s, "")
}

// What Apply writes has to list as the same program's text does after nft -f,
// and the listing has to be accepted back.
func TestListing(t *testing.T) {
	cmd := nftcmd.ForTest(t)
	batch := load(everything())
	ns, c := open(t)
	must(t, c.Apply(batch))
	got := ruleset(t, cmd, ns)

	model := nft.NewModel()
	must(t, model.Apply(batch))
	for _, text := range []struct{ name, script string }{
		{"batch", batch.String()},
		{"program", model.String()},
		{"own listing", got},
	} {
		t.Run(text.name, func(t *testing.T) {
			other := testnet.NamespaceForTest(t, "text")
			must(t, cmd.Load(other, text.script))
			if diff := cmp.Diff(ruleset(t, cmd, other), got); diff != "" {
				t.Errorf("listing after nft -f and after Apply (-want +got):\n%s", diff)
			}
		})
	}
}

// Each statement also alone, so that a difference names it.
func TestListingOfEachRule(t *testing.T) {
	cmd := nftcmd.ForTest(t)
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			ns, c := open(t)
			other := testnet.NamespaceForTest(t, "text")
			for _, chain := range chains(f) {
				for _, rule := range chain.Rules {
					p := everything()
					only := &nft.Chain{Name: chain.Name, Hook: chain.Hook, Rules: []nft.Rule{rule}}
					p.Table(f).Chains = p.Table(f).Chains.Set(chain.Name, only)
					batch := load(p)
					must(t, c.Apply(batch))
					must(t, cmd.Load(other, batch.String()))
					args := []string{"list", "chain", f.String(), tableName, chain.Name}
					want, err := cmd.Run(other, "", args...)
					must(t, err)
					got, err := cmd.Run(ns, "", args...)
					must(t, err)
					if diff := cmp.Diff(ownerMarks.ReplaceAllString(want, ""), ownerMarks.ReplaceAllString(got, "")); diff != "" {
						t.Errorf("rule %q after nft -f and after Apply (-want +got):\n%s", rule.Text(f), diff)
					}
					must(t, c.DeleteTables(tableName))
					_, err = cmd.Run(other, "", "flush", "ruleset")
					must(t, err)
				}
			}
		})
	}
}
