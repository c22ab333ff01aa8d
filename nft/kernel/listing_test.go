package kernel_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// ownerMarks match what a listing shows about a table's owner: the flags that nft knows, a
// comment with the owner, and our own comment.
var ownerMarks = regexp.MustCompile(`(?m)^\tcomment [^\n]*\n\n?|^\tflags [^\n]*\n\n?| # progname [^\n]*`)

func ruleset(t *testing.T, cmd netfilter.NFT, ns *testnet.Namespace) string {
	t.Helper()
	s, err := cmd.Ruleset(ns)
	must(t, err)
	return ownerMarks.ReplaceAllString(s, "")
}

// parsesOriginalPorts says whether nft parses "ct original proto-dst" in a
// concatenation: 1.0.6 does not, 1.1 and newer do.
func parsesOriginalPorts(t *testing.T, cmd netfilter.NFT) bool {
	t.Helper()
	ns := testnet.NamespaceForTest(t, "probe")
	version, err := cmd.Run(ns, "", "--version")
	must(t, err)
	var major, minor int
	if _, err := fmt.Sscanf(version, "nftables v%d.%d", &major, &minor); err != nil {
		t.Fatalf("version of nft: %q: %v", version, err)
	}
	err = cmd.Load(ns, "table ip t { set s { typeof meta l4proto . th dport; }; chain c { meta l4proto . ct original "+
		"proto-dst @s; }; }")
	if err != nil && (major > 1 || major == 1 && minor >= 1) {
		t.Errorf("%s no longer parses original ports: %v", strings.TrimSpace(version), err)
	}
	return err == nil
}

// A table that Apply wrote has the same listing as one that nft -f made of the program's
// text. nft accepts the listing.
func TestListing(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	batch := load(parsable(t, cmd))
	ns, c := open(t)
	must(t, c.Apply(batch))
	got := ruleset(t, cmd, ns)

	model := nft.NewModel()
	must(t, strict.Apply(model, batch))
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

// The same for each statement alone, so that a failure names the statement.
func TestListingOfEachRule(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: the tests of whole tables compare the same rules")
	}
	cmd := netfilter.NFTForTest(t)
	learns := parsesOriginalPorts(t, cmd)
	for _, f := range nft.Families() {
		t.Run(f.String(), func(t *testing.T) {
			ns, c := open(t)
			other := testnet.NamespaceForTest(t, "text")
			for _, chain := range append(chains(f), learning(learns)...) {
				for _, rule := range chain.Rules {
					p := parsable(t, cmd)
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

// Every nft prints the rules that nft 1.0.6 does not parse in the text that the program has
// for them.
func TestListingOfLearning(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	must(t, c.Apply(load(everything())))
	for _, f := range nft.Families() {
		for _, chain := range learning(true) {
			listing, err := cmd.Run(ns, "", "list", "chain", f.String(), tableName, chain.Name)
			must(t, err)
			var want, got []string
			for _, r := range chain.Rules {
				want = append(want, "\t\t"+r.Text(f))
			}
			for line := range strings.Lines(listing) {
				if strings.HasPrefix(line, "\t\t") && !strings.HasPrefix(line, "\t\ttype nat hook") {
					got = append(got, strings.TrimSuffix(line, "\n"))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s chain %s, as text and as nft prints it (-want +got):\n%s", f, chain.Name, diff)
			}
		}
	}
}
