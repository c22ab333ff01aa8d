// Package basechain lists the base chains of all programs on the node: at which hook packets meet
// each one, and what it may do to them. A packet has to pass the chains of all programs.
//
// It reads nftables of all families and the tables of iptables-legacy. It evaluates no rule: it says
// what a chain may do, not what it does to a packet. It changes nothing. It works in the network
// namespace of the calling thread.
package basechain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"nftproxy/nft"
	"nftproxy/node/otherproxy"
)

// Chain is a base chain.
type Chain struct {
	// Family is ip, ip6, inet, bridge, netdev or arp.
	Family string `json:"family"`
	Table  string `json:"table"`
	Name   string `json:"chain"`
	// Hook is prerouting, input, forward, output, postrouting, ingress or egress.
	Hook string `json:"hook"`
	// Type is filter, nat or route. Chains of iptables-legacy have the name of their table.
	Type string `json:"type"`
	// Priority orders the chains of a hook, the lowest first.
	Priority int32 `json:"priority"`
	// Legacy says that the chain is iptables-legacy's.
	Legacy bool `json:"legacy"`
	// Program is the program that made the chain, as far as names tell it; empty if they do not.
	Program string `json:"program"`
	// PolicyDrop says that the chain drops what no rule accepts.
	PolicyDrop bool `json:"policyDrop"`
	// EndsClosed says that the last rule drops or rejects every packet that comes to it, which is a policy in another
	// form.
	EndsClosed bool `json:"-"`
	// Rules is what the rules may do, and those of chains to which they lead.
	Rules otherproxy.Effects `json:"rules"`
	// Closes says that the policy, or a rule that is neither kube-proxy's nor the kubelet's, drops packets or queues them.
	Closes bool `json:"-"`
}

// TableText is the table as a person names it, such as "ip filter (iptables-legacy)".
func (c *Chain) TableText() string {
	text := c.Family + " " + c.Table
	if c.Legacy {
		text += " (iptables-legacy)"
	}
	return text
}

// Harmless says that the chain drops no packet and changes none, but for marks.
func (c *Chain) Harmless() bool {
	return !c.PolicyDrop && !c.Rules.Drops && !c.Rules.Queues && !c.Rules.Translates && !c.Rules.Untracks
}

// List returns the base chains. Of a chain that leads to very many chains it says that it may do everything, but for
// marks: it tells those that it has found. It needs CAP_NET_ADMIN.
func List() ([]Chain, error) { return list(func(*Chain) bool { return true }) }

// list returns the base chains that are wanted. It reads the rules of these only, but for chains of iptables-legacy.
func list(wanted func(*Chain) bool) ([]Chain, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	all, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	names := map[string]bool{}
	for _, c := range all {
		names[c.Name] = true
	}
	var list []Chain
	for _, c := range all {
		if c.Hooknum == nil || c.Priority == nil {
			continue
		}
		chain := Chain{
			Family: nft.FamilyText(uint8(c.Table.Family)), Table: c.Table.Name, Name: c.Name,
			Hook: nft.HookText(uint8(c.Table.Family), uint32(*c.Hooknum)),
			Type: string(c.Type), Priority: int32(*c.Priority), Program: programOf(c.Table.Name, names),
			PolicyDrop: c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop,
		}
		if !wanted(&chain) {
			continue
		}
		if chain.Rules, chain.Closes, chain.EndsClosed, err = effectsOf(conn, c); err != nil {
			return nil, fmt.Errorf("read the rules of chain %s in table %s: %w", c.Name, chain.TableText(), err)
		}
		chain.Closes = chain.Closes || chain.PolicyDrop
		list = append(list, chain)
	}
	legacy, err := legacyChains(names)
	if err != nil {
		return nil, err
	}
	list = append(list, slices.DeleteFunc(legacy, func(c Chain) bool { return !wanted(&c) })...)
	slices.SortStableFunc(list, func(a, b Chain) int {
		return cmp.Or(cmp.Compare(a.Hook, b.Hook), cmp.Compare(a.Priority, b.Priority),
			cmp.Compare(a.TableText(), b.TableText()), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}

// legacyChains returns the chains of iptables-legacy. A table exists once a program has asked for it, so
// most have no rules.
func legacyChains(names map[string]bool) ([]Chain, error) {
	found, err := otherproxy.LegacyChains()
	if err != nil {
		return nil, err
	}
	for _, c := range found {
		for _, name := range c.Reaches {
			names[name] = true
		}
	}
	var list []Chain
	for _, c := range found {
		family, table, _ := strings.Cut(c.Table, " ")
		list = append(list, Chain{
			Family: family, Table: table, Name: c.Chain, Hook: strings.ToLower(c.Chain), Type: table,
			Priority: legacyPriority(table, c.Chain), Legacy: true,
			Program: programOf(table, names), PolicyDrop: c.PolicyDrop, Rules: c.Rules,
			Closes: c.PolicyDrop || c.Closes, EndsClosed: c.EndsClosed,
		})
	}
	return list, nil
}

// legacyPriority returns the priority of a chain of iptables-legacy (uapi/linux/netfilter_ipv4.h).
func legacyPriority(table, chain string) int32 {
	switch table {
	case "raw":
		return -300
	case "mangle":
		return -150
	case "security":
		return 50
	case "nat":
		if chain == "PREROUTING" || chain == "OUTPUT" {
			return -100
		}
		return 100
	}
	return 0
}

// programOf guesses the program that made a chain, by its table and the names of other chains.
func programOf(table string, names map[string]bool) string {
	switch {
	case strings.HasSuffix(table, "firewalld"):
		return "firewalld"
	case table == "kube-proxy":
		return "kube-proxy"
	case table != "filter" && table != "nat":
	case names["FORWARD_direct"] && names["INPUT_direct"]:
		return "firewalld"
	case names["ufw-before-forward"]:
		return "ufw"
	case names["KUBE-SERVICES"] && names["KUBE-POSTROUTING"]:
		return "kube-proxy"
	case names["DOCKER-USER"], names["DOCKER"]:
		return "Docker"
	}
	return ""
}

// OthersTranslate says whether a program other than the one that has the tables of that name may
// change destinations: by a rule in a chain of type nat that packets meet before they are routed. The
// tables of kube-proxy's nftables mode do not count. The chains of iptables do, whoever has rules there.
func OthersTranslate(table string) (bool, error) {
	others, err := list(func(c *Chain) bool {
		return c.Type == "nat" && (c.Hook == "prerouting" || c.Hook == "output") &&
			(c.Legacy || c.Table != table && c.Table != "kube-proxy")
	})
	return slices.ContainsFunc(others, func(c Chain) bool { return c.Rules.Translates }), err
}
