package ruleset

import (
	"net/netip"

	"nftproxy/model/service"
	"nftproxy/nft"
)

// DefaultTable is the name of the tables, one in each family. It is not
// kube-proxy's, so that both can run beside each other during a change-over.
const DefaultTable = "nftproxy"

// DefaultMasqueradeBit is kube-proxy's: mark 0x4000.
const DefaultMasqueradeBit = 14

// Config is all that the program depends on beside the snapshot.
type Config struct {
	// Table is the name of both tables.
	Table string
	// Settings are in force for a snapshot whose node has none.
	service.Settings
	// Counters gives the elements of frontends and endpoints counters of new connections
	// (CounterPlace). With another value Plan makes the sets of these elements anew.
	Counters bool
	// Uncounted leaves out all counters, those of Counters too. The rules refuse and drop the
	// same packets. It is for kernels that cannot count (kernel.Conn.TryCounters).
	Uncounted bool
}

// The longest name of an interface in Linux, in bytes, and the longest prefix that
// nft can read back from its own listing.
const (
	MaxInterfaceName   = 15
	MaxInterfacePrefix = 14
)

func (c *Config) mark() uint32 { return 1 << c.MasqueradeBit }

// pods says how the rules of one family tell pods from others. By the zero value they
// cannot.
type pods struct {
	in   service.Interface
	from netip.Prefix
}

func (c *Config) pods(f nft.Family, node *service.Node) pods {
	if c.PodInterface.Name != "" {
		return pods{in: c.PodInterface}
	}
	ranges := c.ClusterCIDRs
	if c.NodeCIDR {
		ranges = node.PodCIDRs
	}
	for _, p := range ranges {
		if p.Addr().Is6() == (f == nft.IPv6) {
			return pods{from: p.Masked()}
		}
	}
	return pods{}
}

// Pod says whether the rules take packets from the address for packets of a pod. If
// the rules go by interfaces, known is false. The node's own settings go before c's.
func (c *Config) Pod(node *service.Node, a netip.Addr) (pod, known bool) {
	f := nft.IPv4
	if a.Is6() {
		f = nft.IPv6
	}
	if node.Settings != nil {
		c = &Config{Table: c.Table, Settings: *node.Settings}
	}
	p := c.pods(f, node)
	return p.from.IsValid() && p.from.Contains(a), p.in.Name == ""
}

// match returns a statement that matches packets of pods or, with not, packets of other
// clients. It returns false if pods cannot be told from others.
func (p pods) match(not bool) (nft.Statement, bool) {
	switch {
	case p.in.Name != "":
		return nft.MatchInput{Not: not, Name: p.in.Name, Prefix: p.in.Prefix}, true
	case p.from.IsValid():
		return nft.MatchAddr{Field: nft.Saddr, Not: not, Prefix: p.from}, true
	}
	return nil, false
}
