package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
)

// Diff is how the model differs from the program in the program's tables: - is missing in
// the model, + is only there. It is empty if nothing differs. A pool's indices have to run
// from 0 to n-1, in any order of the targets. Diff ignores:
//   - the elements of dynamic maps, which no program has;
//   - the size of a set with MinSize;
//   - objects of time-outs that the program does not have: they stay as long as the table;
//   - sets, and chains without hook, that the program does not have: Plan keeps idle ones for
//     a while (see Idle).
func Diff(want *nft.Program, got *nft.Model) string {
	var have, wanted []string
	for _, f := range nft.Families() {
		t := want.Table(f)
		wanted = append(wanted, tableLines(t, want.Model().Table(t.ID()))...)
		have = append(have, tableLines(t, got.Table(t.ID()))...)
	}
	if slices.Equal(wanted, have) { // cmp.Diff takes a hundred times as long
		return ""
	}
	return cmp.Diff(wanted, have)
}

// Idle lists the chains without hook and the sets that the model has and the
// program does not, as "family chain" and "family set", sorted.
func Idle(want *nft.Program, got *nft.Model) []string {
	var idle []string
	for _, f := range nft.Families() {
		t := want.Table(f)
		c := got.Table(t.ID())
		if c == nil {
			continue
		}
		for name, chain := range c.Chains {
			if _, ok := t.Chains.Get(name); !ok && chain.Hook == nil {
				idle = append(idle, nameInFamily(c, name))
			}
		}
		for name := range c.Sets {
			if t.Set(name) == nil {
				idle = append(idle, nameInFamily(c, name))
			}
		}
	}
	slices.Sort(idle)
	return idle
}

func nameInFamily(c *nft.Contents, name string) string { return c.Table.Family.String() + " " + name }

// tableLines is the table's contents, one fact a line, without what is idle; nothing for a
// missing table.
func tableLines(want *nft.Table, c *nft.Contents) []string {
	if c == nil {
		return nil
	}
	id := c.Table
	all := []string{"table " + id.String()}
	for _, name := range slices.Sorted(maps.Keys(c.Timeouts)) {
		if _, wanted := want.Timeouts.Get(name); wanted {
			all = append(all, nft.AddTimeout{Table: id, Timeout: c.Timeouts[name]}.Text())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
		if want.Set(name) != nil {
			all = append(all, setLines(id, want.Set(name), c.Sets[name])...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Chains)) {
		chain := c.Chains[name]
		if _, wanted := want.Chains.Get(name); wanted || chain.Hook != nil {
			all = append(all, nft.AddChain{Table: id, Chain: chain}.Text(), nft.AddRules{Table: id, Chain: chain}.Text())
		}
	}
	return all
}

func setLines(id nft.TableID, want *nft.Set, s *nft.SetContents) []string {
	declared := *s.Set
	if want != nil && want.MinSize > 0 {
		declared.Size = 0
	}
	all := []string{nft.AddSet{Table: id, Set: &declared}.Text()}
	if s.Set.Dynamic {
		return all
	}
	keys := slices.Sorted(maps.Keys(s.Elements))
	if fields := s.Set.Key; fields[len(fields)-1] == nft.Index {
		return append(all, poolLines(id, s, keys)...)
	}
	for _, key := range keys {
		e := s.Elements[key]
		text := s.Set.Key.Format(id.Family, key)
		if s.Set.Interval {
			text = s.Set.Key.FormatRange(id.Family, key, e.KeyEnd)
		}
		all = append(all, fmt.Sprintf("%s %s: %s : %s %s %q", id, s.Set.Name,
			text, s.Set.Data.Format(id.Family, e.Data), e.Verdict, e.Comment))
	}
	return all
}

// poolLines has one line for each pool. It sorts the indices and, on their own, the
// targets.
func poolLines(id nft.TableID, s *nft.SetContents, keys []nft.Value) []string {
	indices, targets := map[nft.Value][]int{}, map[nft.Value][]string{}
	for _, key := range keys {
		prefix, i := key.SplitIndex()
		e := s.Elements[key]
		indices[prefix] = append(indices[prefix], i)
		targets[prefix] = append(targets[prefix], fmt.Sprintf("%s %q", s.Set.Data.Format(id.Family, e.Data), e.Comment))
	}
	fields := s.Set.Key[:len(s.Set.Key)-1]
	var all []string
	for _, prefix := range slices.Sorted(maps.Keys(indices)) {
		slices.Sort(indices[prefix])
		slices.Sort(targets[prefix])
		all = append(all, fmt.Sprintf("%s %s: %s %v : %s", id, s.Set.Name,
			fields.Format(id.Family, prefix), indices[prefix], strings.Join(targets[prefix], ", ")))
	}
	return all
}
