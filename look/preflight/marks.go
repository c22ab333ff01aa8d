package preflight

import (
	"fmt"
	"slices"
	"strings"

	"nftproxy/look/basechain"
	"nftproxy/nft/ruleset"
)

// marks looks for chains of other programs that mark connections by the address of a Service, where they should go by
// the endpoint's. A chain of type nat is meant: it sees the first packet of a connection only, and none that nftproxy
// has translated before, so that its marks depend on the order. Chains of other types see all packets, at a time that
// every service proxy leaves to them.
func (o Options) marks(all baseChains) []Finding {
	const probe = "marks"
	list, err := all()
	if err != nil {
		return []Finding{failed(probe, err)}
	}
	var found []Finding
	for i := range list {
		c := &list[i]
		if c.Type == "nat" && c.Rules.MarksConnections && (c.Legacy || c.Table != o.Table) &&
			c.ViewOf(ruleset.PriorityDstnat) != basechain.Later {
			found = append(found, o.marking(c))
		}
	}
	if len(found) == 0 {
		return []Finding{green(probe, "no chain of another program marks connections before their addresses are translated")}
	}
	slices.SortFunc(found, byProbe)
	return found
}

// marking is the finding of a nat chain that may come before ours and marks connections.
func (o Options) marking(c *basechain.Chain) Finding {
	when := "before nftproxy's"
	if c.ViewOf(ruleset.PriorityDstnat) == basechain.Unknown {
		when = "before nftproxy's if it was made later, since both have the priority " + fmt.Sprint(c.Priority)
	}
	services := "the cluster's range of Service addresses"
	if len(o.ServiceCIDRs) > 0 {
		var ranges []string
		for _, r := range o.ServiceCIDRs {
			ranges = append(ranges, r.String())
		}
		services = strings.Join(ranges, " and ")
	}
	return yellow(fmt.Sprintf("marks: %s %s", c.TableText(), c.Name),
		fmt.Sprintf("chain %s in table %s marks connections, and is called %s: it then goes by the address of a Service, "+
			"not by the endpoint's, and packets that are routed by the mark may take a wrong way",
			c.Name, c.TableText(), when),
		fmt.Sprintf("have its program leave out %s, or give the chain a priority above %d. The Amazon VPC CNI does the "+
			"first with AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS, and the second from version 1.23 on, where iptables is iptables-nft",
			services, ruleset.PriorityDstnat))
}
