package ruleset

import (
	"net/netip"
	"slices"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// ReadBackConfig reads from tables the configuration that they were made with, as far
// as it decides which flows go to services, which addresses are pods' and what is
// counted. These are ClusterCIDRs (which may be the node's own ranges), PodInterface,
// NodePortAddresses, Counters, Uncounted, MasqueradeMark, AnswerPing, NoMasquerade, MasqueradeToNode and Flows. In a
// family without a table all addresses serve node ports, and no address is a pod's.
func ReadBackConfig(m *nft.Model, table string) Config {
	cfg := Config{Table: table}
	var nodePorts []string
	for _, f := range nft.Families() {
		c := m.Table(nft.TableID{Family: f, Name: table})
		if c == nil {
			nodePorts = append(nodePorts, allAddresses(f).String())
			continue
		}
		p := readPods(c)
		cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, p.from...)
		if p.in.Name != "" {
			cfg.PodInterface = p.in
		}
		for _, s := range firstStatements(c, postrouting) {
			if mark, ok := s.(nft.MatchMark); ok {
				cfg.MasqueradeMark = mark.Mask
			}
		}
		readMasquerading(&cfg, c)
		cfg.Flows = max(cfg.Flows, readFlows(c))
		cfg.AnswerPing = cfg.AnswerPing || c.Sets[pingAddresses] != nil
		if s := c.Sets[services]; s != nil {
			cfg.Counters = cfg.Counters || s.Set.Counter
		}
		// Tables of versions that counted nothing are like those that count refusals: they lack the sets.
		if s := c.Sets[byAddress().refusalSet(NoEndpoints)]; s != nil {
			cfg.Uncounted = cfg.Uncounted || !s.Set.Counter
		}
		for _, p := range nodePortPrefixes(c, f) {
			nodePorts = append(nodePorts, p.String())
		}
		if ServesLoopback(c) {
			a := f.Loopback()
			nodePorts = append(nodePorts, netip.PrefixFrom(a, a.BitLen()).String())
		}
	}
	cfg.NodePortAddresses, _ = service.ParseNodePortAddresses(nodePorts) // which are prefixes
	return cfg
}

// readMasquerading reads what the table's rules spare from masquerading, and whether they name the source.
func readMasquerading(cfg *Config, c *nft.Contents) {
	if c.Chains[postrouting] == nil {
		return
	}
	for _, r := range c.Chains[postrouting].Rules {
		if PurposeOf(r) != MasqueradeMarked {
			continue
		}
		for _, s := range r {
			switch s := s.(type) {
			case nft.MatchAddr:
				cfg.NoMasquerade = append(cfg.NoMasquerade, s.Prefix)
			case nft.SNATTo:
				cfg.MasqueradeToNode = true
			}
		}
		return // Behind it are only rules of an earlier program, which stay for a while.
	}
}

// readPods reads how the table tells pods from others: in its chain for node ports, which tells more. Earlier versions
// took all pods for pods of the node.
func readPods(c *nft.Contents) pods {
	var p pods
	chain := c.Chains[nodePortExternalLocal]
	if chain == nil {
		return p
	}
	for _, r := range chain.Rules {
		if len(r) == 0 {
			continue
		}
		switch s := r[0].(type) {
		case nft.MatchAddr:
			if PurposeOf(r) == ForOtherPods {
				p.from = append(p.from, s.Prefix)
			} else {
				p.here = append(p.here, s.Prefix)
			}
		case nft.MatchInput:
			p.in = service.Interface{Name: s.Name, Prefix: s.Prefix}
		}
	}
	if p.from == nil {
		p.from = p.here
	}
	return p
}

// firstStatements returns the first statement of each of the chain's rules.
func firstStatements(c *nft.Contents, chain string) []nft.Statement {
	var list []nft.Statement
	if c.Chains[chain] == nil {
		return nil
	}
	for _, r := range c.Chains[chain].Rules {
		if len(r) > 0 {
			list = append(list, r[0])
		}
	}
	return list
}

// nodePortPrefixes returns prefixes that contain the addresses of one family that serve
// node ports, and no other address of the node.
func nodePortPrefixes(c *nft.Contents, f nft.Family) []netip.Prefix {
	var list []netip.Prefix
	for _, e := range sortedElements(c, nodePortAddresses) {
		a := addrOf(e.Key)
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, s := range firstStatements(c, dispatch) {
		if in, ok := s.(nft.InSet); ok && in.Set == nodePortAddresses && len(list) == 0 {
			// No address does. The node never has the unspecified address.
			nowhere := allAddresses(f).Addr()
			return []netip.Prefix{netip.PrefixFrom(nowhere, nowhere.BitLen())}
		}
	}
	if len(list) == 0 {
		return []netip.Prefix{allAddresses(f)}
	}
	return list
}

// ServesLoopback reports whether the table serves node ports to clients on 127.0.0.1 or ::1.
func ServesLoopback(c *nft.Contents) bool {
	chain := c.Chains[output]
	return chain != nil && slices.ContainsFunc(chain.Rules, func(r nft.Rule) bool {
		return PurposeOf(r) == FindOnLoopback
	})
}

// allAddresses is the prefix of all addresses of the family.
func allAddresses(f nft.Family) netip.Prefix { return netip.PrefixFrom(f.Unspecified(), 0) }
