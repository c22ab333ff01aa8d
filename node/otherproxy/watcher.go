package otherproxy

import (
	"fmt"
	"hash/fnv"
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
)

// Watcher looks for kube-proxy's rules again and again, at a cost that does not grow with their
// number while they stay the same. It is for one goroutine.
type Watcher struct {
	// legacy has what was found in each table of iptables-legacy.
	legacy map[string]legacyTable
	// marks tell of changes of kube-proxy's rules, as they were at the last look.
	marks []string
	// looked says that there was a look.
	looked bool
}

// legacyTable is a table of iptables-legacy, in so far as it tells of a change.
type legacyTable struct {
	info [legacyInfoLen]byte
	has  bool
	mark string
}

// Look returns the kinds of which kube-proxy has rules in the kernel, in the order of Kinds. written says that the
// rules are not those of the look before. It sees when rules come, and when a Service or endpoint comes or goes, but
// for changes in iptables-legacy that leave the number and size of all rules the same; of iptables-nft it sees each
// time that kube-proxy writes its rules, since it writes those of small chains again.
func (w *Watcher) Look() (kinds []Kind, written bool, err error) {
	c, err := dial()
	if err != nil {
		return nil, false, err
	}
	defer c.close()
	has := map[Kind]bool{}
	var marks []string
	for _, f := range ip.Families() {
		found, there, err := findTable(c, f)
		if err != nil {
			return nil, false, err
		}
		has[NFTables] = has[NFTables] || there
		marks = append(marks, found.mark)
		for _, table := range iptablesTables() {
			for _, chain := range chainsOf(table) {
				mark, err := c.markOfChain(f, table, chain)
				if err != nil {
					return nil, false, err
				}
				has[IPTablesNFT] = has[IPTablesNFT] || mark != ""
				marks = append(marks, mark)
			}
		}
		there, mark, err := w.lookLegacy(f)
		if err != nil {
			return nil, false, err
		}
		has[IPTablesLegacy] = has[IPTablesLegacy] || there
		marks = append(marks, mark)
	}
	if has[IPVS], err = ipvsThere(); err != nil {
		return nil, false, err
	}
	written = w.looked && !slices.Equal(marks, w.marks)
	w.marks, w.looked = marks, true
	return slices.DeleteFunc(Kinds(), func(k Kind) bool { return !has[k] }), written, nil
}

// markOfChain returns what tells of changes of a chain, or "" if there is none.
func (c *conn) markOfChain(f ip.Family, table, chain string) (mark string, err error) {
	of := named(unix.NFTA_CHAIN_TABLE, table).Text(unix.NFTA_CHAIN_NAME, chain)
	err = c.ask(unix.NFT_MSG_GETCHAIN, 0, f, of, func(a nfnetlink.Attributes) error {
		mark = fmt.Sprint(chain, a.Uint64(unix.NFTA_CHAIN_HANDLE), a.Uint32(unix.NFTA_CHAIN_USE))
		return nil
	})
	// The rules of these chains are few, whatever Services there are.
	if err == nil && mark != "" && slices.Contains([]string{"KUBE-POSTROUTING", "KUBE-FORWARD"}, chain) {
		err = c.rules(f, table, chain, func(a nfnetlink.Attributes) error {
			mark += fmt.Sprint(" ", a.Uint64(unix.NFTA_RULE_HANDLE))
			return nil
		})
	}
	if err != nil {
		return "", fmt.Errorf("look up chain %s in table %s %s: %w", chain, f, table, err)
	}
	return mark, nil
}

// lookLegacy reads only tables of which the number or the size of the rules has changed.
func (w *Watcher) lookLegacy(f ip.Family) (there bool, mark string, err error) {
	tables, err := legacyTables(f)
	if err != nil {
		return false, "", err
	}
	for _, name := range iptablesTables() {
		if !slices.Contains(tables, name) {
			continue
		}
		table, err := w.lookLegacyTable(f, name)
		if err != nil {
			return false, "", fmt.Errorf("look for chains of kube-proxy in table %s of iptables-legacy: %w", tableName(f, name),
				err)
		}
		there, mark = there || table.has, mark+table.mark
	}
	return there, mark, nil
}

func (w *Watcher) lookLegacyTable(f ip.Family, name string) (t legacyTable, err error) {
	info, err := readLegacyInfo(f, name)
	if err != nil {
		return t, err
	}
	if known, found := w.legacy[tableName(f, name)]; found && known.info == info {
		return known, nil
	}
	b, err := readLegacy(f, name)
	if err != nil {
		return t, err
	}
	if w.legacy == nil {
		w.legacy = map[string]legacyTable{}
	}
	t = legacyTable{info: info, has: b.rules().Chains > 0, mark: b.mark()}
	w.legacy[tableName(f, name)] = t
	return t, nil
}

// mark is what tells of changes of kube-proxy's chains: a digest of their names and of the number of rules in each.
func (b *blob) mark() string {
	h := fnv.New64a()
	for i := range b.entries {
		if e := &b.entries[i]; isChain(b.name, e.chain) {
			_, _ = fmt.Fprintln(h, e.chain) // to memory
		}
	}
	return fmt.Sprintf("%x ", h.Sum64())
}
