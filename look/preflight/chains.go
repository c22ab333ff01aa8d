package preflight

import (
	"fmt"
	"slices"
	"strings"

	"nftproxy/look/basechain"
)

// chains looks for base chains of other programs that drop what they do not know. A packet has to
// pass the chains of all programs: a rule of nftproxy cannot accept it for the others.
func (o Options) chains(all baseChains) []Finding {
	const probe = "firewalls"
	list, err := all()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	var found []Finding
	for i := range list {
		c := &list[i]
		hook := c.Hook == "input" || c.Hook == "forward"
		switch {
		case c.Legacy && c.Table != "filter", c.Type == "nat", c.Table == o.Table:
		case c.Program == "firewalld" && c.EndsClosed && hook:
			found = append(found, zones(c))
		case c.PolicyDrop, c.EndsClosed && hook:
			found = append(found, dropping(c))
		case strings.HasPrefix(c.Table, "wg-quick-") && c.Hook == "prerouting" && c.Rules.Drops:
			found = append(found, tunnel(c))
		}
	}
	if len(found) == 0 {
		return []Finding{green(probe, "no chain of another program has the policy drop")}
	}
	slices.SortFunc(found, byProbe)
	return found
}

// zones is the finding of a chain of firewalld. Its chains have the policy accept and end in a rejection.
func zones(c *basechain.Chain) Finding {
	do := "put the pods' CIDR and interfaces into the zone trusted: firewall-cmd --permanent --zone=trusted " +
		"--add-source=CIDR"
	if c.Hook == "input" {
		do = "open the ports of the kubelet, and health check node ports: firewall-cmd --permanent --add-port=10250/tcp " +
			"--add-port=30000-32767/tcp"
	}
	return yellow(fmt.Sprintf("firewalls: firewalld %s %s", c.TableText(), c.Name),
		fmt.Sprintf("chain %s in table %s rejects what no zone accepts on the hook %s", c.Name, c.TableText(), c.Hook), do)
}

// tunnel is the finding of the chain that wg-quick makes where all packets go through the tunnel. For each address of
// the tunnel it drops packets from other interfaces, even from the node itself, whose source is no address of the node.
// The node's own connections to other networks come from that address, and a reset of them from the address of a
// Service.
func tunnel(c *basechain.Chain) Finding {
	return yellow(fmt.Sprintf("firewalls: %s %s", c.TableText(), c.Name),
		fmt.Sprintf("chain %s in table %s (wg-quick) drops resets from Services to the node itself: its TCP connections to "+
			"Services without endpoints, and to unknown ports, time out in place of being refused", c.Name, c.TableText()),
		fmt.Sprintf("add a rule there, if there is none, in wg-quick's file: PostUp = nft insert rule %s wg-quick-%%i %s "+
			"iifname lo accept", c.Family, c.Name))
}

// dropping is the finding of a base chain that drops what no rule accepts.
func dropping(c *basechain.Chain) Finding {
	what := "addresses of pods"
	if c.Hook == "input" {
		what = "the ports of the kubelet, and health check node ports"
	}
	program := ""
	if c.Program != "" {
		program = " (" + c.Program + ")"
	}
	return yellow(fmt.Sprintf("firewalls: %s %s", c.TableText(), c.Name),
		fmt.Sprintf("chain %s in table %s%s drops packets on the hook %s unless a rule accepts them", c.Name, c.TableText(),
			program, c.Hook),
		fmt.Sprintf("add a rule there that accepts %s, if there is none: translated packets have to pass it", what))
}
