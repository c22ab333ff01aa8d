package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"nftproxy/daemon/otherproxy"
)

// chains looks for base chains of other programs that drop what they do not know. A packet has to
// pass the chains of all programs: a rule of nftproxy cannot accept it for the others.
func (o Options) chains() []Finding {
	const probe = "firewalls"
	conn, err := nftables.New()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	list, err := conn.ListChains()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	names := map[string]bool{} // of the chains without a hook, which tell the program
	for _, c := range list {
		names[c.Name] = true
	}
	var found []Finding
	for _, c := range list {
		if c.Policy == nil || *c.Policy != nftables.ChainPolicyDrop || c.Hooknum == nil {
			continue
		}
		table := fmt.Sprintf("%s %s", familyText(c.Table.Family), c.Table.Name)
		found = append(found, dropping(table, c.Name, hookText(*c.Hooknum), programOf(c.Table.Name, names)))
	}
	found = append(found, firewalldChains(list)...)
	legacy, err := otherproxy.DroppingLegacyChains()
	if err != nil {
		return append(found, failed(probe, err))
	}
	for _, c := range legacy {
		found = append(found, dropping(c.Table+" (iptables-legacy)", c.Chain, strings.ToLower(c.Chain), programOf(c.Table, names)))
	}
	if len(found) == 0 {
		return []Finding{green(probe, "no chain of another program has the policy drop")}
	}
	slices.SortFunc(found, byProbe)
	return found
}

// dropping is the finding of a base chain with policy drop.
func dropping(table, chain, hook, program string) Finding {
	what := "addresses of pods"
	if hook == "input" {
		what = "the ports of the kubelet, and health check node ports"
	}
	return yellow(fmt.Sprintf("firewalls: %s %s", table, chain), fmt.Sprintf("chain %s in table %s%s drops packets on the hook %s unless a rule accepts them", chain, table, program, hook),
		fmt.Sprintf("add a rule there that accepts %s, if there is none: translated packets have to pass it", what))
}

// firewalldChains finds firewalld, whose chains have the policy accept and end in a rejection.
func firewalldChains(list []*nftables.Chain) []Finding {
	var found []Finding
	for _, c := range list {
		if c.Table.Name == "firewalld" && c.Hooknum != nil && *c.Hooknum == *nftables.ChainHookForward {
			found = append(found, yellow("firewalls: firewalld", fmt.Sprintf("chain %s in table %s firewalld rejects what no zone accepts", c.Name, familyText(c.Table.Family)),
				"put the pods' CIDR and interfaces into the zone trusted: firewall-cmd --permanent --zone=trusted --add-source=CIDR"))
		}
	}
	return found
}

// programOf guesses the program that made a chain of iptables.
func programOf(table string, names map[string]bool) string {
	switch {
	case strings.HasSuffix(table, "firewalld"):
		return " (firewalld)"
	case names["ufw-before-forward"]:
		return " (ufw)"
	case names["DOCKER-USER"], names["DOCKER"]:
		return " (Docker)"
	}
	return ""
}

func familyText(f nftables.TableFamily) string {
	text, known := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
		nftables.TableFamilyBridge: "bridge", nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev",
	}[f]
	if !known {
		return fmt.Sprint(f)
	}
	return text
}

func hookText(h nftables.ChainHook) string {
	names := []string{"prerouting", "input", "forward", "output", "postrouting"}
	if int(h) < len(names) {
		return names[h]
	}
	return fmt.Sprint(h)
}
