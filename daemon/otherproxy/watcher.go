package otherproxy

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Watcher looks for kube-proxy's rules again and again, at a cost that does not grow with their
// number while they stay the same. It is for one goroutine.
type Watcher struct {
	// legacy has what was found in each table of iptables-legacy.
	legacy map[string]legacyTable
}

// legacyTable is a table of iptables-legacy, in so far as it tells of a change.
type legacyTable struct {
	info [legacyInfoLen]byte
	has  bool
}

// Look returns the kinds of which kube-proxy has rules in the kernel, in the order of Kinds.
func (w *Watcher) Look() ([]Kind, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	has := map[Kind]bool{}
	for _, f := range families() {
		_, there, err := findTable(c, f)
		if err != nil {
			return nil, err
		}
		has[NFTables] = has[NFTables] || there
		for _, table := range iptablesTables() {
			for _, chain := range chainsOf(table) {
				there, err := c.hasChain(f, table, chain)
				if err != nil {
					return nil, err
				}
				has[IPTablesNFT] = has[IPTablesNFT] || there
			}
		}
		if there, err = w.lookLegacy(f); err != nil {
			return nil, err
		}
		has[IPTablesLegacy] = has[IPTablesLegacy] || there
	}
	ipvs, err := findIPVS(c)
	if err != nil {
		return nil, err
	}
	has[IPVS] = len(ipvs) > 0
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return !has[k] }), nil
}

func (c *conn) hasChain(f family, table, chain string) (there bool, err error) {
	err = c.ask(unix.NFT_MSG_GETCHAIN, 0, f, func(attributes) error {
		there = true
		return nil
	}, textAttribute(unix.NFTA_CHAIN_TABLE, table), textAttribute(unix.NFTA_CHAIN_NAME, chain))
	if err != nil {
		return false, fmt.Errorf("look up chain %s in table %s %s: %w", chain, f, table, err)
	}
	return there, nil
}

// lookLegacy reads only tables of which the number or the size of the rules has changed.
func (w *Watcher) lookLegacy(f family) (there bool, err error) {
	tables, err := legacyTables(f)
	if err != nil {
		return false, err
	}
	for _, name := range iptablesTables() {
		if !slices.Contains(tables, name) {
			continue
		}
		has, err := w.lookLegacyTable(f, name)
		if err != nil {
			return false, fmt.Errorf("look for chains of kube-proxy in table %s of iptables-legacy: %w", tableName(f, name), err)
		}
		there = there || has
	}
	return there, nil
}

func (w *Watcher) lookLegacyTable(f family, name string) (has bool, err error) {
	info, err := readLegacyInfo(f, name)
	if err != nil {
		return false, err
	}
	if known, found := w.legacy[tableName(f, name)]; found && known.info == info {
		return known.has, nil
	}
	b, err := readLegacy(f, name)
	if err != nil {
		return false, err
	}
	if w.legacy == nil {
		w.legacy = map[string]legacyTable{}
	}
	has = b.rules().Chains > 0
	w.legacy[tableName(f, name)] = legacyTable{info, has}
	return has, nil
}
