package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/test/cluster/controlplane/controlplanetest"
	"nftproxy/test/nftcmd"
	"nftproxy/test/nftmonitor"
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
// in the end. Commits of other processes in the middle, and batches of theirs that the kernel refuses, change
// nothing of that. The log has how long the last change took.
func TestBurst(t *testing.T) {
	controlplanetest.Require(t)
	shared.stopPlanes()
	n := newNodeOf(t, ownControlPlane(t), "burst")
	n.seedServices(0, burstSlices+1)
	b := &burst{node: n, proxy: n.startProxy(), monitor: listenIn(t, n.Node)}
	for i := range burstSlices + 1 {
		s, err := n.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Get(n.ctx, fmt.Sprintf("service-%05d", i), metav1.GetOptions{})
		n.must(err)
		b.slices = append(b.slices, s)
	}
	single := b.oneByOne(burstSlices)
	t.Logf("%d changes one by one: %v of CPU time", burstSlices, single.Round(time.Millisecond))

	alone := b.burst(func(context.Context) error { return nil })
	b.report("a burst", alone, single)
	nft := nftcmd.ForTest(t)
	beside := b.burst(func(ctx context.Context) error {
		for i := 0; ctx.Err() == nil; i++ {
			if err := nft.Load(n.Node, fmt.Sprintf("add table ip other-%d { chain c { tcp dport 80 accept; }; }", i%7)); err != nil {
				return err
			}
			const endless = "add table ip loop { chain a { type filter hook input priority 0; jump b; }; chain b { jump c; }; chain c { jump b; }; }"
			if err := nft.Load(n.Node, endless); err == nil {
				return fmt.Errorf("the kernel took chains in a loop")
			}
		}
		return nil
	})
	b.report("a burst beside commits of others", beside, single)
	b.proxy.stop()
}

// burst is a node with Services, and what the API server has of their slices.
type burst struct {
	*node
	proxy   *process
	monitor *nftmonitor.Monitor
	slices  []*discoveryv1.EndpointSlice
	moves   int
}

// burstCost is what a burst took.
type burstCost struct {
	cpu         time.Duration
	wrote, last time.Duration
	syncs       int
}

func (b *burst) report(what string, c burstCost, single time.Duration) {
	b.t.Helper()
	b.t.Logf("%s of %d: written in %v by %d syncs; CPU time %v, %.2f of that one by one; the change after it in force %v after its write began",
		what, burstSlices, c.wrote.Round(time.Millisecond), c.syncs, c.cpu.Round(time.Millisecond), float64(c.cpu)/float64(single), c.last.Round(time.Microsecond))
	if c.cpu >= single {
		b.t.Errorf("%s: %v of CPU time, and %v for as many changes one by one", what, c.cpu, single)
	}
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
		b.slices[i], err = b.plane.client.DiscoveryV1().EndpointSlices(scaleNamespace).Update(b.ctx, s, metav1.UpdateOptions{})
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

// burst changes all slices at once, and then one more. Meanwhile others do something, until their context ends.
func (b *burst) burst(others func(context.Context) error) burstCost {
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
	beside.Go(func() error { return others(ctx) })
	writers.SetLimit(burstWriters)

	mark := b.proxy.Mark()
	before, start := b.cpu(), time.Now()
	for _, w := range writes {
		writers.Go(w)
	}
	b.must(writers.Wait())
	cost := burstCost{wrote: time.Since(start)}
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
	for _, l := range lines {
		if l.Synced() {
			cost.syncs++
		}
	}
	return cost
}

// cpu is the CPU time that the proxy has used.
func (b *burst) cpu() time.Duration {
	b.t.Helper()
	// The clock of another process's CPU time: clock_getcpuclockid(3).
	var now unix.Timespec
	b.must(unix.ClockGettime(int32(^b.proxy.PID())<<3|2, &now))
	return time.Duration(now.Nano())
}
