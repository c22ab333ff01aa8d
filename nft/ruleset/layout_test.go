package ruleset_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

// TestLayout: tables of this layout and the one before tell what they serve, those of any other
// layout nothing. The next sync changes the number, and no rule that a packet meets.
func TestLayout(t *testing.T) {
	s, err := gen.ReadSnapshot(strings.NewReader("node node-0\nservice default/web created 2026-01-01T00:00:00Z\n  " +
		"cluster-ip 10.96.0.1\n  port http tcp 80\n    endpoint 10.0.0.1:8080 node-0 ready serving\n"))
	must(t, err)
	p := ruleset.Compile(ruleset.Config{Table: ruleset.DefaultTable}, s)
	current := fmt.Sprintf("layout-%d", ruleset.Layout)
	for _, test := range []struct {
		chains []string
		layout int
		served int
	}{
		{[]string{current}, ruleset.Layout, 1},
		{nil, 0, 1}, // of a version that wrote no number
		{[]string{"layout-0"}, 0, 1},
		{[]string{"layout-x", "layout--4"}, 0, 1}, // another program's
		{[]string{"layout-9"}, 9, 0},
		{[]string{current, "layout-9"}, 9, 0},
	} {
		t.Run(strings.Join(test.chains, " "), func(t *testing.T) {
			had := p.Model()
			for _, f := range nft.Families() {
				c := had.Table(nft.TableID{Family: f, Name: ruleset.DefaultTable})
				delete(c.Chains, current)
				for _, name := range test.chains {
					c.Chains[name] = &nft.Chain{Name: name}
				}
				if n := ruleset.LayoutOf(c); n != test.layout {
					t.Errorf("layout %d, want %d", n, test.layout)
				}
			}
			if n := ruleset.ReadBack(had, ruleset.DefaultTable, &service.Node{Name: "node-0"}).Services.Len(); n != test.served {
				t.Errorf("%d Services, want %d", n, test.served)
			}
			b, state := nft.Adopt(had, p).Plan(p, time.Time{})
			later, _ := state.Plan(p, time.Time{}.Add(time.Hour))
			for _, op := range append(b.Ops, later.Ops...) {
				text := fmt.Sprintf("%+v", op)
				if add, ok := op.(nft.AddChain); ok {
					text = add.Chain.Name
				}
				if !strings.Contains(text, "layout-") {
					t.Errorf("the sync changes something else: %T %s", op, text)
				}
			}
		})
	}
}
