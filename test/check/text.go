package check

import (
	"maps"
	"slices"

	"nftproxy/nft"
)

// Text is the tables in nft's syntax without what the way to them may decide:
//   - the size of a set with MinSize, which has grown with the elements and does not shrink;
//   - which target of a pool has which index: they get theirs in sorted order;
//   - the clients that dynamic maps remember;
//   - objects of time-outs that the program does not want: they stay as long as the table.
//
// Everything else is as in the tables, byte for byte.
func Text(m *nft.Model, want *nft.Program) string {
	same := nft.NewModel()
	for _, f := range nft.Families() {
		t := want.Table(f)
		c := m.Table(t.ID())
		if c == nil {
			continue
		}
		sets := map[string]*nft.SetContents{}
		for name, s := range c.Sets {
			declared := *s.Set
			if w := t.Set(name); w != nil && w.MinSize > 0 {
				declared.Size, declared.MinSize = 0, 0
			}
			sets[name] = &nft.SetContents{Set: &declared, Elements: s.Elements}
			switch key := declared.Key; {
			case declared.Dynamic:
				sets[name].Elements = nil
			case len(key) > 0 && key[len(key)-1] == nft.Index:
				sets[name].Elements = renumbered(s.Elements)
			}
		}
		timeouts := maps.Clone(c.Timeouts) // Those that nobody wants any more stay.
		maps.DeleteFunc(timeouts, func(name string, _ nft.Timeout) bool { _, wanted := t.Timeouts.Get(name); return !wanted })
		same.Put(&nft.Contents{Table: c.Table, Sets: sets, Chains: c.Chains, Timeouts: timeouts})
	}
	return same.String()
}

// renumbered gives the targets of each pool its indices in sorted order.
func renumbered(elements map[nft.Value]nft.Element) map[nft.Value]nft.Element {
	indices, pools := map[nft.Value][]int{}, map[nft.Value][]nft.Element{}
	for _, key := range slices.Sorted(maps.Keys(elements)) {
		prefix, i := key.SplitIndex()
		indices[prefix], pools[prefix] = append(indices[prefix], i), append(pools[prefix], elements[key])
	}
	next := make(map[nft.Value]nft.Element, len(elements))
	for prefix, list := range pools {
		slices.SortFunc(list, func(a, b nft.Element) int { return a.Data.Compare(b.Data) })
		slices.Sort(indices[prefix])
		for i, e := range list {
			e.Key = prefix.WithIndex(indices[prefix][i])
			next[e.Key] = e
		}
	}
	return next
}
