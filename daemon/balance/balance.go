package balance

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// Config is what a Balancer works with.
type Config struct {
	// Table has the connections.
	Table interface {
		Flows(ctx context.Context, filter conntrack.Filter, yield func(conntrack.Flow) error) error
	}
	// NodePortAddresses are the addresses on which the node serves node ports.
	NodePortAddresses service.NodePortAddresses
	// Set is called with the Services whose endpoints have other slots from now on.
	Set func(map[service.Name]service.Slotted)
	// Observe is called after each count. It must not wait.
	Observe func(Report)
}

// Report says what a count has found, and what came of it.
type Report struct {
	// Connections is how many connections the Services have that follow them.
	Connections int
	// Next is the time until the next count. Round is the time since all Services had had a turn.
	Next, Round time.Duration
	// CPU is the CPU time since the last report: of the count, of what came of it, and of the snapshots in between.
	CPU time.Duration
	Err error
}

const (
	// every is the least time from one count to the next.
	every = time.Second
	// rest is the time for each unit of CPU time in the long run, as for the removal of stale connections: 5 % of a core
	// at most. burst is what may be spent beyond. The loop's syncs are not in it: each namespace pays for its own.
	rest  = 20
	burst = 500 * time.Millisecond
	// retry is the time to the next count after one that failed.
	retry = 30 * time.Second
)

// Balancer is the part of a daemon that does this.
type Balancer struct {
	config    Config
	snapshots service.Newest
	mover     *mover
	budget    pace.Budget
	// cpu is the CPU time since the last report.
	cpu time.Duration
	// next is when the next count is due; zero while no Service asks for one. soonest is when one may be. turned is when
	// all Services had had a turn.
	next, soonest, turned time.Time
}

// New makes a Balancer.
func New(c Config) *Balancer {
	return &Balancer{config: c, snapshots: service.NewNewest(), mover: newMover(c.NodePortAddresses),
		budget: pace.Budget{Rest: rest, Burst: burst}}
}

// Notify gives the snapshot that the rules serve now. One call has to end before the next.
func (b *Balancer) Notify(s service.Snapshot) { b.snapshots.Put(s) }

// Run works until the context ends, and then returns nil. The shares then stay as they are.
func (b *Balancer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-b.snapshots:
			b.charge(func() { b.mover.follow(*s) })
		case <-timer.C:
		}
		switch now := time.Now(); {
		case b.mover.services() == 0:
			b.next, b.turned = time.Time{}, time.Time{}
			continue
		case b.next.IsZero():
			b.next, b.turned = pace.Later(now, b.soonest), now
		}
		if !time.Now().Before(b.next) {
			b.step(ctx)
		}
		timer.Reset(time.Until(b.next))
	}
}

// charge has the budget pay for some work.
func (b *Balancer) charge(work func()) {
	runtime.LockOSThread() // The CPU time of this thread is that of the work.
	defer runtime.UnlockOSThread()
	start := conntrack.ThreadTime()
	work()
	cpu := conntrack.ThreadTime() - start
	b.budget.Spend(time.Now(), cpu)
	b.cpu += cpu
}

// step counts, and has slots move.
func (b *Balancer) step(ctx context.Context) {
	began, report := time.Now(), Report{}
	b.charge(func() { report = b.count(ctx) })
	b.soonest = pace.Later(began.Add(every), b.budget.Ready())
	if report.Err != nil {
		b.soonest = began.Add(retry)
	}
	if b.next = b.soonest; ctx.Err() != nil {
		return
	}
	report.Next, report.CPU, report.Round = b.next.Sub(began), b.cpu, max(0, began.Sub(b.turned))
	b.cpu = 0
	b.config.Observe(report)
}

// count counts the connections, and says what comes of it unless the context has ended.
func (b *Balancer) count(ctx context.Context) (report Report) {
	select {
	case s := <-b.snapshots: // What is in force now, not what was while it waited.
		b.mover.follow(*s)
	default:
	}
	open, translated := openTo{}, conntrack.Filter{Status: conntrack.DstNAT, Mask: conntrack.DstNAT}
	err := b.config.Table.Flows(ctx, translated, func(f conntrack.Flow) error {
		if counts(&f) && b.mover.count(open, f) {
			report.Connections++
		}
		return nil
	})
	if err != nil && !errors.Is(err, conntrack.ErrInterrupted) {
		report.Err = err
		return report
	}
	moved, all := b.mover.step(open)
	if all {
		b.turned = time.Now()
	}
	if len(moved) > 0 && ctx.Err() == nil {
		b.config.Set(moved)
	}
	return report
}

// counts says whether a connection counts: one that is under way, one without an answer, and for the ten seconds that
// the kernel remembers it one that was reset, so that an endpoint which hangs or resets does not look idle. What both
// sides have closed does not count, nor what was refused: the kernel forgets that at once.
func counts(f *conntrack.Flow) bool {
	return f.TCPState != conntrack.TCPLastAck && f.TCPState != conntrack.TCPTimeWait
}

// openTo counts connections, by port of a service in a snapshot and by endpoint.
type openTo map[*service.Port]map[netip.AddrPort]int
