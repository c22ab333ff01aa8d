package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/child"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
)

const (
	// burstSlices is how many EndpointSlices change in a burst.
	burstSlices = 1000
	// burstWriters is how many of them are written at a time.
	burstWriters = 16
)

// TestBurst writes 1,000 EndpointSlices one by one, each when the one before is in the kernel. Then it
// writes them again as fast as the API server takes them, and then one more. A burst costs the proxy less
// CPU time than the same changes one by one, since one sync takes several. Everything written is in the kernel
// in the end, by fewer syncs than changes, also if in the middle other processes commit and have batches refused,
// if the table of connections is full, or if the kernel refuses batches of the proxy, since another process
// has deleted what they delete. The CPU time of these has no bound: a look at a full table falls into a burst or
// does not. The log has how long the last change took.
func TestBurst(t *testing.T) {
	controlplane.Require(t)
	shared.stopPlanes()
	n := newNodeOf(t, ownControlPlane(t), "burst")
	n.seedServices(0, burstSlices+1)
	b := &burst{node: n, proxy: n.startProxy(), monitor: listenIn(t, n.Node), nft: netfilter.NFTForTest(t)}
	for i := range burstSlices + 1 {
		s, err := n.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Get(n.ctx, fmt.Sprintf("service-%05d", i),
			metav1.GetOptions{})
		n.must(err)
		b.slices = append(b.slices, s)
	}
	single := b.oneByOne(burstSlices)
	t.Logf("%d changes one by one: %v of CPU time", burstSlices, single.Round(time.Millisecond))

	commits, deletions := nothing(), nothing()
	commits.beside, deletions.before = b.commitsOfOthers, b.deleteSomePools()
	alone := b.burst(nothing())
	b.report("a burst", alone, single)
	if alone.cpu >= single {
		t.Errorf("a burst: %v of CPU time, and %v for as many changes one by one", alone.cpu, single)
	}
	b.report("a burst beside commits of others", b.burst(commits), single)
	b.report("a burst with a full table of connections", b.burstWithFullTable(), single)
	b.withoutOwner()
	refused := burstCost{}
	// again, if the proxy has looked at the tables before each batch that would have been refused
	for refused.refused == 0 {
		refused = b.burst(deletions)
	}
	b.report("a burst with refused batches", refused, single)
	b.proxy.stop()
}

// disturbance is what others do in a burst.
type disturbance struct {
	// beside works until its context ends.
	beside func(context.Context) error
	// before is called before a slice is written, with its number.
	before func(int) error
}

// nothing disturbs nobody.
func nothing() disturbance {
	return disturbance{beside: func(context.Context) error { return nil }, before: func(int) error { return nil }}
}

// commitsOfOthers makes transactions in tables of its own without a pause, every other of which the
// kernel refuses.
func (b *burst) commitsOfOthers(ctx context.Context) error {
	for i := 0; ctx.Err() == nil; i++ {
		if err := b.nft.Load(b.Node, fmt.Sprintf("add table ip other-%d { chain c { tcp dport 80 accept; }; }",
			i%7)); err != nil {
			return err
		}
		const endless = "add table ip loop { chain a { type filter hook input priority 0; jump b; }; chain b { jump c; }; " +
			"chain c { jump b; }; }"
		if err := b.nft.Load(b.Node, endless); err == nil {
			return fmt.Errorf("the kernel took chains in a loop")
		}
	}
	return nil
}

// burstWithFullTable is a burst while the kernel takes no new connection on the node.
func (b *burst) burstWithFullTable() burstCost {
	b.t.Helper()
	table, err := netfilter.FillTable(b.Node.Fd())
	b.must(err)
	b.t.Logf("%d entries fill the table of connections", table.Made)
	cost := b.burst(nothing())
	b.must(table.Empty())
	return cost
}

// withoutOwner starts the proxy again, on tables that never have an owner: others can change them.
func (b *burst) withoutOwner() {
	b.t.Helper()
	b.proxy.stop()
	b.must(b.nftables().DeleteTables(ruleset.DefaultTable))
	for _, f := range nft.Families() {
		b.must(b.nft.Load(b.Node, fmt.Sprintf("add table %s %s", f, ruleset.DefaultTable)))
	}
	b.proxy = b.startProxy()
}

// deleteSomePools returns a function that deletes the endpoints of a few Services from the kernel, those of the
// change after the burst too. The batch that replaces one of them is refused then, unless the proxy happens to look at
// the tables before.
func (b *burst) deleteSomePools() func(int) error {
	const every = burstSlices / 4
	conn := b.nftables()
	endpoints := &nft.Set{Name: "endpoints", Key: nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport, nft.Index},
		Data: nft.Fields{nft.Daddr, nft.Dport}}
	return func(i int) error {
		if i%every != 0 {
			return nil
		}
		remove := nft.DeleteElements{Table: nft.TableID{Family: nft.IPv4, Name: ruleset.DefaultTable}, Set: endpoints}
		for index := range b.slices[i].Endpoints {
			key := nft.AppendPort(nft.AppendProto(nft.AppendAddr(nil, clusterIP(i)), unix.IPPROTO_TCP), 80)
			remove.Elements = append(remove.Elements, nft.OwnedElement{Element: nft.Element{Set: endpoints.Name,
				Key: nft.Value(nft.AppendIndex(key, uint32(index)))}})
		}
		return conn.Apply(nft.Batch{Ops: []nft.Op{remove}})
	}
}

