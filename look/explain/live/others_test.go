package live_test

import (
	"net/netip"
	"strings"
	"testing"

	"nftproxy/look/explain"
	"nftproxy/look/explain/live"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/test/gen"
)

// TestIgnoredBesideAnotherTable: what is ignored of the objects is named where the table of another nftproxy answers.
func TestIgnoredBesideAnotherTable(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader(`node node-1
service shop/cart created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.10
  port http tcp 80
`))
	if err != nil {
		t.Fatal(err)
	}
	empty := s
	empty.Services = empty.Services.Delete("shop/cart")
	for _, other := range []bool{false, true} {
		tables := ruleset.Compile(ruleset.Config{Table: "nftproxy"}, s).Model()
		if other {
			tables = ruleset.Compile(ruleset.Config{Table: "nftproxy"}, empty).Model()
		}
		node := live.NewNode(tables, "nftproxy", func(netip.Addr) (hostaddr.Route, error) {
			return hostaddr.Route{Device: "eth0"}, nil
		})
		if other {
			node.AddOther(ruleset.Compile(ruleset.Config{Table: "second"}, s).Model(), "second")
		}
		node.Ignore(explain.IgnoredSlice{Namespace: "shop", Name: "cart-1", Why: "no such Service"})
		q, err := node.Ask(explain.Origin{Addr: netip.MustParseAddr("10.244.0.9")},
			explain.Destination{To: netip.MustParseAddrPort("10.96.0.10:80"), Protocol: 6})
		if err != nil {
			t.Fatal(err)
		}
		e, err := node.Explain(t.Context(), q, &s, nil, "the objects")
		if err != nil {
			t.Fatal(err)
		}
		if text := e.Text(false); !strings.Contains(text, "EndpointSlice shop/cart-1 is ignored: no such Service") ||
			strings.Contains(text, "table ip second takes the packet") != other {
			t.Errorf("another table: %t:\n%s", other, text)
		}
	}
}
