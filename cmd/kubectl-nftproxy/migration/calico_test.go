package migration

import (
	"errors"
	"testing"
	"time"
)

// TestNFTablesMode: which FelixConfiguration counts for the node a.
func TestNFTablesMode(t *testing.T) {
	item := func(age int, name, selector, mode string) (c felixConfiguration) {
		c.Metadata.Name, c.Spec.NodeSelector, c.Spec.NFTablesMode = name, selector, mode
		c.Metadata.CreationTimestamp.Time = time.Unix(1e9, 0).Add(-time.Duration(age) * time.Second)
		return c
	}
	type listOf = []felixConfiguration
	standard := func(mode string) felixConfiguration { return item(9, "default", "", mode) }
	const all, some = "all()", "has(gpu)"
	for name, c := range map[string]struct {
		list  listOf
		want  string
		fails bool
	}{
		"none":                    {nil, "", false},
		"default":                 {listOf{standard("Auto")}, "Auto", false},
		"a selector of default":   {listOf{item(1, "default", all, "Auto")}, "Auto", false},
		"the node's own":          {listOf{item(1, "node.a", "", "Auto"), item(2, "x", all, "Enabled")}, "Auto", false},
		"the node's own, no mode": {listOf{item(1, "node.a", "", ""), item(2, "x", all, "Enabled")}, "Enabled", false},
		"another node's":          {listOf{standard("Auto"), item(3, "node.b", all, "Enabled")}, "Auto", false},
		"all":                     {listOf{standard("Auto"), item(1, "x", " all( )", "Enabled")}, "Enabled", false},
		"all, no mode":            {listOf{standard("Auto"), item(2, "x", all, ""), item(1, "y", all, "x")}, "Auto", false},
		"two, the older":          {listOf{item(1, "x", all, "Auto"), item(2, "y", all, "Enabled")}, "Enabled", false},
		"two of a second":         {listOf{item(1, "y", all, "Auto"), item(1, "x", all, "Enabled")}, "Enabled", false},
		"an older one of some":    {listOf{item(2, "x", some, "Auto"), item(1, "y", all, "Enabled")}, "", true},
		"older, without a mode":   {listOf{item(2, "x", some, ""), item(1, "y", all, "Enabled")}, "", true},
		"without a mode but default": {listOf{item(2, "x", some, ""), item(1, "y", all, "Enabled"),
			standard("Enabled")}, "Enabled", false},
		"a younger one of some": {listOf{item(1, "x", some, "Auto"), item(2, "y", all, "Enabled")}, "Enabled", false},
		"some, no all":          {listOf{item(1, "x", some, "Auto"), standard("Enabled")}, "", true},
		"all say the same":      {listOf{item(2, "x", some, "enabled"), standard("Enabled")}, "Enabled", false},
	} {
		got, err := nftablesMode(c.list, "a")
		if got != c.want || errors.Is(err, errSelector) != c.fails {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}
