// Package otherproxy finds the other service proxies of this node: the rules
// that kube-proxy has in the kernel, whether it runs now, and the removal of its rules where
// they are its own and nothing else.
//
// The package asks the kernel by netlink and socket options. It runs no command, it asks no API
// server, and it does not decide when rules may go: its callers do. It works in the network
// namespace of the calling thread.
package otherproxy

import (
	"errors"
	"fmt"

	"nftproxy/model/ip"
)

// Kind is a mechanism of the kernel in which kube-proxy keeps rules.
type Kind string

// The kinds.
const (
	NFTables       Kind = "nftables"        // the tables ip kube-proxy and ip6 kube-proxy
	IPTablesNFT    Kind = "iptables-nft"    // chains in the nftables tables of iptables-nft
	IPTablesLegacy Kind = "iptables-legacy" // chains in the tables of the older kernel interface
	IPVS           Kind = "ipvs"            // virtual servers, the interface kube-ipvs0, ipsets
)

// Kinds lists all kinds.
func Kinds() []Kind { return []Kind{NFTables, IPTablesNFT, IPTablesLegacy, IPVS} }

// Rules are kube-proxy's rules in one table.
type Rules struct {
	Kind Kind
	// Table is the table as nft names it, such as "ip kube-proxy" or "ip6 nat". For IPVS it is
	// the name of the interface.
	Table string
	// Chains is the number of kube-proxy's chains in a table of iptables; 0 for the other kinds,
	// whose tables are kube-proxy's as a whole.
	Chains int
	// Keep says why Remove does not remove the rules; nil if it does.
	Keep error

	family ip.Family
	// parts says what there is of the kind IPVS, such as "1 virtual server".
	parts string
	// chains are kube-proxy's, jumps the rules of iptables' own chains that lead there.
	chains []string
	jumps  []jump
	// openings are those of these chains that accept packets.
	openings []Opening
	// mark tells of changes of a table of the kind NFTables.
	mark    string
	ruleset uint32 // the generation of the ruleset that was read
}

// String is, for example, "ip nat (iptables-nft, 34 chains)".
func (r Rules) String() string {
	if r.parts != "" {
		return fmt.Sprintf("%s (%s, %s)", r.Table, r.Kind, r.parts)
	}
	if r.Chains == 0 {
		return fmt.Sprintf("%s (%s)", r.Table, r.Kind)
	}
	plural := "s"
	if r.Chains == 1 {
		plural = ""
	}
	return fmt.Sprintf("%s (%s, %d chain%s)", r.Table, r.Kind, r.Chains, plural)
}

// ErrForeign says that rules of other programs lead to kube-proxy's chains. Without these chains
// the kernel would refuse the rules.
var ErrForeign = errors.New("a rule of another program leads to a chain of kube-proxy")

// Find returns kube-proxy's rules of all kinds, sorted by kind and table. It makes no table and
// loads no module. It needs CAP_NET_ADMIN.
func Find() ([]Rules, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	var found []Rules
	var errs []error
	for _, find := range []func(*conn) ([]Rules, error){findTables, findNFTChains, findLegacyChains, findIPVS} {
		rules, err := find(c)
		found = append(found, rules...)
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}

// Remove removes rules that Find has returned. Each call is one transaction: it takes effect as a
// whole, or not at all. Where another process has changed the ruleset since Find, the error matches
// ErrChanged, and the caller can call Find again. Where r.Keep is set, Remove returns it. What IPVS mode left takes
// several steps, for RemoveAll.
func Remove(r Rules) error {
	err := r.Keep
	if err == nil {
		switch r.Kind {
		case NFTables:
			err = removeTable(r)
		case IPTablesNFT:
			err = removeNFTChains(r)
		case IPTablesLegacy:
			err = removeLegacyChains(r)
		default:
			err = errors.ErrUnsupported
		}
	}
	if err != nil {
		return fmt.Errorf("remove the rules of kube-proxy in %s: %w", r.Table, err)
	}
	return nil
}

// ErrChanged says that another process has changed the ruleset meanwhile.
var ErrChanged = errors.New("the ruleset has changed meanwhile")
