// Package nfttest promises the comparison that tests of programs, plans and
// loops need: does a model hold what a program describes, whatever order its
// pools have come to?
//
// It compares by value and in plain text, and makes no assertion itself.
package nfttest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
)

// Diff is what the model lacks (-) and has too much (+) compared with the
// program in the program's tables; empty if nothing. The order of the targets inside a pool is not
// compared, but the indices have to run from 0 to n-1. What dynamic maps have
// learned is passed over, since it is no part of a program, and so is the size of
// a set that has room. Chains without hook
// that the program does not have are passed over: Plan keeps idle ones for a
// while, see IdleChains.
func Diff(want *nft.Program, got *nft.Model) string {
	var have, wanted []string
	for _, f := range nft.Families() {
		t := want.Table(f)
		wanted = append(wanted, lines(t, want.Model().Table(t.ID()), nil)...)
		have = append(have, lines(t, got.Table(t.ID()), IdleChains(want, got))...)
	}
	if slices.Equal(wanted, have) { // cmp takes a hundred times as long
		return ""
	}
	return cmp.Diff(wanted, have)
}

// IdleChains lists the chains without hook that the model has and the program
// does not, as "family chain", sorted.
func IdleChains(want *nft.Program, got *nft.Model) []string {
	var idle []string
	for _, f := range nft.Families() {
		t := want.Table(f)
		c := got.Table(t.ID())
		if c == nil {
			continue
		}
		for name, chain := range c.Chains {
			if _, ok := t.Chains.Get(name); !ok && chain.Hook == nil {
				idle = append(idle, chainName(c, name))
			}
		}
	}
	slices.Sort(idle)
	return idle
}

func chainName(c *nft.Contents, name string) string { return c.Table.Family.String() + " " + name }

// lines is a table that is to be as wanted, one fact a line; none for a table that
// is not there.
func lines(want *nft.Table, c *nft.Contents, without []string) []string {
	if c == nil {
		return nil
	}
	id := c.Table
	all := []string{"table " + id.String()}
	for _, name := range slices.Sorted(maps.Keys(c.Sets)) {
		all = append(all, setLines(id, want.Set(name), c.Sets[name])...)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Chains)) {
		if !slices.Contains(without, chainName(c, name)) {
			chain := c.Chains[name]
			all = append(all, nft.AddChain{Table: id, Chain: chain}.Text(), nft.AddRules{Table: id, Chain: chain}.Text())
		}
	}
	return all
}

func setLines(id nft.TableID, want *nft.Set, s *nft.SetContents) []string {
	declared := *s.Set
	if want != nil && want.Room > 0 {
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

// poolLines has one line for each pool, with the indices and the targets each
// sorted on their own.
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
