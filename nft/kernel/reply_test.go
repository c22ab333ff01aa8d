package kernel

import (
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// A kernel that lacks an expression answers ENOENT with the expression's offset.
func TestLackingExpression(t *testing.T) {
	id := nft.TableID{Family: nft.IPv4, Name: "t"}
	rule := nft.Rule{nft.MatchLocal{Field: nft.Daddr}, nft.Verdict{Code: nft.Goto, Chain: "x"}}
	b := nft.Batch{Ops: []nft.Op{nft.AddTable{Table: id},
		nft.AddRules{Table: id, Chain: &nft.Chain{Name: "c", Rules: []nft.Rule{rule}}}}}
	var e batchEncoder
	e.reset(100, nil, false)
	if err := e.addBatch(b); err != nil {
		t.Fatal(err)
	}
	var offsets []int
	at := len(e.B) - e.spans[1].at - len(expressionsOf(t, rule))
	for _, item := range expressionsOf(t, rule).All() {
		offsets = append(offsets, at)
		at += nfnetlink.AttributeAt + nfnetlink.Align(len(item))
	}
	for i, want := range []string{`the kernel has no nftables expression "fib", nor a module for it`,
		`the kernel has no nftables expression "cmp", nor a module for it`, ""} {
		got := e.opError(b, nfnetlink.Answer{Seq: 101, Errno: unix.ENOENT, Offset: offsets[i]})
		if got.Hint != want {
			t.Errorf("hint for expression %d is %q, not %q", i, got.Hint, want)
		}
	}
	if got := e.opError(b, nfnetlink.Answer{Seq: 101, Errno: unix.ENOENT, Offset: -1}); got.Hint != "" || got.Table != id {
		t.Errorf("without offset: %+v", got)
	}
}

func expressionsOf(t *testing.T, r nft.Rule) nfnetlink.Attributes {
	t.Helper()
	var e encoder
	if err := e.addRule(r, nft.IPv4); err != nil {
		t.Fatal(err)
	}
	return e.B[nfnetlink.AttributeAt:]
}

// Decoders rely on well-formed datagrams of the kernel, but no datagram makes them
// panic.
func FuzzDecode(f *testing.F) {
	id := nft.TableID{Family: nft.IPv4, Name: "t"}
	set := &nft.Set{Name: "s", Key: nft.Fields{nft.Dport}, Verdicts: true}
	var e batchEncoder
	e.reset(1, nil, false)
	err := e.addBatch(nft.Batch{Ops: []nft.Op{
		nft.AddSet{Table: id, Set: set},
		nft.AddRules{Table: id, Chain: &nft.Chain{Name: "c", Rules: []nft.Rule{{nft.MatchProto{Protocol: 6}, nft.Reject{}}}}},
		nft.AddElements{Table: id, Set: set, Elements: []nft.OwnedElement{{Element: nft.Element{
			Set: "s", Key: "\x00P\x00\x00", Verdict: nft.Verdict{Code: nft.Goto, Chain: "c"}, Comment: "x"}}}},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(e.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		want := expressionsOf(t, nft.Rule{nft.MatchProto{Protocol: 6}, nft.Reject{}})
		for m := range nfnetlink.Messages(b) {
			m.Answer()
			_ = m.Err()
			attrs := m.Attributes()
			declaredAs(attrs, set, id.Family)
			r := tableReader{want: &nft.Table{Family: id.Family, Name: id.Name}}
			r.chainOf(attrs)
			sameExpressions(want, attrs.Get(unix.NFTA_RULE_EXPRESSIONS))
			d := elementDecoder{set: set, shape: shapeOf(set, id.Family), chains: map[string]string{}}
			d.gather(attrs.Get(unix.NFTA_SET_ELEM_LIST_ELEMENTS))
			d.keep(map[nft.Value]nft.Element{})
		}
	})
}
