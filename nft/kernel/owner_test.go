package kernel_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// withOwnership skips the test where the kernel has no ownership (before Linux 6.9). Where it has,
// the Conn must own its tables.
func withOwnership(t *testing.T, ns *testnet.Namespace, c *kernel.Conn) {
	t.Helper()
	has, err := netfilter.OwnedTables(ns.Fd())
	must(t, err)
	for _, f := range nft.Families() {
		if owned, err := c.Owned(table(f)); err != nil || owned != has {
			t.Errorf("table %s: owned is %v, error %v; the kernel has owned tables: %v", table(f), owned, err, has)
		}
	}
	if !has {
		t.Skip("this kernel has no owned tables that persist")
	}
}

// TestWithoutOwnership: where the kernel has no ownership, another process can change our tables, and
// the generation tells. Where it has, the kernel forbids the change.
func TestWithoutOwnership(t *testing.T) {
	ns, c := open(t)
	must(t, c.Apply(load(everything())))
	has, err := netfilter.OwnedTables(ns.Fd())
	must(t, err)
	before, err := c.Generation()
	must(t, err)
	other := openIn(t, ns)
	err = other.Apply(nft.Batch{Ops: []nft.Op{nft.FlushChain{Table: table(nft.IPv4), Chain: "refuse"}}})
	if has != errors.Is(err, unix.EPERM) || !has && err != nil {
		t.Errorf("another's change: %v; the kernel has owned tables: %v", err, has)
	}
	after, err := c.Generation()
	must(t, err)
	if changed := after != before; changed == has {
		t.Errorf("the generation tells of a change: %v; the kernel has owned tables: %v", changed, has)
	}
}

func TestOwnedTableIsOurs(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	p := everything()
	must(t, c.Apply(load(p)))
	withOwnership(t, ns, c)
	before := ruleset(t, cmd, ns)

	_, err := cmd.Run(ns, "", "delete", "table", "ip", tableName)
	if err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("nft delete table: %v", err)
	}
	_, err = cmd.Run(ns, "", "flush", "ruleset")
	must(t, err)
	if diff := cmp.Diff(before, ruleset(t, cmd, ns)); diff != "" {
		t.Errorf("listing before and after nft flush ruleset (-before +after):\n%s", diff)
	}

	other := openIn(t, ns)
	for what, err := range map[string]error{
		"delete": other.DeleteTables(tableName),
		"own":    own(other, p),
		"change": other.Apply(nft.Batch{Ops: []nft.Op{nft.FlushChain{Table: table(nft.IPv4), Chain: "refuse"}}}),
	} {
		if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "stop it first") {
			t.Errorf("another Conn's %s: %v", what, err)
		}
	}
	// The owner itself can still add to its table.
	must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.AddTable{Table: table(nft.IPv4)}, nft.AddChain{Table: table(nft.IPv4),
		Chain: &nft.Chain{Name: "more"}}}}))
}

func TestOwnAfterRestart(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	p := everything()
	must(t, c.Apply(load(p)))
	withOwnership(t, ns, c)
	before := ruleset(t, cmd, ns)
	must(t, c.Close())

	next := openIn(t, ns)
	tables, err := next.Tables(tableName)
	must(t, err)
	for _, table := range tables {
		if !table.Orphan() {
			t.Errorf("table %s is no orphan after Close: %+v", table.ID, table)
		}
	}
	must(t, own(next, p))
	withOwnership(t, ns, next)
	generation, err := next.Generation()
	must(t, err)
	must(t, own(next, p)) // there is nothing to own, and nothing is written
	again, err := next.Generation()
	must(t, err)
	if again != generation {
		t.Error("claiming twice wrote something")
	}
	if diff := cmp.Diff(before, ruleset(t, cmd, ns)); diff != "" {
		t.Errorf("listing before and after the restart (-before +after):\n%s", diff)
	}
	m, err := next.Read(p)
	must(t, err)
	if b, _ := nft.Adopt(m, p).Plan(p, timeZero); !b.Empty() {
		t.Errorf("a restart with nothing changed writes:\n%s", b)
	}
}

// AddTable makes its Conn own a new table and an orphan, but no table that nft made.
func TestAddTableThatExists(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	_, err := cmd.Run(ns, "", "add", "table", "ip", tableName)
	must(t, err)
	add := nft.Batch{Ops: []nft.Op{nft.AddTable{Table: table(nft.IPv4)}, nft.AddTable{Table: table(nft.IPv6)}}}
	must(t, c.Apply(add))
	has, err := netfilter.OwnedTables(ns.Fd())
	must(t, err)
	owned, err := c.Owned(table(nft.IPv6))
	if err != nil || owned != has {
		t.Errorf("new table: owned is %v, error %v; the kernel has owned tables: %v", owned, err, has)
	}
	if !has {
		t.Skip("this kernel has no owned tables that persist")
	}
	if owned, err = c.Owned(table(nft.IPv4)); err != nil || owned {
		t.Errorf("table that nft made: owned is %v, error %v", owned, err)
	}
	must(t, own(c, everything())) // the table stays without an owner
	must(t, c.Close())
	next := openIn(t, ns)
	must(t, next.Apply(add))
	if owned, err = next.Owned(table(nft.IPv6)); err != nil || !owned {
		t.Errorf("orphan after AddTable: owned is %v, error %v", owned, err)
	}
	// A table that is replaced as a whole gets our Conn as owner.
	must(t, next.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteTable{Table: table(nft.IPv4)},
		nft.AddTable{Table: table(nft.IPv4)}}}))
	if owned, err = next.Owned(table(nft.IPv4)); err != nil || !owned {
		t.Errorf("table made anew: owned is %v, error %v", owned, err)
	}
}

// A dormant table does nothing until Own wakes it. A table that has an owner, or is an
// orphan, cannot become dormant.
func TestOwnWakesADormantTable(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	must(t, cmd.Load(ns, load(parsable(t, cmd)).String()))
	_, err := cmd.Run(ns, "", "add table ip "+tableName+" { flags dormant; }")
	must(t, err)
	must(t, own(c, everything()))
	tables, err := c.Tables(tableName)
	must(t, err)
	if len(tables) != 2 || tables[0].Flags != 0 || tables[1].Flags != 0 {
		t.Errorf("tables after Own: %+v", tables)
	}
}

func TestDeleteTables(t *testing.T) {
	cmd := netfilter.NFTForTest(t)
	ns, c := open(t)
	must(t, c.DeleteTables(tableName)) // none
	must(t, c.Apply(load(everything())))
	must(t, cmd.Load(ns, "add table ip other; add chain ip other c"))
	must(t, c.DeleteTables(tableName))
	if diff := cmp.Diff("table ip other {\n\tchain c {\n\t}\n}\n", ruleset(t, cmd, ns)); diff != "" {
		t.Errorf("listing after DeleteTables (-want +got):\n%s", diff)
	}
	// DeleteTables deletes an orphan too.
	must(t, c.Apply(load(everything())))
	must(t, c.Close())
	next := openIn(t, ns)
	must(t, next.DeleteTables(tableName))
	tables, err := next.Tables(tableName)
	must(t, err)
	if len(tables) > 0 {
		t.Errorf("tables left: %v", tables)
	}
}
