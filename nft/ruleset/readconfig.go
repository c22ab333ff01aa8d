package ruleset

import (
	"net/netip"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// ReadBackConfig tells from tables that were read from a kernel with what
// configuration they were made, as far as it decides which flows are for
// services and who is a pod: ClusterCIDRs (which may have come from the node's
// own ranges), PodInterface and NodePortAddresses. In a family without table
// node ports are served on all addresses, and nobody is a pod.
func ReadBackConfig(m *nft.Model, table string) Config {
	cfg := Config{Table: table}
	var nodePorts []string
	for _, f := range nft.Families() {
		c := m.Table(nft.TableID{Family: f, Name: table})
		if c == nil {
			nodePorts = append(nodePorts, everywhere(f).String())
			continue
		}
		for _, s := range firsts(c, externalLocal) {
			switch s := s.(type) {
			case nft.MatchAddr:
				cfg.ClusterCIDRs = append(cfg.ClusterCIDRs, s.Prefix)
			case nft.MatchInput:
				cfg.PodInterface = Interface{Name: s.Name, Prefix: s.Prefix}
			}
		}
		for _, p := range nodePortPrefixes(c, f) {
			nodePorts = append(nodePorts, p.String())
		}
	}
	cfg.NodePortAddresses, _ = service.ParseNodePortAddresses(nodePorts) // which are prefixes
	return cfg
}

// firsts are the first statements of a chain's rules.
func firsts(c *nft.Contents, chain string) []nft.Statement {
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

// nodePortPrefixes are what holds the addresses of one family that serve node
// ports, and no others of the node.
func nodePortPrefixes(c *nft.Contents, f nft.Family) []netip.Prefix {
	var list []netip.Prefix
	for _, e := range sortedElements(c, nodePortAddresses) {
		a := addrOf(e.Key)
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, s := range firsts(c, dispatch) {
		if in, ok := s.(nft.InSet); ok && in.Set == nodePortAddresses && len(list) == 0 {
			// None does, and the node never has the unspecified address.
			nowhere := everywhere(f).Addr()
			return []netip.Prefix{netip.PrefixFrom(nowhere, nowhere.BitLen())}
		}
	}
	if len(list) == 0 {
		return []netip.Prefix{everywhere(f)}
	}
	return list
}

// everywhere is the prefix of all addresses of the family.
func everywhere(f nft.Family) netip.Prefix {
	if f == nft.IPv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}
