package kernel_test

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// TestChainsAreReleased: a chain can be deleted long before nft.IdleLife is over once no element of a
// map leads to it any more. Linux before 6.2 releases it some time after the element has gone, and until
// then refuses to delete it.
func TestChainsAreReleased(t *testing.T) {
	c := openUnwatched(t) // the model releases chains at once
	p := everything()
	must(t, c.Apply(load(p)))
	id, set := table(nft.IPv4), p.IPv4.Set("services")
	rounds, refused := 50, 0
	longest := time.Duration(0)
	for range rounds {
		leads := []nft.OwnedElement{owned("ns/a", nft.Element{Set: set.Name, Key: servicePrefix(nft.IPv4, 9999, 6, 80),
			Verdict: goTo("released")})}
		must(t, c.Apply(nft.Batch{Ops: []nft.Op{
			nft.AddChain{Table: id, Chain: &nft.Chain{Name: "released"}},
			nft.AddElements{Table: id, Set: set, Elements: leads},
		}}))
		must(t, c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteElements{Table: id, Set: set, Elements: leads}}}))
		start := time.Now()
		err := c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteChain{Table: id, Chain: "released"}}})
		for ; errors.Is(err, unix.EBUSY) && time.Since(start) < nft.IdleLife; refused++ {
			err = c.Apply(nft.Batch{Ops: []nft.Op{nft.DeleteChain{Table: id, Chain: "released"}}})
		}
		must(t, err)
		longest = max(longest, time.Since(start))
	}
	t.Logf("%d chains: the kernel refused %d deletions, and took %v at most", rounds, refused, longest)
}
