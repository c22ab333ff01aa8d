package conntrack

import (
	"context"
	"sync"
	"time"

	"nftproxy/internal/pace"
	"nftproxy/internal/service"
)

const (
	// pause is the least time between two passes, in durations of the earlier
	// one. It keeps the cleaner below 1/(1+20), 5 %, of a core, however large
	// the table is and however often there is a sync.
	pause = 20
	// idlePause is the same for a pass after syncs that claimed nothing new:
	// most syncs change endpoints only. Such a pass finds something only if
	// the rules had been away or a service had been held back, and it must not
	// make the next one that matters wait.
	idlePause = 10 * pause
	// late is how long after a pass that followed new claims there is another,
	// for entries made without the rules although after them. nat decides about
	// a packet in prerouting or output, but its entry is in the table, for us
	// to see, only at the end of postrouting or input. For a packet that runs
	// through, these are microseconds: in 1,300 commits under 80,000 to 260,000
	// new flows a second, each followed by a dump at once, 4 million entries
	// were found and not one came later. But a packet can be held on the way,
	// as by a network policy engine that judges first packets in user space
	// (NFQUEUE): then its entry comes when it is let go, and as a UDP flow that
	// keeps talking it would miss its service until the next sync, which may be
	// days. TestCleanerFindsHeldPacket shows it. One more pass costs no more
	// than the first, and there is only one for any number of syncs.
	late = time.Second
)

// Run is what one pass over the table did.
type Run struct {
	// Scanned is how many entries were looked at: those never DNATed.
	Scanned int
	// Removed counts the entries that were removed, by reason.
	Removed map[Reason]int
	// Duration is the wall time that it took.
	Duration time.Duration
	// Err is why the pass was incomplete, or nil. It is tried again later.
	Err error
	// Repeated says that Err reads the same as the last pass's: count it, but
	// there is no need to log it again.
	Repeated bool
}

// Cleaner removes stale flows after syncs, beside them. It is level-triggered:
// a pass looks at the whole table as it is, so a pass that was missed or failed
// is made good by the next. It takes at most 5 % of a core.
type Cleaner struct {
	table   flowTable
	index   *Index
	observe func(Run)

	schedule pace.Schedule
	failure  string // the last pass's error, or empty

	wake   chan struct{} // holds one token while latest is set
	mu     sync.Mutex
	latest *service.Snapshot
}

// flowTable is the part of a Table that a Cleaner uses.
type flowTable interface {
	Flows(ctx context.Context, filter Filter, yield func(Flow) error) error
	Delete(ctx context.Context, flows []Flow) (n int, err error)
}

// NewCleaner makes a Cleaner that judges by the index, which is its own from
// then on. observe is called by Run, after each pass.
func NewCleaner(table flowTable, index *Index, observe func(Run)) *Cleaner {
	return &Cleaner{
		table: table, index: index, observe: observe, wake: make(chan struct{}, 1),
		schedule: pace.Schedule{Pause: pause, IdlePause: idlePause, Late: []time.Duration{late}},
	}
}

// Notify says that a sync has brought the kernel to the snapshot. It never
// blocks; of several snapshots the latest counts. Call it after each sync, even
// if it changed nothing but repaired the rules.
func (c *Cleaner) Notify(s service.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest = &s
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Cleaner) take() service.Snapshot {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.latest
}

// Run makes passes until the context is done, and then returns nil. Errors of
// the table, such as a kernel without conntrack, do not end it: they are
// observed and the pass is tried again.
func (c *Cleaner) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if at, ok := c.schedule.Next(); ok {
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
			// What is claimed anew can have made flows stale.
			c.schedule.Request(c.index.Update(c.take()))
		case <-due:
			c.pass(ctx)
		}
	}
}

func (c *Cleaner) pass(ctx context.Context) {
	start := time.Now()
	c.schedule.Begin(start)
	run := Run{Removed: map[Reason]int{}}
	run.Scanned, run.Err = c.sweep(ctx, run.Removed)
	if ctx.Err() != nil {
		return // cut short on purpose: not a failure
	}
	run.Duration = time.Since(start)
	c.schedule.End(time.Now(), run.Duration, run.Err != nil)
	last := c.failure
	c.failure = ""
	if run.Err != nil {
		c.failure = run.Err.Error()
		run.Repeated = c.failure == last
	}
	c.observe(run)
}

// sweep looks at the table once and removes what is stale while it goes, so
// that its memory does not depend on how much that is.
func (c *Cleaner) sweep(ctx context.Context, removed map[Reason]int) (scanned int, err error) {
	stale := map[Reason][]Flow{}
	remove := func(reason Reason) error {
		n, err := c.table.Delete(ctx, stale[reason])
		removed[reason] += n
		stale[reason] = stale[reason][:0]
		return err
	}
	err = c.table.Flows(ctx, Filter{Mask: DstNAT}, func(f Flow) error {
		scanned++
		reason, ok := c.index.Stale(f)
		if !ok {
			return nil
		}
		stale[reason] = append(stale[reason], f)
		if len(stale[reason]) < deleteBatch {
			return nil
		}
		return remove(reason)
	})
	for reason := range stale { // what was found before an error is stale all the same
		if failed := remove(reason); err == nil {
			err = failed
		}
	}
	return scanned, err
}
