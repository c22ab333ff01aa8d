package preflight

import (
	"fmt"
	"slices"

	"nftproxy/look/basechain"
)

// chains looks for base chains of other programs that drop what they do not know. A packet has to
// pass the chains of all programs: a rule of nftproxy cannot accept it for the others.
func (o Options) chains() []Finding {
	const probe = "firewalls"
	list, err := basechain.List()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	var found []Finding
	for i := range list {
		c := &list[i]
		switch {
		case c.PolicyDrop && (!c.Legacy || c.Table == "filter"):
			found = append(found, dropping(c))
		case c.Table == "firewalld" && c.Hook == "forward":
			// Its chains have the policy accept and end in a rejection.
			found = append(found, yellow("firewalls: firewalld", fmt.Sprintf("chain %s in table %s rejects what no zone accepts", c.Name, c.TableText()),
				"put the pods' CIDR and interfaces into the zone trusted: firewall-cmd --permanent --zone=trusted --add-source=CIDR"))
		}
	}
	if len(found) == 0 {
		return []Finding{green(probe, "no chain of another program has the policy drop")}
	}
	slices.SortFunc(found, byProbe)
	return found
}

// dropping is the finding of a base chain with policy drop.
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
		fmt.Sprintf("chain %s in table %s%s drops packets on the hook %s unless a rule accepts them", c.Name, c.TableText(), program, c.Hook),
		fmt.Sprintf("add a rule there that accepts %s, if there is none: translated packets have to pass it", what))
}
