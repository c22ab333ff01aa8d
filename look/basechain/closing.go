package basechain

import (
	"fmt"
	"slices"

	"nftproxy/nft"
	"nftproxy/nft/invalidtable"
)

// Closing returns the base chains on the hooks input, forward and output that drop packets of IP, be it by their policy
// or by a rule. It leaves out tables of kube-proxy, and those of ours. What kube-proxy's chains and the kubelet's drop
// does not count.
func Closing(ours []nft.TableID) ([]Chain, error) {
	all, err := List()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(c Chain) bool {
		own := slices.ContainsFunc(ours, func(id nft.TableID) bool {
			return id.Family.String() == c.Family && id.Name == c.Table || c.DropsInvalid(id.Name)
		})
		return own || c.Table == "kube-proxy" || !c.Closes ||
			!slices.Contains([]string{"input", "forward", "output"}, c.Hook) ||
			!slices.Contains([]string{"ip", "ip6", "inet"}, c.Family)
	}), nil
}

// DropsInvalid says whether the chain drops only packets that belong to no connection, for the nftproxy whose tables
// have that name.
func (c *Chain) DropsInvalid(table string) bool {
	return c.Family == "inet" && c.Table == invalidtable.Name(table)
}

// ClosesText says how a chain that Closing has returned keeps packets out, for people.
func (c *Chain) ClosesText() string {
	by := "has a rule that drops or rejects packets"
	if c.PolicyDrop {
		by = "has policy drop"
	}
	program := ""
	if c.Program != "" && c.Program != "kube-proxy" {
		program = ", " + c.Program
	}
	return fmt.Sprintf("chain %s (table %s%s) %s", c.Name, c.TableText(), program, by)
}
