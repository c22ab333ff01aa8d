package main

import (
	"context"
	_ "embed"
)

// felixRules writes rules as Calico's Felix does: what it hooks where, in which order, with which verdicts and marks
// (felix/rules and a dump of Felix of August 2026, before 3.33). Without a checkout of Calico's
// repository these rows run all the same.
//
//go:embed felixrules.sh
var felixRules string

// counters returns what the rules of new connections have counted: how many packets there are of others differs.
func counters(plane string) func(context.Context, *world) (string, error) {
	script := `for f in ip ip6; do nft list table $f calico; done |
	awk '/^\tchain/ { chain = $2 } / counter packets / && !/established|ct status dnat/ { print chain ":" $0 }'`
	if plane == "iptables" {
		script = `for s in iptables-save ip6tables-save; do $s -c; done |
	grep -e '-A cali-[tf]w-' -e '-A cali-wl-to-host -j ACCEPT' -e '-A cali-POSTROUTING ' | grep -v -e ESTABLISHED -e icmp`
	}
	return func(ctx context.Context, w *world) (string, error) { return w.system.run(ctx, script) }
}

// agents enforce network policies by rules of the node.
func agents() []neighbour {
	one := func(name, what, plane, kind string, notes ...string) neighbour {
		run := func(do string) string { return "sh /tmp/felix.sh " + plane + " " + kind + " " + do }
		return neighbour{
			name: name, program: "Calico", what: what, packages: []string{"iptables", "nftables"},
			prepare: "cat >/tmp/felix.sh <<'SCRIPT'\n" + felixRules + "SCRIPT\n",
			events: []event{{nameStart, run("write")}, {"writes all rules anew", run("write")},
				{"changes a policy", run("change")}},
			stop: event{"stops", run("remove")}, notes: notes, record: counters(plane),
		}
	}
	return append(felixes(),
		one("calico-iptables", "rules of iptables as Felix has them: policies, natOutgoing",
			"iptables", "pods"),
		one("calico-host", "the same for a host endpoint, with rules of nftables: policies for the node's ports, preDNAT, "+
			"and doNotTrack for one of them", "nftables", "host",
			"doNotTrack for a Service's address or node port keeps its packets from being translated (read, not tried)."),
	)
}
