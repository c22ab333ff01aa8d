package nft_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/test/check/strict"
	"nftproxy/test/gen"
)

// wayTable has a chain with three endpoints, of which the second is missing, and rules of others.
func wayTable(rules ...nft.Rule) *nft.Model {
	key := nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport}
	c := nft.NewContents(nft.TableID{Family: nft.IPv4, Name: "t"})
	endpoints := &nft.SetContents{Set: &nft.Set{Name: "endpoints", Key: append(key, nft.Index),
		Data: nft.Fields{nft.Daddr, nft.Dport}}, Elements: map[nft.Value]nft.Element{}}
	at := nft.Value(nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, netip.MustParseAddr("10.96.0.1")), 6), 80))
	for _, i := range []int{0, 2} {
		data := nft.AppendPort(nft.AppendAddr(nil, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})), 8080)
		e := nft.Element{Set: "endpoints", Key: at.WithIndex(i), Data: nft.Value(data)}
		endpoints.Elements[e.Key] = e
	}
	c.Sets["endpoints"] = endpoints
	c.Sets["unrecognised"] = &nft.SetContents{Set: &nft.Set{Name: "unrecognised"}, Elements: map[nft.Value]nft.Element{}}
	c.Chains["prerouting"] = &nft.Chain{Name: "prerouting", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -100},
		Rules: append(rules, nft.Rule{nft.Verdict{Code: nft.Goto, Chain: "endpoints-3"}})}
	c.Chains["endpoints-3"] = &nft.Chain{Name: "endpoints-3", Rules: []nft.Rule{
		{nft.DNAT{Key: key, Mod: 3, Map: "endpoints"}}, {nft.DNAT{Key: key, Mod: 1, Map: "endpoints"}},
		{nft.Verdict{Code: nft.Drop}},
	}}
	m := nft.NewModel()
	m.Put(c)
	return m
}

// waysText is a line for each step and for each end.
func waysText(ways []nft.Way) string {
	var b strings.Builder
	for _, w := range ways {
		for _, s := range w.Steps {
			fmt.Fprintf(&b, "%s %s %d matched=%t last=%d unknown=%t", s.Hook, s.Chain, s.Number, s.Matched, s.Last, s.Unknown)
			for _, l := range s.Lookups {
				fmt.Fprintf(&b, " [%s %s %t]", l.Set.Name, l.Fields.Format(nft.IPv4, l.Key), l.Found)
			}
			b.WriteString("\n")
		}
		for _, e := range w.Ends {
			fmt.Fprintf(&b, "= %s %.3f\n", e.Result, e.Chance)
		}
	}
	return b.String()
}

func TestWays(t *testing.T) {
	packet, err := gen.ParsePacket("10.0.0.9:1000 -> 10.96.0.1:80/tcp")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := func(netip.Addr) bool { return false }
	from := func(prefix string) nft.Statement {
		return nft.MatchAddr{Field: nft.Saddr, Prefix: netip.MustParsePrefix(prefix)}
	}
	const endpoints = `prerouting endpoints-3 1 matched=true last=0 unknown=false [endpoints 10.96.0.1 . tcp . 80 . 0 true]
= 10.0.0.1:8080 0.333
= 10.0.0.3:8080 0.333
`
	const missing = `prerouting endpoints-3 1 matched=false last=0 unknown=false [endpoints 10.96.0.1 . tcp . 80 . 1 false]
prerouting endpoints-3 2 matched=true last=0 unknown=false [endpoints 10.96.0.1 . tcp . 80 . 0 true]
= 10.0.0.1:8080 0.333
`
	goOn := func(number int) string {
		return fmt.Sprintf("prerouting prerouting %d matched=true last=0 unknown=false\n", number)
	}
	for _, c := range []struct {
		name  string
		rules []nft.Rule
		want  string
	}{
		{"a missing element", nil, goOn(1) + endpoints + goOn(1) + missing},
		{"an unknown rule that cannot match", []nft.Rule{{from("10.1.0.0/16"), nft.Unknown{}}},
			"prerouting prerouting 1 matched=false last=0 unknown=false\n" + goOn(2) + endpoints +
				"prerouting prerouting 1 matched=false last=0 unknown=false\n" + goOn(2) + missing},
		{"an unknown rule that may match", []nft.Rule{{from("10.0.0.0/16"), nft.Unknown{}}},
			"prerouting prerouting 1 matched=true last=1 unknown=true\n= undecided 1.000\n"},
		{"a set that was not recognised", []nft.Rule{{nft.InSet{Key: nft.Fields{nft.Saddr}, Set: "unrecognised"}}},
			"prerouting prerouting 1 matched=true last=0 unknown=true\n= undecided 1.000\n"},
		{"a verdict that no program has", []nft.Rule{{nft.Verdict{Code: -1}}},
			"prerouting prerouting 1 matched=true last=0 unknown=true\n= undecided 1.000\n"},
		{"a chain that is not there", []nft.Rule{{nft.Verdict{Code: nft.Jump, Chain: "gone"}}},
			"prerouting prerouting 1 matched=true last=0 unknown=true\n= undecided 1.000\n"},
	} {
		ways, complete := wayTable(c.rules...).Ways(t.Context(), packet, nowhere)
		if diff := cmp.Diff(c.want, waysText(ways)); diff != "" || !complete {
			t.Errorf("%s: complete %t (-want +got):\n%s", c.name, complete, diff)
		}
		sum := 0.0
		for i := range ways {
			sum += ways[i].Chance()
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("%s: the chances add up to %v", c.name, sum)
		}
	}
}

// TestManyJumps: chains that jump to the next one ten times each end the walk, in bounded
// time and memory.
func TestManyJumps(t *testing.T) {
	const chains = 14
	jumps := func(to int) []nft.Rule {
		return slices.Repeat([]nft.Rule{{nft.Verdict{Code: nft.Jump, Chain: fmt.Sprint("again-", to)}}}, 10)
	}
	m := wayTable(jumps(0)...)
	c := m.Table(nft.TableID{Family: nft.IPv4, Name: "t"})
	for i := range chains {
		name := fmt.Sprint("again-", i)
		c.Chains[name] = &nft.Chain{Name: name, Rules: jumps(i + 1)}
	}
	last := fmt.Sprint("again-", chains)
	c.Chains[last] = &nft.Chain{Name: last, Rules: []nft.Rule{{nft.Counter{}}}}
	if err := strict.Apply(m, nft.Batch{}); err != nil {
		t.Fatal(err)
	}
	packet := nft.Packet{Src: netip.MustParseAddrPort("10.0.0.9:1"), Dst: netip.MustParseAddrPort("10.96.0.1:80"),
		Protocol: 6}
	ways, _ := m.Ways(t.Context(), packet, func(netip.Addr) bool { return false })
	if text := waysText(ways); !strings.HasSuffix(text, "= undecided 1.000\n") {
		t.Errorf("%d ways, that end:\n%s", len(ways), text[max(0, len(text)-300):])
	}
}