// burst is a node with Services, and what the API server has of their slices.
type burst struct {
	*node
	proxy   *process
	monitor *netfilter.Monitor
	nft     netfilter.NFT
	slices  []*discoveryv1.EndpointSlice
	moves   int
}

// burstCost is what a burst took.
type burstCost struct {
	cpu         time.Duration
	wrote, last time.Duration
	syncs       int
	// refused is how many of the syncs read the tables after a refusal, and repaired how many did so because others
	// had changed the ruleset.
	refused, repaired int
	// slowest is the sync whose reading, planning and writing took longest.
	slowest line
}

// report waits until the tables are right.
func (b *burst) report(what string, c burstCost, single time.Duration) {
	b.t.Helper()
	b.proxy.until("the tables are right", b.verified)
	b.t.Logf("%s of %d: written in %v by %d syncs (%d after a refusal, %d repairs); CPU time %v, %.2f of that one by "+
		"one; the change after it in force %v after its write began",
		what, burstSlices, c.wrote.Round(time.Millisecond), c.syncs, c.refused, c.repaired, c.cpu.Round(time.Millisecond),
		float64(c.cpu)/float64(single), c.last.Round(time.Microsecond))
	b.t.Logf("... its slowest sync read for %v, planned for %v and wrote for %v", c.slowest.Read, c.slowest.Plan,
		c.slowest.Apply)
	if c.syncs >= burstSlices {
		b.t.Errorf("%s: %d syncs for %d changes", what, c.syncs, burstSlices)
	}
}

// move gives the last endpoint of a slice an address that no other has, and returns the channel of the kernel's
// notice.
func (b *burst) move(i int) (write func() error, arrived <-chan time.Time) {
	b.moves++
	to := netip.AddrFrom4([4]byte{10, 127, byte(b.moves >> 8), byte(b.moves)})
	s := b.slices[i].DeepCopy()
	s.Endpoints[len(s.Endpoints)-1].Addresses = []string{to.String()}
	return func() (err error) {
		b.slices[i], err = b.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Update(b.ctx, s,
			metav1.UpdateOptions{})
		return err
	}, b.monitor.Expect(to)
}

// wait waits for a notice.
func (b *burst) wait(arrived <-chan time.Time) (at time.Time) {
	b.t.Helper()
	select {
	case at = <-arrived:
	case <-b.proxy.Exited():
		b.t.Fatalf("the proxy ended: %v", b.proxy.Err())
	case <-time.After(patience):
		b.t.Fatalf("a change was not in the kernel within %v (notices lost: %d times)", patience, b.monitor.Lost())
	}
	return at
}

// oneByOne returns the proxy's CPU time for so many changes, one after the other.
func (b *burst) oneByOne(count int) time.Duration {
	b.t.Helper()
	before := b.cpu()
	for i := range count {
		write, arrived := b.move(i)
		b.must(write())
		b.wait(arrived)
	}
	return b.cpu() - before
}

// burst changes all slices at once, and then one more.
func (b *burst) burst(d disturbance) burstCost {
	b.t.Helper()
	var writes []func() error
	var notices []<-chan time.Time
	for i := range burstSlices {
		write, arrived := b.move(i)
		writes, notices = append(writes, write), append(notices, arrived)
	}
	write, last := b.move(burstSlices)
	ctx, cancel := context.WithCancel(b.ctx)
	defer cancel()
	var beside, writers errgroup.Group
	beside.Go(func() error { return d.beside(ctx) })
	writers.SetLimit(burstWriters)

	mark := b.proxy.Mark()
	before, start := b.cpu(), time.Now()
	for i, w := range writes {
		writers.Go(func() error { return errors.Join(d.before(i), w()) })
	}
	b.must(writers.Wait())
	cost := burstCost{wrote: time.Since(start)}
	b.must(d.before(burstSlices))
	sent := time.Now()
	b.must(write())
	cost.last = b.wait(last).Sub(sent)
	for _, arrived := range notices {
		b.wait(arrived)
	}
	cost.cpu = b.cpu() - before
	cancel()
	b.must(beside.Wait())
	lines, _ := b.proxy.Logged(mark)
	cost.count(lines)
	return cost
}

// count counts the syncs of a log. One that repaired what others had changed has a line before it that says so.
func (c *burstCost) count(lines []line) {
	repaired := false
	for _, l := range lines {
		repaired = repaired || l.Has("repaired our tables")
		if !l.Synced() {
			continue
		}
		c.syncs++
		if l.Read+l.Plan+l.Apply > c.slowest.Read+c.slowest.Plan+c.slowest.Apply {
			c.slowest = l
		}
		switch {
		case repaired:
			c.repaired++
		case l.Read > 0 && *l.Written > 0:
			c.refused++
		}
		repaired = false
	}
}

// cpu is the CPU time that the proxy has used.
func (b *burst) cpu() time.Duration {
	b.t.Helper()
	spent, err := child.CPUTime(b.proxy.PID())
	b.must(err)
	return spent
}
