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
	// Keep says why Remove does not remove the rules; nil if it does.
	Keep error

	family ip.Family
	name   string // the table's, without the family
	// parts says what there is of the kind IPVS, such as "1 virtual server".
	parts string
	// chains are kube-proxy's in a table of iptables; the other kinds are kube-proxy's as a whole. jumps are the rules of
	// iptables' own chains that lead there.
	chains []string
	jumps  []jump
	// openings are those of these chains that accept packets.
	openings []Opening
	// mark tells of changes of a table of the kind NFTables; empty if there is no table.
	mark string
	// sign says that a table of the kind NFTables has nothing but an empty chain, by which another program may go, and
	// leavesSign that its removal leaves that.
	sign, leavesSign bool
	ruleset          uint32 // the generation of the ruleset that was read
}

// String is, for example, "ip nat (iptables-nft, 34 chains)".
func (r Rules) String() string {
	if r.parts != "" {
		return fmt.Sprintf("%s (%s, %s)", r.Table, r.Kind, r.parts)
	}
	switch {
	case r.sign:
		return fmt.Sprintf("%s (%s, an empty chain)", r.Table, r.Kind)
	case len(r.chains) == 0:
		return fmt.Sprintf("%s (%s)", r.Table, r.Kind)
	case len(r.chains) == 1:
		return fmt.Sprintf("%s (%s, 1 chain)", r.Table, r.Kind)
	}
	return fmt.Sprintf("%s (%s, %d chains)", r.Table, r.Kind, len(r.chains))
}

func rulesIn(kind Kind, f ip.Family, table string) Rules {
	return Rules{Kind: kind, Table: tableName(f, table), family: f, name: table}
}

// Sign says that the table has nothing but an empty chain, which RemoveAll left for another program.
func (r Rules) Sign() bool { return r.sign }

// there says whether the table has any.
func (r *Rules) there() bool { return r.mark != "" || len(r.chains) > 0 }

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
	for _, kind := range []Kind{NFTables, IPTablesNFT, IPTablesLegacy} {
		rules, err := c.find(kind)
		found = append(found, rules...)
		errs = append(errs, err)
	}
	left, err := readIPVS(nil)
	if err == nil && !left.empty() {
		found = append(found, left.rules())
	}
	return found, errors.Join(append(errs, err)...)
}

// find returns the rules of a kind in all tables.
func (c *conn) find(kind Kind) (found []Rules, err error) {
	tables := iptablesTables()
	if kind == NFTables {
		tables = []string{kubeProxyTable}
	}
	for _, f := range ip.Families() {
		for _, table := range tables {
			r, err := c.read(kind, f, table)
			if err != nil {
				return nil, err
			}
			if r.there() {
				found = append(found, r)
			}
		}
	}
	return found, nil
}

// read returns the rules of a kind in one table.
func (c *conn) read(kind Kind, f ip.Family, table string) (Rules, error) {
	switch kind {
	case IPTablesNFT:
		return c.readNFTChains(f, table)
	case IPTablesLegacy:
		return readLegacyChains(f, table)
	}
	return c.readTable(f)
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
