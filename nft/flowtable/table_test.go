package flowtable_test

import (
	"strings"
	"testing"

	"nftproxy/nft/flowtable"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// TestTable: the table is made once, and made anew when its rules are others, or other ones by their number alone.
func TestTable(t *testing.T) {
	ns, cmd := testnet.NamespaceForTest(t, "flows"), netfilter.NFTForTest(t)
	const name = "nftproxy-flows"
	nft := func(args ...string) string {
		t.Helper()
		text, err := cmd.Run(ns, "", args...)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	keep := func(what string, label uint8, group uint16, want bool) {
		t.Helper()
		if made, err := flowtable.Keep("nftproxy", label, group, ns.Fd()); err != nil || made != want {
			t.Errorf("%s: made %v, %v, want %v", what, made, err, want)
		}
	}
	nft("add", "table", "inet", "other")
	nft("add", "chain", "inet", "other", "prerouting")
	keep("at first", 111, 28000, true)
	keep("again", 111, 28000, false)
	if text := nft("list", "table", "inet", name); strings.Count(text, "limit rate 1000/second") != 2 ||
		strings.Count(text, "group 28000 snaplen 128") != 4 {
		t.Errorf("nft lists\n%s", text)
	}
	keep("another label", 110, 28000, true)
	keep("another group", 110, 28001, true)
	nft("add", "rule", "inet", name, "output", "accept")
	keep("one rule more", 110, 28001, true)
	nft("flush", "chain", "inet", name, "output")
	for range 4 {
		nft("add", "rule", "inet", name, "output", "accept")
	}
	keep("as many other rules", 110, 28001, true)
	nft("delete", "table", "inet", name)
	keep("deleted", 110, 28001, true)
	nft("add", "rule", "inet", name, "output", "drop")
	if err := flowtable.Replace("nftproxy", 110, 28001, ns.Fd()); err != nil {
		t.Fatal(err)
	}
	keep("replaced", 110, 28001, false)
	for _, want := range []bool{true, false} {
		if removed, err := flowtable.Remove("nftproxy", ns.Fd()); err != nil || removed != want {
			t.Errorf("removed %v, %v, want %v", removed, err, want)
		}
	}
	if text := nft("list", "ruleset"); strings.Contains(text, name) || !strings.Contains(text, "table inet other") {
		t.Errorf("nft lists\n%s", text)
	}
}
