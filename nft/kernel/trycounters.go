package kernel

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"nftproxy/model/treap"
	"nftproxy/nft"
)

// triedCounters is how many counters TryCounters makes. Kernels that take the memory of counters
// without waiting have about 1,024 at hand (PCPU_EMPTY_POP_PAGES_HIGH pages of 16 bytes each).
const triedCounters = 4096

// TryCounters returns an error if the kernel cannot give thousands of elements counters in one
// transaction. Kernels without nft_counter cannot. Nor can kernels that take memory for them
// without waiting, which mainline does since its commit fa23e0d4b756 (Linux 6.10) no longer.
//
// The transaction adds a table without hooks and deletes it again, so no packet and no other
// process sees it.
func (c *Conn) TryCounters() error {
	table := &nft.Table{
		Family: nft.IPv4, Name: fmt.Sprintf("nftproxy-try-%d", os.Getpid()),
		Sets:   nft.SetsByName(&nft.Set{Name: "counted", Key: nft.Fields{nft.Daddr}, Size: triedCounters, Counter: true}),
		Chains: treap.Map[string, *nft.Chain]{}.Set("counting", &nft.Chain{Name: "counting", Rules: []nft.Rule{{nft.Counter{}, nft.Verdict{Code: nft.Drop}}}}),
	}
	part := &nft.Part{}
	for i := range triedCounters {
		part.Elements = append(part.Elements, nft.Element{Set: "counted", Key: nft.Value(nft.AppendAddr(nil, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})))})
	}
	table.Parts = table.Parts.Set("counted", part)
	batch, _ := nft.State{}.PlanTable(table, time.Time{})
	batch.Ops = append(batch.Ops, nft.DeleteTable{Table: table.ID()})
	if err := c.Apply(batch); err != nil {
		return fmt.Errorf("try counters: %w", err)
	}
	return nil
}
