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
	// marks tell of changes of kube-proxy's rules, as they were at the last look; nil before the first.
	marks []string
}

// legacyTable is a table of iptables-legacy, in so far as it tells of a change.
type legacyTable struct {
	info [legacyInfoLen]byte
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
	note := func(kind Kind, mark string) {
		has[kind] = has[kind] || mark != ""
		marks = append(marks, mark)
	}
	for _, f := range ip.Families() {
		found, err := c.readTable(f)
		if err != nil {
			return nil, false, err
		}
		if found.sign {
			found.mark = "" // It has no rules.
		}
		note(NFTables, found.mark)
		for _, table := range iptablesTables() {
			for _, chain := range chainsOf(table) {
				mark, err := c.markOfChain(f, table, chain)
				if err != nil {
					return nil, false, err
				}
				note(IPTablesNFT, mark)
			}
		}
		mark, err := w.lookLegacy(f)
		if err != nil {
			return nil, false, err
		}
		note(IPTablesLegacy, mark)
	}
	if has[IPVS], err = ipvsThere(); err != nil {
		return nil, false, err
	}
	written = w.marks != nil && !slices.Equal(marks, w.marks)
	w.marks = marks
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
func (w *Watcher) lookLegacy(f ip.Family) (marks string, err error) {
	tables, err := legacyTables(f)
	if err != nil {
		return "", err
	}
	for _, name := range iptablesTables() {
		if !slices.Contains(tables, name) {
			continue
		}
		mark, err := w.lookLegacyTable(f, name)
		if err != nil {
			return "", fmt.Errorf("look for chains of kube-proxy in table %s of iptables-legacy: %w", tableName(f, name),
				err)
		}
		marks += mark
	}
	return marks, nil
}

func (w *Watcher) lookLegacyTable(f ip.Family, name string) (mark string, err error) {
	info, err := readLegacyInfo(f, name)
	if err != nil {
		return "", err
	}
	if known, found := w.legacy[tableName(f, name)]; found && known.info == info {
		return known.mark, nil
	}
	b, err := readLegacy(f, name)
	if err != nil {
		return "", err
	}
	if w.legacy == nil {
		w.legacy = map[string]legacyTable{}
	}
	t := legacyTable{info, b.mark()}
	w.legacy[tableName(f, name)] = t
	return t.mark, nil
}

// mark is what tells of changes of kube-proxy's chains: a digest of their names and of the number of rules in each. It
// is empty if there are none.
func (b *blob) mark() string {
	h, there := fnv.New64a(), false
	for i := range b.entries {
		if e := &b.entries[i]; isChain(b.name, e.chain) {
			_, _ = fmt.Fprintln(h, e.chain) // to memory
			there = true
		}
	}
	if !there {
		return ""
	}
	return fmt.Sprintf("%x ", h.Sum64())
}
