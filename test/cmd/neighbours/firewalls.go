package main

import (
	"fmt"
	"strings"
)

// The addresses of the cluster's pods and of the node's network, as package testnet has them.
const (
	pods4 = "10.244.0.0/16"
	pods6 = "fd00:244::/56"
)

// nftScripts are rule sets of nftables.service, which begin with "flush ruleset" and so remove what other programs have
// made.
func nftScripts() []neighbour {
	load := `nft -f /etc/nftables.conf`
	events := func(write string) []event {
		return []event{
			{nameStart, write + load},
			{"reloads", load},
			{"restarts", "nft flush ruleset\n" + load},
		}
	}
	stop := event{"stops", "nft flush ruleset"}
	closed := func(accept string) string {
		return fmt.Sprintf(`cat >/etc/nftables.conf <<'EOF'
flush ruleset
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		ct state vmap { established : accept, related : accept, invalid : drop }
		iif lo accept
		meta l4proto { icmp, ipv6-icmp } accept
		tcp dport 22 accept
		%s
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state vmap { established : accept, related : accept, invalid : drop }
		meta l4proto ipv6-icmp accept
		%s
	}
}
EOF
`, map[bool]string{true: "tcp dport 30000-32767 accept"}[accept != ""], accept)
	}
	accept := fmt.Sprintf("ip saddr %s accept\n\t\tip daddr %s accept\n\t\tip6 saddr %s accept\n\t\tip6 daddr %s accept",
		pods4, pods4, pods6, pods6)
	pkg, program := []string{"nftables"}, "nftables.service"
	return []neighbour{
		{name: "nftables-default", program: program, what: "Debian's own file: `flush ruleset`, empty chains", packages: pkg,
			events: events(""), stop: stop},
		{name: "nftables-drop", program: program, what: "`flush ruleset`, policy drop in input and forward", packages: pkg,
			events: events(closed("")), stop: stop},
		{name: "nftables-drop-set", program: program, what: "the same with rules for pods", packages: pkg,
			events: events(closed(accept)), stop: stop, unset: []string{"nftables-drop"},
			setting: "in `forward`: " + "`ip saddr PODS accept`, `ip daddr PODS accept`, the same with `ip6`; in `input`: the " +
				"ports of health checks"},
	}
}

// ufws are ufw's default rules, and those with ways for pods.
func ufws() []neighbour {
	with := func(set string) ([]event, event) {
		return []event{
			{nameStart, set + "ufw --force enable"},
			{"reloads", "ufw reload"},
			{"gets a rule", "ufw allow 8443/tcp"},
			{"restarts", "/usr/lib/ufw/ufw-init force-reload"},
		}, event{"stops", "ufw disable"}
	}
	one := func(name, what, setting, set string) neighbour {
		n := neighbour{name: name, program: "ufw", what: what, setting: setting, packages: []string{"ufw", "iptables"}}
		if n.events, n.stop = with(set); setting != "" {
			n.unset = []string{"ufw", "ufw-routed"}
		}
		return n
	}
	allow := fmt.Sprintf("ufw route allow from %s\nufw route allow to %s\nufw route allow from %s\nufw route allow to "+
		"%s\nufw allow 30000:32767/tcp\nufw allow 30000:32767/udp\n", pods4, pods4, pods6, pods6)
	return []neighbour{
		one("ufw", "as installed, enabled: incoming and routed packets denied", "", ""),
		one("ufw-routed", "`ufw default deny routed`", "", "ufw default deny routed\n"),
		one("ufw-set", "`ufw default deny routed`, with ways for pods", "`ufw route allow from PODS`, `ufw route allow to "+
			"PODS`, `ufw allow 30000:32767/tcp` (and udp)",
			"ufw default deny routed\n"+allow),
	}
}

// firewallds are firewalld's zone public with each of its backends, and with the pods in zone trusted.
func firewallds() []neighbour {
	const bus = "mkdir -p /run/dbus\ndbus-uuidgen --ensure\ndbus-daemon --system --fork\n"
	// While it reloads, firewalld drops all packets, in a table of its own or by policies.
	const settled = "while nft list ruleset | grep -q -e policy_drop -e 'policy drop'; do sleep 0.1; done"
	start := "firewalld\nuntil firewall-cmd --state; do sleep 0.1; done"
	end := "kill \"$(cat /run/firewalld.pid)\"\nwhile firewall-cmd --state; do sleep 0.1; done"
	one := func(name, what, setting, set string) neighbour {
		return neighbour{
			name: name, program: "firewalld", what: what, setting: setting, prepare: bus,
			packages: []string{"firewalld", "nftables", "iptables"},
			events: []event{
				{nameStart, set + start},
				{"reloads", "firewall-cmd --reload\n" + settled},
				{"reloads completely", "firewall-cmd --complete-reload\n" + settled},
				{"panics", "firewall-cmd --panic-on"},
				{"panics no longer", "firewall-cmd --panic-off"},
				{"restarts", end + "\n" + start},
			},
			stop: event{"stops", end},
		}
	}
	const iptables = "sed -i s/^FirewallBackend=.*/FirewallBackend=iptables/ /etc/firewalld/firewalld.conf\n"
	trusted := fmt.Sprintf("firewall-offline-cmd --zone=trusted --add-source=%s\nfirewall-offline-cmd --zone=trusted "+
		"--add-source=%s\nfirewall-offline-cmd --add-port=30000-32767/tcp\n", pods4, pods6)
	const setting = "`firewall-cmd --permanent --zone=trusted --add-source=PODS`, and the health check node ports"
	all := []neighbour{
		one("firewalld", "zone public, backend nftables", "", ""),
		one("firewalld-set", "backend nftables, pods in zone trusted", setting, trusted),
		one("firewalld-iptables", "zone public, backend iptables", "", iptables),
		one("firewalld-iptables-set", "backend iptables, pods in zone trusted", setting, iptables+trusted),
	}
	for i := range all {
		if unset, is := strings.CutSuffix(all[i].name, "-set"); is {
			all[i].unset = []string{unset}
		}
		all[i].drops = []string{"reloads", "reloads completely", "panics", "panics no longer", "restarts"}
		all[i].opens = "its rule for translated connections (`ct status dnat accept`) lets what a Service opens pass"
	}
	return all
}
