package otherproxy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"nftproxy/nfnetlink"
)

// Opening is a chain of kube-proxy's that accepts packets on a hook. Where something else on that hook drops
// packets, the chain may be all that lets these pass: KUBE-NODEPORTS accepts health check node ports, and
// KUBE-FORWARD packets that are masqueraded and answers.
//
// kube-proxy's nftables tables have none: what a chain of a table accepts meets the chains of all other tables
// just the same.
type Opening struct {
	// Table is the table as nft names it, such as "ip filter".
	Table string
	// Hook is input, forward or output.
	Hook string
	// Chain is the chain to which kube-proxy's rule on the hook leads.
	Chain string

	// reaches has Chain and the chains to which it leads.
	reaches []string
}

// ErrOpens says that a chain accepts packets that something else may drop.
var ErrOpens = errors.New("another rule may drop what the chain accepts")

// remedy says what has to take the place of the opening.
func (o *Opening) remedy() string {
	command := "iptables"
	if strings.HasPrefix(o.Table, "ip6 ") {
		command = "ip6tables"
	}
	switch o.Hook {
	case "forward":
		return fmt.Sprintf("add a rule before it that accepts what Services translate, such as %s -I FORWARD -m conntrack "+
			"--ctstate RELATED,ESTABLISHED,DNAT -j ACCEPT", command)
	case "input":
		return fmt.Sprintf("add rules before it that accept the health check node ports, such as %s -I INPUT -p tcp "+
			"--dport PORT -j ACCEPT (%s -S %s lists them)", command, command, o.Chain)
	}
	return fmt.Sprintf("add rules before it that accept the same (%s -S %s lists them)", command, o.Chain)
}

// chainRules is what the openings of a table depend on, of one chain.
type chainRules struct {
	accepts bool
	targets []string // the chains to which its rules lead, in order
}

// setOpenings finds the openings by the rules of the table's chains. The verdict accept of a chain of nat lets nothing
// pass.
func (r *Rules) setOpenings(chains map[string]chainRules) {
	if r.name == "nat" {
		return
	}
	for _, hook := range []string{"INPUT", "FORWARD", "OUTPUT"} {
		seen := map[string]bool{}
		for _, target := range chains[hook].targets {
			if seen[target] || !isChain(r.name, target) {
				continue
			}
			seen[target] = true
			reaches := reach(target, func(chain string) []string { return chains[chain].targets })
			if slices.ContainsFunc(reaches, func(chain string) bool { return chains[chain].accepts }) {
				r.openings = append(r.openings,
					Opening{Table: r.Table, Hook: strings.ToLower(hook), Chain: target, reaches: reaches})
			}
		}
	}
}

// part splits the rules into those that may go, and those that stay: where something closes what they open, or another
// program goes by the table. err joins the reasons, and matches ErrOpens or ErrSign.
func (r Rules) part(of Removal) (gone, stays Rules, err error) {
	switch {
	case r.Keep != nil:
		return r, Rules{}, nil
	case r.Kind == NFTables:
		return r.partOfTable(of.KeepSign)
	case of.Closed == nil:
		return r, Rules{}, nil
	}
	var kept []string
	var errs []error
	for _, o := range r.openings {
		why := of.Closed(o)
		if why == nil {
			continue
		}
		kept = append(kept, o.reaches...)
		errs = append(errs, fmt.Errorf("chain %s in %s stays: %w: %w; %s, and then run nftproxy cleanup --kube-proxy "+
			"--remove-accepting (docs/migrate.md)",
			o.Chain, o.Table, ErrOpens, why, o.remedy()))
	}
	gone, stays = r, r
	stays.chains, gone.chains = nil, nil
	for _, chain := range r.chains {
		if slices.Contains(kept, chain) {
			stays.chains = append(stays.chains, chain)
		} else {
			gone.chains = append(gone.chains, chain)
		}
	}
	gone.jumps = slices.DeleteFunc(slices.Clone(r.jumps), func(j jump) bool { return slices.Contains(kept, j.target) })
	return gone, stays, errors.Join(errs...)
}

// findOpenings reads the rules of kube-proxy's chains in a table of iptables-nft. Chains of nat are many and open
// nothing.
func (r *Rules) findOpenings(c *conn) error {
	if r.name == "nat" {
		return nil
	}
	chains := map[string]chainRules{}
	for _, j := range r.jumps {
		chains[j.chain] = chainRules{targets: append(chains[j.chain].targets, j.target)}
	}
	for _, chain := range r.chains {
		var rules chainRules
		err := c.rules(r.family, r.name, chain, func(a nfnetlink.Attributes) error {
			verdict, err := verdictOf(a)
			rules.accepts = rules.accepts || verdict.accepts
			if verdict.chain != "" {
				rules.targets = append(rules.targets, verdict.chain)
			}
			return err
		})
		if err != nil {
			return err
		}
		chains[chain] = rules
	}
	r.setOpenings(chains)
	return nil
}

// chainRules returns the rules of kube-proxy's chains and those that lead there, by their chains.
func (b *blob) chainRules() map[string]chainRules {
	chains := map[string]chainRules{}
	for i := range b.entries {
		e := &b.entries[i]
		c := chains[e.chain]
		if own := isChain(b.name, e.chain) || isBuiltin(e.chain) && b.drops(e); own && e.target != "" {
			c.targets = append(c.targets, e.target)
		}
		c.accepts = c.accepts || e.accepts
		chains[e.chain] = c
	}
	return chains
}
