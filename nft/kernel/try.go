package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/treap"
	"nftproxy/nft"
)

// triedCounters is how many counters TryCounters makes. Kernels that take the memory of counters
// without waiting have about 1,024 at hand (PCPU_EMPTY_POP_PAGES_HIGH pages of 16 bytes each).
const triedCounters = 4096

// TryCounters returns an error if the kernel cannot give thousands of elements counters in one
// transaction. Kernels without nft_counter cannot. Nor can kernels that do not wait for the memory of
// counters. Mainline waits for it since commit fa23e0d4b756 (Linux 6.10).
func (c *Conn) TryCounters() error {
	table := triedTable(nft.Rule{nft.Counter{}, nft.Verdict{Code: nft.Drop}})
	table.Sets = nft.SetsByName(&nft.Set{Name: "counted", Key: nft.Fields{nft.Daddr}, Size: triedCounters, Counter: true})
	part := &nft.Part{}
	for i := range triedCounters {
		part.Elements = append(part.Elements, nft.Element{Set: "counted",
			Key: nft.Value(nft.AppendAddr(nil, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})))})
	}
	table.Parts = table.Parts.Set("counted", part)
	if err := c.try(table); err != nil {
		return fmt.Errorf("try counters: %w", err)
	}
	return nil
}

// TryLabels returns an error if rules cannot set and match labels of connections. Kernels without
// CONFIG_NF_CONNTRACK_LABELS cannot.
func (c *Conn) TryLabels() error {
	if err := c.try(triedTable(nft.Rule{nft.MatchLabel{}, nft.SetLabel{}})); err != nil {
		return fmt.Errorf("try labels: %w", err)
	}
	return nil
}

// TryFlows returns an error if rules cannot tell a program of a sample of connections. Kernels without
// CONFIG_NF_CONNTRACK_LABELS, CONFIG_NFT_HASH or CONFIG_NETFILTER_NETLINK_LOG cannot. The
// error of a kernel that has not told matches ErrUndecided.
func (c *Conn) TryFlows() error {
	rule := nft.Rule{nft.Sample{Of: 2}, nft.SetLabel{}, nft.Limit{PerSecond: 1, Burst: 1},
		nft.Log{Prefix: "1/2", Bytes: 64}}
	switch err := c.try(triedTable(rule)); {
	case err == nil:
		return nil
	case decides(err):
		return fmt.Errorf("try flows: %w", err)
	default:
		return fmt.Errorf("try flows: %w: %w", ErrUndecided, err)
	}
}

// ErrUndecided says that the kernel may take at another moment what it has refused: it had no memory, or was
// interrupted.
var ErrUndecided = errors.New("the kernel may take it later")

// TryTimeouts returns an error if rules cannot give time-outs to connections. Kernels without
// CONFIG_NF_CONNTRACK_TIMEOUT cannot. The error of a kernel that has not told matches ErrUndecided.
func (c *Conn) TryTimeouts() error {
	const name = "tried"
	table := triedTable(nft.Rule{nft.SetTimeout{Name: name}})
	table.Timeouts = nft.TimeoutsByName(nft.Timeout{Name: name, Protocol: unix.IPPROTO_TCP, Established: time.Hour})
	switch err := c.try(table); {
	case err == nil:
		return nil
	case decides(err):
		return fmt.Errorf("try time-outs: %w", err)
	default:
		return fmt.Errorf("try time-outs: %w: %w", ErrUndecided, err)
	}
}

// decides says that a refusal is about what was tried, and not about the moment.
func decides(err error) bool {
	refused := (*BatchError)(nil)
	return errors.As(err, &refused) && !refused.Partial && !slices.ContainsFunc(refused.Errors, func(e OpError) bool {
		return causeOf(e.Errno) != ofPart
	})
}

// triedTable is a table for try, with a rule in a chain that nothing leads to.
func triedTable(r nft.Rule) *nft.Table {
	return &nft.Table{
		Family: nft.IPv4, Name: fmt.Sprintf("nftproxy-try-%d", os.Getpid()),
		Chains: treap.Map[string, *nft.Chain]{}.Set("tried", &nft.Chain{Name: "tried", Rules: []nft.Rule{r}}),
	}
}

// try returns an error if the kernel does not take the table.
//
// The transaction adds the table, which has no hooks, and then deletes a chain that is not there. So
// the kernel refuses it as a whole once it has made the rest. No packet meets the table, no process
// hears of it, and the ruleset's generation stays.
func (c *Conn) try(table *nft.Table) error {
	batch, _ := nft.State{}.PlanTable(table, time.Time{})
	var missing nft.Op = nft.DeleteChain{Table: table.ID(), Chain: "missing"}
	batch.Ops = append(batch.Ops, missing)
	err := c.Apply(batch)
	refused := (*BatchError)(nil)
	if errors.As(err, &refused) && !slices.ContainsFunc(refused.Errors, func(e OpError) bool {
		return e.Op != missing || e.Errno != syscall.ENOENT
	}) {
		return nil
	}
	if err == nil {
		err = errors.New("the kernel deleted a chain that was not there")
	}
	return err
}
