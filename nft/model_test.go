package nft_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// TestModelRefuses: the model refuses what a kernel refuses. Then it has nothing of the
// batch.
func TestModelRefuses(t *testing.T) {
	program := oneVerdict("shared-1")
	program.IPv4.Parts = program.IPv4.Parts.Set("pool", nft.NewPart(nil, []nft.Pool{pool(nft.IPv4, 6, 1, 2)}))
	table := program.IPv4
	id, set := table.ID(), table.Set
	port := func(n uint16) nft.Value { return nft.Value(nft.AppendPort(nil, n)) }
	elements := func(e nft.Element) []nft.OwnedElement { return []nft.OwnedElement{{Element: e}} }
	drop, toNowhere := nft.Verdict{Code: nft.Drop}, nft.Verdict{Code: nft.Goto, Chain: "nowhere"}
	for name, c := range map[string]struct {
		op   nft.Op
		want error // nil: any error
	}{
		"delete a missing table": {nft.DeleteTable{Table: nft.TableID{Family: nft.IPv4, Name: "other"}},
			strict.ErrNotFound},
		"set in a missing table": {nft.AddSet{Table: nft.TableID{Family: nft.IPv4, Name: "other"},
			Set: set(plainSet)}, strict.ErrNotFound},
		"set that is there":   {nft.AddSet{Table: id, Set: set(plainSet)}, strict.ErrExists},
		"chain that is there": {nft.AddChain{Table: id, Chain: table.Chains.At("dispatch")}, strict.ErrExists},
		"rules for a missing chain": {nft.AddRules{Table: id, Chain: &nft.Chain{Name: "nowhere"}},
			strict.ErrNotFound},
		"flush a missing chain":               {nft.FlushChain{Table: id, Chain: "nowhere"}, strict.ErrNotFound},
		"delete a missing chain":              {nft.DeleteChain{Table: id, Chain: "nowhere"}, strict.ErrNotFound},
		"delete a chain that a rule jumps to": {nft.DeleteChain{Table: id, Chain: "dispatch"}, strict.ErrBusy},
		"delete a chain in a verdict map":     {nft.DeleteChain{Table: id, Chain: "shared-1"}, strict.ErrBusy},
		"jump to a base chain": {nft.AddRules{Table: id, Chain: &nft.Chain{Name: "shared-1", Rules: []nft.Rule{
			{nft.Verdict{Code: nft.Jump, Chain: "prerouting"}},
		}}}, nil},
		"look up in a missing map": {nft.AddRules{Table: id, Chain: &nft.Chain{Name: "shared-1", Rules: []nft.Rule{
			{nft.VMap{Key: nft.Fields{nft.Dport}, Map: "nowhere"}},
		}}}, strict.ErrNotFound},
		"take a map for a set": {nft.AddRules{Table: id, Chain: &nft.Chain{Name: "shared-1", Rules: []nft.Rule{
			{nft.InSet{Key: nft.Fields{nft.Dport}, Set: verdicts}},
		}}}, strict.ErrNotFound},
		"verdict to a missing chain": {nft.AddElements{Table: id, Set: set(verdicts), Elements: elements(nft.Element{
			Set: verdicts, Key: port(81), Verdict: toNowhere,
		})}, strict.ErrBusy},
		"key with another verdict": {nft.AddElements{Table: id, Set: set(verdicts), Elements: elements(nft.Element{
			Set: verdicts, Key: port(80), Verdict: drop,
		})}, strict.ErrExists},
		"key with other data": {nft.AddElements{Table: id, Set: set(pools), Elements: elements(nft.Element{
			Set: pools, Key: pool(nft.IPv4, 6).Prefix.WithIndex(0), Data: poolTarget(nft.IPv4, 9),
		})}, strict.ErrExists},
		"delete a missing element": {nft.DeleteElements{Table: id, Set: set(verdicts), Elements: elements(nft.Element{
			Set: verdicts, Key: port(81),
		})}, strict.ErrNotFound},
		"element of a missing set": {nft.AddElements{Table: id, Set: &nft.Set{Name: "nowhere"},
			Elements: elements(nft.Element{})}, strict.ErrNotFound},
		"key of another length": {nft.AddElements{Table: id, Set: set(plainSet), Elements: elements(nft.Element{
			Set: plainSet, Key: address(nft.IPv6, 1),
		})}, nil},
		"verdict map without verdict": {nft.AddElements{Table: id, Set: set(verdicts), Elements: elements(nft.Element{
			Set: verdicts, Key: port(81),
		})}, nil},
		"long comment": {nft.AddElements{Table: id, Set: set(plainSet), Elements: elements(nft.Element{
			Set: plainSet, Key: address(nft.IPv4, 1), Comment: strings.Repeat("x", nft.MaxComment+1),
		})}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := program.Model()
			before := m.String()
			good := nft.AddElements{Table: id, Set: set(plainSet),
				Elements: elements(nft.Element{Set: plainSet, Key: address(nft.IPv4, 7)})}
			err := strict.Apply(m, nft.Batch{Ops: []nft.Op{good, c.op}})
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("err %v, want %v", err, c.want)
			}
			if diff := cmp.Diff(before, m.String()); diff != "" {
				t.Errorf("something is in (-before +after):\n%s", diff)
			}
			if err := strict.Apply(m, nft.Batch{Ops: []nft.Op{good}}); err != nil {
				t.Errorf("the rest alone: %v", err)
			}
		})
	}
}

// TestModelAllows: the model allows what a kernel allows, where one might doubt it.
func TestModelAllows(t *testing.T) {
	program := oneVerdict("shared-1")
	table := program.IPv4
	verdict := nft.OwnedElement{Element: nft.Element{
		Set: verdicts, Key: nft.Value(nft.AppendPort(nil, 80)), Verdict: nft.Verdict{Code: nft.Goto, Chain: "shared-1"},
	}}
	elements := []nft.OwnedElement{verdict}
	for name, ops := range map[string][]nft.Op{
		"add a table that is there":    {nft.AddTable{Table: table.ID()}},
		"add an element that is there": {nft.AddElements{Table: table.ID(), Set: table.Set(verdicts), Elements: elements}},
		"delete an element and add it again": {
			nft.DeleteElements{Table: table.ID(), Set: table.Set(verdicts), Elements: elements},
			nft.AddElements{Table: table.ID(), Set: table.Set(verdicts), Elements: elements},
		},
		"delete an element and its chain": {
			nft.DeleteElements{Table: table.ID(), Set: table.Set(verdicts), Elements: elements},
			nft.DeleteChain{Table: table.ID(), Chain: "shared-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := strict.Apply(program.Model(), nft.Batch{Ops: ops}); err != nil {
				t.Error(err)
			}
		})
	}
}
