package service

import (
	"fmt"
	"net/netip"
	"slices"
)

// NodePortAddresses says which of the node's addresses serve node ports. The
// zero value is "primary": the node's first address of each family.
type NodePortAddresses struct {
	prefixes []netip.Prefix
}

// ParseNodePortAddresses reads the value of kube-proxy's --nodeport-addresses: nothing,
// "primary" alone, or a list of CIDRs. A CIDR of length 0 means every local address of
// its family except loopback ones.
func ParseNodePortAddresses(list []string) (NodePortAddresses, error) {
	var n NodePortAddresses
	if len(list) == 1 && list[0] == "primary" {
		return n, nil
	}
	for _, s := range list {
		if s == "primary" {
			return n, fmt.Errorf("%q must stand alone", s)
		}
		p, err := ParseRange(s)
		if err != nil {
			return n, err
		}
		n.prefixes = append(n.prefixes, p.Masked())
	}
	return n, nil
}

// On returns the addresses of one family that serve node ports on the node; all means
// every local address except loopback ones. As in kube-proxy, primary means all if the
// node has no known address of that family. A list of CIDRs without one of the family
// means all, too. While the node's addresses are pending, primary means none.
func (n NodePortAddresses) On(node *Node, v6 bool) (addrs []netip.Addr, all bool) {
	if len(n.prefixes) == 0 {
		for _, a := range node.Addresses {
			if a.Is6() == v6 && !a.IsLoopback() {
				return []netip.Addr{a}, false
			}
		}
		return nil, !node.AddressPending
	}
	ours := slices.DeleteFunc(slices.Clone(n.prefixes), func(p netip.Prefix) bool { return p.Addr().Is6() != v6 })
	if len(ours) == 0 || slices.ContainsFunc(ours, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return nil, true
	}
	for _, a := range node.HostAddresses {
		if !a.IsLoopback() && slices.ContainsFunc(ours, func(p netip.Prefix) bool { return p.Contains(a) }) {
			addrs = append(addrs, a)
		}
	}
	return addrs, false
}
