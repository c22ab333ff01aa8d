package inspect

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
)

// ChainRow is a chain of the tables.
type ChainRow struct {
	// Table is, for example, "ip nftproxy".
	Table string `json:"table"`
	Name  string `json:"name"`
	// Kind is base, dispatch, refuse, hold, drop, external-local, source-ranges, endpoints,
	// affinity, learn, or foreign: no version of nftproxy makes such a chain.
	Kind string `json:"kind"`
	// Hook is, for example, "type nat hook prerouting priority -100"; empty for a chain
	// without hook.
	Hook string `json:"hook"`
	// Rules are the rules as nft prints them. "# unknown" stands for a rule that no
	// version of nftproxy makes.
	Rules []string `json:"rules"`
	// Elements is the number of elements of each map that lead to the chain, and
	// FromChains are the chains with rules that lead to it, sorted.
	Elements   map[string]int `json:"elements"`
	FromChains []string       `json:"fromChains"`
}

// Users is the number of elements and chains that lead to the chain.
func (c *ChainRow) Users() int {
	n := len(c.FromChains)
	for _, elements := range c.Elements {
		n += elements
	}
	return n
}

// ChainRows returns the selected chains of both tables, sorted by family, kind and name. A
// selection of Services selects the chains that their connections can come to behind the
// base chains.
func (t *Tables) ChainRows(s Selection) []ChainRow {
	rows := []ChainRow{}
	for _, c := range t.contents {
		users := usersOf(c)
		reached := t.reached(&s, c)
		names := slices.SortedFunc(maps.Keys(c.Chains), func(a, b string) int {
			return cmp.Or(cmp.Compare(kindOrder(c.Chains[a]), kindOrder(c.Chains[b])), cmp.Compare(hookOrder(c.Chains[a]),
				hookOrder(c.Chains[b])), compareNumbered(a, b))
		})
		for _, name := range names {
			if (len(s.Chains) > 0 && !slices.Contains(s.Chains, name)) || (reached != nil && !reached[name]) {
				continue
			}
			rows = append(rows, chainRow(c, c.Chains[name], users[name]))
		}
	}
	return rows
}

// kindOrder orders chains by kind, in the order of a packet's way.
func kindOrder(c *nft.Chain) int {
	return slices.Index([]ruleset.ChainKind{
		ruleset.BaseChain, ruleset.DispatchChain, ruleset.RefuseChain, ruleset.HoldChain, ruleset.DropChain,
		ruleset.ExternalLocalChain, ruleset.SourceRangesChain,
		ruleset.EndpointsChain, ruleset.AffinityChain, ruleset.LearnChain, ruleset.ForeignChain,
	}, ruleset.KindOfChain(c))
}

// hookOrder orders base chains by their hooks.
func hookOrder(c *nft.Chain) nft.HookName {
	if c.Hook == nil {
		return 0
	}
	return c.Hook.Name
}

// compareNumbered orders names with numbers in them: endpoints-9 before endpoints-10.
func compareNumbered(a, b string) int {
	for a != "" && b != "" {
		digitsA, digitsB := digits(a), digits(b)
		if digitsA > 0 && digitsB > 0 {
			if c := cmp.Or(cmp.Compare(digitsA, digitsB), strings.Compare(a[:digitsA], b[:digitsB])); c != 0 {
				return c
			}
			a, b = a[digitsA:], b[digitsB:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is the number of digits that a text begins with.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }

func chainRow(c *nft.Contents, chain *nft.Chain, users *chainUsers) ChainRow {
	row := ChainRow{
		Table: c.Table.String(), Name: chain.Name, Kind: string(ruleset.KindOfChain(chain)),
		Rules: []string{}, Elements: map[string]int{}, FromChains: []string{},
	}
	if chain.Hook != nil {
		row.Hook = chain.Hook.String()
	}
	for _, r := range chain.Rules {
		row.Rules = append(row.Rules, r.Text(c.Table.Family))
	}
	if users != nil {
		row.Elements = users.elements
		row.FromChains = append(row.FromChains, slices.Sorted(maps.Keys(users.chains))...)
	}
	return row
}

// chainUsers is what leads to a chain: elements by their map, and chains.
type chainUsers struct {
	elements map[string]int
	chains   map[string]bool
}

// usersOf returns the users of each chain of a table.
func usersOf(c *nft.Contents) map[string]*chainUsers {
	users := map[string]*chainUsers{}
	of := func(chain string) *chainUsers {
		if users[chain] == nil {
			users[chain] = &chainUsers{elements: map[string]int{}, chains: map[string]bool{}}
		}
		return users[chain]
	}
	for name, s := range c.Sets {
		if !s.Set.Verdicts {
			continue
		}
		for _, e := range s.Elements {
			if e.Verdict.Chain != "" {
				of(e.Verdict.Chain).elements[name]++
			}
		}
	}
	for _, chain := range c.Chains {
		for _, to := range nextChains(chain) {
			of(to).chains[chain.Name] = true
		}
	}
	return users
}

// nextChains returns the chains that a chain's rules lead to by a verdict of their own.
func nextChains(c *nft.Chain) []string {
	var next []string
	for _, r := range c.Rules {
		if name := r.NextChain(); name != "" {
			next = append(next, name)
		}
	}
	return next
}

// reached returns the chains of a table that connections to the selected frontends come
// to; nil if the selection selects no frontends, and so all chains.
func (t *Tables) reached(s *Selection, c *nft.Contents) map[string]bool {
	if s.Namespace == "" && len(s.Services) == 0 && !s.Address.IsValid() && s.Port == 0 {
		return nil
	}
	reached := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		if chain := c.Chains[name]; chain != nil && !reached[name] {
			reached[name] = true
			for _, next := range nextChains(chain) {
				visit(next)
			}
		}
	}
	for _, p := range t.ports(s) {
		for _, f := range p.Frontends {
			if f.Family != c.Table.Family || !t.selects(s, f) {
				continue
			}
			for _, chain := range f.Chains {
				visit(chain)
			}
		}
	}
	return reached
}
