package kernel_test

import (
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
)

// nested is a batch with a base chain and so many chains behind it, one behind the other: each is
// reached by a rule or by a map. The last one leads back, if loop is set.
func nested(depth int, byMap, loop bool) nft.Batch {
	id := table(nft.IPv4)
	b := nft.Batch{Ops: []nft.Op{nft.AddTable{Table: id}}}
	name := func(i int) string { return fmt.Sprintf("level-%d", i) }
	chain := func(i int) *nft.Chain {
		if i == 0 {
			return &nft.Chain{Name: name(0), Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100}}
		}
		return &nft.Chain{Name: name(i)}
	}
	for i := range depth + 1 {
		b.Ops = append(b.Ops, nft.AddChain{Table: id, Chain: chain(i)})
	}
	lead := func(from, to int) {
		c := *chain(from)
		set := &nft.Set{Name: fmt.Sprintf("map-%d", from), Key: nft.Fields{nft.Dport}, Verdicts: true}
		c.Rules = []nft.Rule{{jump(name(to))}}
		if byMap {
			c.Rules = []nft.Rule{{nft.VMap{Key: set.Key, Map: set.Name}}}
			b.Ops = append(b.Ops, nft.AddSet{Table: id, Set: set})
		}
		b.Ops = append(b.Ops, nft.AddRules{Table: id, Chain: &c})
		if byMap {
			e := nft.Element{Set: set.Name, Key: nft.Value(nft.AppendPort(nil, 80)), Verdict: goTo(name(to))}
			b.Ops = append(b.Ops, nft.AddElements{Table: id, Set: set, Elements: []nft.OwnedElement{{Element: e}}})
		}
	}
	for i := range depth {
		lead(i, i+1)
	}
	if loop {
		lead(depth, 1)
	}
	return b
}

// TestNesting: the model takes chains that lead to each other as deeply as the kernel does.
func TestNesting(t *testing.T) {
	for _, byMap := range []bool{false, true} {
		for _, test := range []struct {
			depth       int
			loop, taken bool
		}{{1, false, true}, {15, false, true}, {16, false, false}, {20, false, false}, {2, true, false}, {15, true, false}} {
			_, c := open(t)
			b := nested(test.depth, byMap, test.loop)
			inKernel, inModel := c.Apply(b), strict.Apply(nft.NewModel(), b)
			refused := errors.Is(inKernel, unix.EMLINK) || errors.Is(inKernel, unix.ELOOP)
			if (inKernel == nil) != test.taken || refused == test.taken || (inModel == nil) != test.taken ||
				errors.Is(inModel, strict.ErrNesting) == test.taken {
				t.Errorf("%+v, by maps %t: the kernel says %v, the model %v", test, byMap, inKernel, inModel)
			}
		}
	}
}
