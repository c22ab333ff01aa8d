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
	// MasqueradeBit (0 to 31) is the bit of the packet mark that the first
	// packet of a connection to masquerade carries inside the node.
	MasqueradeBit uint8
	// NodePortAddresses says where node ports are served.
	NodePortAddresses service.NodePortAddresses
}

func (c *Config) mark() uint32 { return 1 << c.MasqueradeBit }

func (c *Config) clusterCIDR(f nft.Family) (netip.Prefix, bool) {
	for _, p := range c.ClusterCIDRs {
		if p.Addr().Is6() == (f == nft.IPv6) {
			return p.Masked(), true
		}
	}
	return netip.Prefix{}, false
}
