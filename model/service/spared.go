package service

import (
	"net/netip"

	"nftproxy/model/ip"
	"nftproxy/model/treap"
)

// Spared returns the addresses of one family where hosts may be although service addresses are
// there: packets to them are neither dropped nor refused. They are the parts of the node's
// networks that lie in ServiceCIDRs, and the API servers in ServiceCIDRs. Where the family has no
// ServiceCIDR, nobody knows where cluster IPs may be, and all API servers count. The prefixes are
// disjoint and sorted.
func (n *Node) Spared(serviceCIDRs treap.Map[string, netip.Prefix], family ip.Family) []netip.Prefix {
	var list []netip.Prefix
	known := false
	for _, cidr := range serviceCIDRs.All() {
		if !family.Has(cidr.Addr()) {
			continue
		}
		known = true
		for _, network := range n.Networks {
			if network.Overlaps(cidr) {
				list = append(list, Smaller(network, cidr))
			}
		}
		for _, a := range n.APIServers {
			if cidr.Contains(a) {
				list = append(list, netip.PrefixFrom(a, a.BitLen()))
			}
		}
	}
	for _, a := range n.APIServers {
		if !known && family.Has(a) {
			list = append(list, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return Disjoint(list)
}

// Smaller returns the prefix with fewer addresses, masked. Of two that overlap it is what they have
// in common.
func Smaller(a, b netip.Prefix) netip.Prefix {
	if a.Bits() > b.Bits() {
		return a.Masked()
	}
	return b.Masked()
}
