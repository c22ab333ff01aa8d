package kernel_test

import (
	"fmt"
	"sync"
	"testing"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
)

// generations counts transactions: those that one Conn counts, and all of them, by another
// Conn that sweeps nothing.
type generations struct{ c, other *kernel.Conn }

func (g generations) during(t *testing.T, do func()) (seen, all uint32) {
	t.Helper()
	read := func() (seen, all uint32) {
		seen, err := g.c.Generation()
		must(t, err)
		all, err = g.other.Generation()
		must(t, err)
		return seen, all
	}
	seenBefore, allBefore := read()
	do()
	seen, all = read()
	return seen - seenBefore, all - allBefore
}

// sweepDuring sweeps the map of the IPv4 table, and calls a function after the first
// entry.
func sweepDuring(t *testing.T, c *kernel.Conn, set *nft.Set, during func(), stale ...int) {
	t.Helper()
	once, keep := sync.OnceFunc(during), unlessEndpoint(nft.IPv4, stale...)
	_, _, err := c.Sweep(t.Context(), table(nft.IPv4), set, func(key, data nft.Value) bool {
		once()
		return keep(key, data)
	})
	must(t, err)
}

// forgetting deletes the elements of the clients below a number for an endpoint.
func forgetting(c *kernel.Conn, set *nft.Set, below, endpoint int) error {
	var gone []nft.OwnedElement
	for i := endpoint; i < below; i += 10 {
		gone = append(gone, owned("", nft.Element{Set: set.Name, Key: remembered(nft.IPv4, i).Key}))
	}
	return c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteElements{Table: table(nft.IPv4), Set: set, Elements: gone}}})
}

// Where others can change our table, Generation counts their transactions and not those of
// Sweep. It does so even in the middle of a sweep, and if others do what Sweep was about to do.
func TestGenerationLeavesOutSweeps(t *testing.T) {
	const clients = 10_000
	for name, hide := range map[string]func(*kernel.Conn){
		"before Linux 6.3": (*kernel.Conn).HideDestroy,
		"before Linux 6.9": func(*kernel.Conn) {},
	} {
		t.Run(name, func(t *testing.T) {
			ns, c := open(t)
			c.HideOwnership()
			hide(c)
			g := generations{c, openIn(t, ns)}
			p := everything()
			must(t, c.Apply(load(p)))
			set := p.IPv4.Set("affinity")
			must(t, c.Remember(table(nft.IPv4), set, rememberedBy(nft.IPv4, 0, clients)))
			nothing := func() {}
			chains := 0
			foreign := func() {
				chains++
				chain := &nft.Chain{Name: fmt.Sprint("foreign-", chains)}
				must(t, g.other.Apply(nft.Batch{Ops: []nft.Op{nft.AddChain{Table: table(nft.IPv4), Chain: chain}}}))
			}
			for _, step := range []struct {
				what string
				do   func()
				// all is the least number: a sweep makes more if a dump leaves out entries.
				seen, all uint32
			}{
				{"nothing stale", func() { sweepDuring(t, c, set, nothing) }, 0, 0},
				{"1000 stale entries", func() { sweepDuring(t, c, set, nothing, 3) }, 0, 2},
				{"a foreign transaction", foreign, 1, 1},
				{"one during a sweep", func() { sweepDuring(t, c, set, foreign, 4) }, 1, 3},
				{"one that deletes all that is stale", func() {
					sweepDuring(t, c, set, func() { must(t, forgetting(g.other, set, clients, 5)) }, 5)
				}, 1, 1},
				{"one that deletes half of it", func() {
					sweepDuring(t, c, set, func() { must(t, forgetting(g.other, set, clients, 6)) }, 6, 7)
				}, 1, 3},
				{"a sweep after all that", func() { sweepDuring(t, c, set, nothing, 8) }, 0, 2},
			} {
				if seen, all := g.during(t, step.do); seen != step.seen || all < step.all {
					t.Errorf("%s: %d transactions are seen of %d, want %d of %d", step.what, seen, all, step.seen, step.all)
				}
			}
		})
	}
}

// In an owned table a sweep may make no transaction. There Generation counts all.
func TestGenerationWithAnOwnedTable(t *testing.T) {
	ns, c := open(t)
	g := generations{c, openIn(t, ns)}
	p := everything()
	must(t, c.Apply(load(p)))
	withOwnership(t, ns, c)
	set := p.IPv4.Set("affinity")
	const clients = 1000
	must(t, c.Remember(table(nft.IPv4), set, rememberedBy(nft.IPv4, 0, clients)))
	for _, step := range []struct {
		what   string
		stale  int
		during func()
	}{
		{"a sweep", 3, func() {}},
		{"one that is too late for its own", 4, func() { must(t, forgetting(c, set, clients, 4)) }},
	} {
		seen, all := g.during(t, func() { sweepDuring(t, c, set, step.during, step.stale) })
		if seen != all || all == 0 {
			t.Errorf("%s: %d transactions are seen of %d", step.what, seen, all)
		}
	}
}
