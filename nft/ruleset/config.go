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
	// ClusterCIDRs are the ranges of pods' addresses. The first of each family counts:
	// traffic from other addresses to a cluster IP is masqueraded. A family without a
	// range masquerades no such traffic.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR has the pod ranges of the snapshot's node count instead, again the
	// first of each family.
	NodeCIDR bool
	// PodInterface, if it has a name, is where pods' traffic comes in. Then it decides
	// what is masqueraded, and ranges do not.
	PodInterface Interface
	// MasqueradeAll masquerades all connections to cluster IPs.
	MasqueradeAll bool
	// MasqueradeBit (0 to 31) is a bit of the packet mark. The first packet of a
	// connection that is to be masqueraded carries it inside the node.
	MasqueradeBit uint8
	// NodePortAddresses says which addresses serve node ports.
	NodePortAddresses service.NodePortAddresses
}

// Interface is the name of an interface, or with Prefix the beginning of names.
type Interface struct {
	Name   string
	Prefix bool
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

// Pod says whether the rules take packets from the address for packets of a pod. If
// the rules go by interfaces, known is false.
func (c *Config) Pod(node *service.Node, a netip.Addr) (pod, known bool) {
	f := nft.IPv4
	if a.Is6() {
		f = nft.IPv6
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
