package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"nftproxy/model/treap"
	"nftproxy/nft"
)

// triedCounters is how many counters TryCounters makes. Kernels that take the memory of counters
// without waiting have about 1,024 at hand (PCPU_EMPTY_POP_PAGES_HIGH pages of 16 bytes each).
const triedCounters = 4096

// TryCounters returns an error if the kernel cannot give thousands of elements counters in one
// transaction. Kernels without nft_counter cannot. Nor can kernels that do not wait for the memory of
// counters. Mainline waits for it since commit fa23e0d4b756 (Linux 6.10).
//
// The transaction adds a table without hooks, and then deletes a chain that is not there. So the
// kernel refuses it as a whole once it has made the counters. No packet meets the table, no process
// hears of it, and the ruleset's generation stays.
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
	var missing nft.Op = nft.DeleteChain{Table: table.ID(), Chain: "missing"}
	batch.Ops = append(batch.Ops, missing)
	err := c.Apply(batch)
	refused := (*BatchError)(nil)
	if errors.As(err, &refused) && !slices.ContainsFunc(refused.Errors, func(e OpError) bool { return e.Op != missing || e.Errno != syscall.ENOENT }) {
		return nil
	}
	if err == nil {
		err = errors.New("the kernel deleted a chain that was not there")
	}
	return fmt.Errorf("try counters: %w", err)
}
