package kernel_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// The chains of a loop.
const firstOfLoop, secondOfLoop = "loop-1", "loop-2"

// rule is a batch's operation that adds a rule to a chain.
func rule(id nft.TableID, chain string, s ...nft.Statement) nft.Op {
	return nft.AddRules{Table: id, Chain: &nft.Chain{Name: chain, Rules: []nft.Rule{s}}}
}

// halfLoop adds two chains behind a base chain, the first of which leads to the second.
func halfLoop(id nft.TableID) nft.Batch {
	base := &nft.Chain{Name: "before-loop", Hook: &nft.Hook{Name: nft.Prerouting, Priority: -90}}
	return nft.Batch{Ops: []nft.Op{
		nft.AddTable{Table: id}, nft.AddChain{Table: id, Chain: base},
		nft.AddChain{Table: id, Chain: &nft.Chain{Name: firstOfLoop}},
		nft.AddChain{Table: id, Chain: &nft.Chain{Name: secondOfLoop}},
		rule(id, base.Name, jump(firstOfLoop)), rule(id, firstOfLoop, jump(secondOfLoop)),
	}}
}

// wholeLoop is a rule that makes a loop of the chains of halfLoop. The kernel refuses it.
func wholeLoop(id nft.TableID) nft.Batch {
	return nft.Batch{Ops: []nft.Op{rule(id, secondOfLoop, jump(firstOfLoop))}}
}

// refill gives one of the chains so many other rules.
func refill(id nft.TableID, rules int) nft.Batch {
	b := nft.Batch{Ops: []nft.Op{nft.FlushChain{Table: id, Chain: secondOfLoop}}}
	for range rules {
		b.Ops = append(b.Ops, rule(id, secondOfLoop, nft.Verdict{Code: nft.Return}))
	}
	return b
}

// passingLoop has the loop only at its beginning. A kernel that validates each message refuses it.
func passingLoop(id nft.TableID, rules int) nft.Batch {
	return nft.Batch{Ops: append(wholeLoop(id).Ops, refill(id, rules-1).Ops...)}
}

func isLoop(err error) bool { return errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EMLINK) }

// validating is a namespace whose tables others can change.
type validating struct {
	t  *testing.T
	ns *testnet.Namespace
}

// openOne opens a Conn that has not been refused anything.
func (v validating) openOne() *kernel.Conn {
	v.t.Helper()
	c, err := kernel.Open(kernel.Config{NetNS: v.ns.Fd()})
	must(v.t, err)
	v.t.Cleanup(func() { _ = c.Close() })
	c.HideOwnership()
	return c
}

// refuse has the kernel refuse a loop of another process.
func (v validating) refuse(id nft.TableID) {
	v.t.Helper()
	if err := v.openOne().Apply(wholeLoop(id)); !isLoop(err) {
		v.t.Fatalf("the answer to a loop: %v", err)
	}
}

// stays says whether the kernel validates each message after a refusal in a table. Then it
// refuses what is right only in the end, and so the mode stays.
func (v validating) stays(id, refused nft.TableID) bool {
	v.t.Helper()
	v.refuse(refused)
	err := v.openOne().Apply(passingLoop(id, 1))
	if err != nil && !isLoop(err) {
		v.t.Fatal(err)
	}
	must(v.t, v.openOne().Apply(refill(id, 1))) // the next transaction that changes something ends the mode
	must(v.t, v.openOne().Apply(passingLoop(id, 1)))
	return err != nil
}

// spent is how long a batch of a Conn takes that has not been refused anything.
func (v validating) spent(b nft.Batch) time.Duration {
	v.t.Helper()
	c := v.openOne()
	start := time.Now()
	must(v.t, c.Apply(b))
	return time.Since(start)
}

// TestLeavesValidation: after a refusal that the kernel finds at the end of a transaction, some kernels validate the
// whole table after each message, until a transaction changes something (leaveValidation). A Conn gets the kernel
// out of that before a long batch, whoever was refused, and before any batch if it was refused itself. The
// log tells whether this kernel stays in the mode, and what batches cost then.
func TestLeavesValidation(t *testing.T) {
	const elements, rules = 5_000, 64
	v := validating{t, testnet.NamespaceForTest(t, "kernel")}
	ours, others := table(nft.IPv4), nft.TableID{Family: nft.IPv4, Name: "others"}
	c, watcher := v.openOne(), v.openOne()
	must(t, c.Apply(walkTable(elements)))
	for _, id := range []nft.TableID{ours, others} {
		must(t, v.openOne().Apply(halfLoop(id)))
	}
	t.Logf("after a refusal in the table, the kernel validates each message: %t; after one in another table: %t",
		v.stays(ours, ours), v.stays(ours, others))

	few, many := refill(ours, kernel.LongBatch-1), refill(ours, rules)
	quiet := [2]time.Duration{v.spent(few), v.spent(many)}
	v.refuse(others)
	short := v.spent(few)
	v.refuse(others)
	t.Logf("after a refusal a batch of %d rules takes %.1f times as long, and one of %d %.1f times", len(few.Ops)-1,
		float64(short)/float64(quiet[0]), rules, float64(v.spent(many))/float64(quiet[1]))

	g := generations{c, watcher}
	for _, refused := range []nft.TableID{ours, others} {
		v.refuse(refused)
		seen, all := g.during(t, func() { must(t, c.Apply(passingLoop(ours, rules))) })
		if seen != 1 || all != 2 {
			t.Errorf("a batch of %d rules after a refusal in %s: %d transactions are counted of %d, want 1 of 2", rules, refused,
				seen, all)
		}
	}
	seen, all := g.during(t, func() {
		if err := c.Apply(wholeLoop(ours)); !isLoop(err) {
			t.Errorf("the answer to a loop: %v", err)
		}
		for range 2 {
			must(t, c.Apply(passingLoop(ours, 1)))
		}
	})
	if seen != 2 || all != 3 {
		t.Errorf("two short batches after a refusal: %d transactions are counted of %d, want 2 of 3", seen, all)
	}
	if tables, err := netfilter.NFTForTest(t).Run(v.ns, "", "list", "tables"); err != nil ||
		tables != "table ip nftproxy\ntable ip others\n" {
		t.Errorf("tables: %s (%v)", tables, err)
	}
}
