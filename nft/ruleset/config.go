package ruleset

import (
	"net/netip"

	"nftproxy/internal/service"
	"nftproxy/nft"
)

// DefaultTable is the name of the tables, one in each family. It is not
// kube-proxy's, so that both can run beside each other during a change-over.
const DefaultTable = "nftproxy"

// DefaultMasqueradeBit is kube-proxy's: mark 0x4000.
const DefaultMasqueradeBit = 14

// Config is what the program depends on beside the snapshot.
type Config struct {
	// Table is the name of both tables.
	Table string
	// ClusterCIDRs are the ranges that pods have their addresses from. The
	// first of each family counts; traffic from elsewhere to a cluster IP is
	// masqueraded. Without one of a family nothing is, in that family.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR takes the ranges that the snapshot's node has for its pods
	// instead, again the first of each family.
	NodeCIDR bool
	// PodInterface, if it has a name, says where pods' traffic comes in; then
	// it decides what is masqueraded, and ranges do not.
	PodInterface Interface
	// MasqueradeAll masquerades everything that goes to a cluster IP.
	MasqueradeAll bool
	// MasqueradeBit (0 to 31) is the bit of the packet mark that the first
	// packet of a connection to masquerade carries inside the node.
	MasqueradeBit uint8
	// NodePortAddresses says where node ports are served.
	NodePortAddresses service.NodePortAddresses
}

// Interface is the name of an interface, or with Prefix how names begin.
type Interface struct {
	Name   string
	Prefix bool
}

// The longest name, in bytes, that Linux gives interfaces, and the longest
// prefix that nft can read back from its own listing.
const (
	MaxInterfaceName   = 15
	MaxInterfacePrefix = 14
)

func (c *Config) mark() uint32 { return 1 << c.MasqueradeBit }

// pods says how to tell pods in one family. The zero value is that nobody can.
type pods struct {
	in   Interface
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

// Pod says whether the rules take what comes from an address for a pod's; known
// is false where they go by interfaces.
func (c *Config) Pod(node *service.Node, a netip.Addr) (pod, known bool) {
	f := nft.IPv4
	if a.Is6() {
		f = nft.IPv6
	}
	p := c.pods(f, node)
	return p.from.IsValid() && p.from.Contains(a), p.in.Name == ""
}

// match matches what pods send or, with not, what everybody else does; false
// means that they cannot be told.
func (p pods) match(not bool) (nft.Statement, bool) {
	switch {
	case p.in.Name != "":
		return nft.MatchInput{Not: not, Name: p.in.Name, Prefix: p.in.Prefix}, true
	case p.from.IsValid():
		return nft.MatchAddr{Field: nft.Saddr, Not: not, Prefix: p.from}, true
	}
	return nil, false
}
