package service

import (
	"fmt"
	"net/netip"
	"slices"

	"nftproxy/model/ip"
	"nftproxy/model/spelling"
)

// NodePortAddresses says which of the node's addresses serve node ports. The
// zero value is "primary": the node's first address of each family.
type NodePortAddresses struct {
	// primary says that the list has the word; without prefixes it means the same.
	primary  bool
	prefixes []netip.Prefix
}

// The words that stand for addresses in --nodeport-addresses (kube-proxy 1.37).
const (
	nodePortsPrimary   = "primary"
	nodePortsLocalhost = "localhost"
	nodePortsAll       = "all"
)

// NodePortWords lists them.
func NodePortWords() []string { return []string{nodePortsPrimary, nodePortsAll, nodePortsLocalhost} }

// ParseNodePortAddresses reads the value of kube-proxy's --nodeport-addresses: nothing,
// which means "primary", or a list of CIDRs and of the words "primary", "localhost"
// (127.0.0.0/8 and ::1/128) and "all" (0.0.0.0/0 and ::/0). A CIDR of length 0 means
// every local address of its family except loopback ones.
func ParseNodePortAddresses(list []string) (NodePortAddresses, error) {
	var n NodePortAddresses
	seen := map[string]bool{}
	for _, s := range list {
		var prefixes []string
		switch s {
		case nodePortsPrimary:
			n.primary = true
		case nodePortsLocalhost:
			prefixes = []string{"127.0.0.0/8", "::1/128"}
		case nodePortsAll:
			prefixes = []string{"0.0.0.0/0", "::/0"}
		default:
			p, err := ParseRange(s)
			if err != nil {
				return n, notNodePorts(s, err)
			}
			n.prefixes = append(n.prefixes, p.Masked())
			continue
		}
		if seen[s] {
			return n, fmt.Errorf("%q stands twice", s)
		}
		seen[s] = true
		for _, text := range prefixes {
			n.prefixes = append(n.prefixes, netip.MustParsePrefix(text))
		}
	}
	return n, nil
}

// notNodePorts is the error about an entry that is neither a word nor, as its own error says, a range. Who has mistyped
// a word is told of words.
func notNodePorts(entry string, err error) error {
	if meant := spelling.DidYouMean(entry, NodePortWords()); meant != "" {
		return fmt.Errorf("%q: %swant primary, all, localhost or ADDRESS/LENGTH", entry, meant)
	}
	return fmt.Errorf("%w (and it is none of primary, all and localhost)", err)
}

// Loopback returns the loopback address of a family that serves node ports on the node, 127.0.0.1 or ::1, and
// whether one does: only where the list has a range of loopback addresses with it, as in kube-proxy (KEP-6032).
// Settings of the node count as in On. A node may be nil.
func (n NodePortAddresses) Loopback(node *Node, family ip.Family) (a netip.Addr, serves bool) {
	if node != nil && node.Settings != nil {
		n = node.Settings.NodePortAddresses
	}
	a = family.Loopback()
	return a, slices.ContainsFunc(n.prefixes, func(p netip.Prefix) bool { return p.Addr().IsLoopback() && p.Contains(a) })
}

// Unserved lists the ranges of loopback addresses that have no address with node ports.
func (n NodePortAddresses) Unserved() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(n.prefixes), func(p netip.Prefix) bool {
		return !p.Addr().IsLoopback() || p.Contains(ip.Of(p.Addr()).Loopback())
	})
}

// On returns the addresses of one family that serve node ports on the node; all means every local
// address except loopback ones. If the node has settings, theirs count instead of n. As in
// kube-proxy, a list without an address of a family means all addresses of the family: primary on a
// node without a known address of that family, or only CIDRs of the other family. While the node's
// addresses are pending, primary means none.
func (n NodePortAddresses) On(node *Node, family ip.Family) (addrs []netip.Addr, all bool) {
	if node.Settings != nil {
		n = node.Settings.NodePortAddresses
	}
	ours := slices.DeleteFunc(slices.Clone(n.prefixes), func(p netip.Prefix) bool { return !family.Has(p.Addr()) })
	if slices.ContainsFunc(ours, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
		return nil, true
	}
	primary := n.primary || len(n.prefixes) == 0
	if primary {
		for _, a := range node.Addresses {
			if family.Has(a) && !a.IsLoopback() {
				addrs = append(addrs, a)
				break
			}
		}
	}
	if len(addrs)+len(ours) == 0 {
		return nil, !primary || !node.AddressPending
	}
	for _, a := range node.HostAddresses {
		if !a.IsLoopback() && !slices.Contains(addrs, a) && slices.ContainsFunc(ours, func(p netip.Prefix) bool {
			return p.Contains(a)
		}) {
			addrs = append(addrs, a)
		}
	}
	return addrs, false
}
