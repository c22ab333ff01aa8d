package conntrack

import (
	"context"
	"slices"
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
	// idlePause is the same for looks at the whole table that no sync calls
	// for. They find something only if what a sync makes stale was misjudged,
	// or somebody else meddles with the table or the rules.
	idlePause = 10 * pause
	// late is how long after a pass that followed a change there is another,
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
	// Scanned is how many entries were looked at: all, or those to what has
	// changed.
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

// Cleaner removes stale flows after syncs, beside them. A pass looks at what
// the syncs before it can have made stale: at a few addresses by filtered
// dumps, which is most of the time, or at the whole table. A pass that failed
// is made good by one of the whole table. Its memory depends neither on the
// table nor on how much is stale, and it takes about 5 % of a core at most.
type Cleaner struct {
	table   flowTable
	index   *Index
	observe func(Run)

	// prompt is for what changes make stale, whole for a look at everything
	// now and then.
	prompt, whole pace.Schedule
	// due are the changes that have not been covered for sure.
	due     []change
	failure string // the last pass's error, or empty

	wake chan struct{} // holds one token while there is news
	mu   sync.Mutex
	news news
	// begun and settled count syncs, the latter those whose outcome is known:
	// up to the one that was the latest then.
	begun, settled uint64
	// held is how long the pass under way has waited for syncs.
	held time.Duration
}

// change is what an update of the index can have made stale.
type change struct {
	scope Scope
	// epoch is the index's, at is when.
	epoch uint64
	at    time.Time
}

// news is what the Cleaner was told since it last looked.
type news struct {
	previous func() service.Snapshot
	latest   *service.Snapshot
	// unknown says that anything may be stale.
	unknown bool
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
		prompt: pace.Schedule{Pause: pause, Late: []time.Duration{late}}, whole: pace.Schedule{Pause: idlePause, IdlePause: idlePause},
	}
}

// Inherit says what the kernel's rules served before this process wrote any:
// flows to what has gone meanwhile are known by it. It is called before the
// first Notify, if at all; previous is called by Run.
func (c *Cleaner) Inherit(previous func() service.Snapshot) {
	c.tell(func(n *news) { n.previous = previous })
}

// Begin says that a sync may change the kernel's rules from now on. Nothing is
// removed until Notify or Unchanged says what came of it: flows that the new
// rules make, judged by the services before, would seem to lead nowhere. It
// never blocks, and holds up only what was found by then: syncs that follow
// each other without a pause do not keep anything from being removed.
func (c *Cleaner) Begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun++
}

// Unchanged says that the sync that has begun has left the rules as they were.
// Where nobody knows, call neither: the next sync will tell.
func (c *Cleaner) Unchanged() { c.tell(func(*news) { c.settled = c.begun }) }

// Notify says that a sync has brought the kernel to the snapshot; unknown says
// that nobody knows what its rules have done before, as at the first sync and
// when they were found changed. It never blocks; of several snapshots the
// latest counts. Call it after each sync.
func (c *Cleaner) Notify(s service.Snapshot, unknown bool) {
	c.tell(func(n *news) {
		n.latest, n.unknown = &s, n.unknown || unknown
		c.settled = c.begun
	})
}

// Again says that connections may have gone astray after a sync, other than by
// the rules: by a client being remembered for an endpoint that had gone.
func (c *Cleaner) Again() { c.tell(func(n *news) { n.unknown = true }) }

func (c *Cleaner) tell(f func(*news)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.news)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Cleaner) take() news {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.news
	c.news = news{}
	if n.latest == nil { // The past is no place to stay in.
		n.previous, c.news.previous = nil, n.previous
	}
	return n
}

// Run makes passes until the context is done, and then returns nil. Errors of
// the table, such as a kernel without conntrack, do not end it: they are
// observed and the pass is tried again.
func (c *Cleaner) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if at, ok := c.next(); ok {
			timer.Reset(time.Until(at))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
			c.update(c.take(), time.Now())
		case <-due:
			c.pass(ctx)
		}
	}
}

// next is when a pass is due, if any.
func (c *Cleaner) next() (at time.Time, ok bool) {
	at, ok = c.prompt.Next()
	if whole, asked := c.whole.Next(); asked && (!ok || whole.Before(at)) {
		return whole, true
	}
	return at, ok
}

// update takes note of the news.
func (c *Cleaner) update(n news, now time.Time) {
	scope := Scope{Everything: n.unknown}
	if n.previous != nil {
		scope.merge(c.index.Update(n.previous()))
	}
	if n.latest != nil {
		scope.merge(c.index.Update(*n.latest))
		c.whole.Request(false)
	}
	if !scope.Empty() {
		c.due = append(c.due, change{scope, c.index.Epoch(), now})
		c.prompt.Request(true)
	}
}

// pass looks where changes call for it, or at everything if none does now.
func (c *Cleaner) pass(ctx context.Context) {
	start := time.Now()
	scope, schedules := Scope{Everything: true}, []*pace.Schedule{&c.whole}
	if at, ok := c.prompt.Next(); ok && !start.Before(at) {
		if scope = c.scope(); scope.Everything {
			schedules = append(schedules, &c.prompt)
		} else {
			schedules[0] = &c.prompt
		}
	}
	for _, s := range schedules {
		s.Begin(start)
	}
	c.held = 0
	run := Run{Removed: map[Reason]int{}}
	run.Scanned, run.Err = c.sweep(ctx, scope, run.Removed)
	if ctx.Err() != nil {
		return // cut short on purpose: not a failure
	}
	end := time.Now()
	run.Duration = end.Sub(start)
	for _, s := range schedules {
		s.End(end, run.Duration-c.held, run.Err != nil) // waiting costs nothing
	}
	c.settle(start, run.Err != nil)
	last := c.failure
	c.failure = ""
	if run.Err != nil {
		c.failure = run.Err.Error()
		run.Repeated = c.failure == last
	}
	c.observe(run)
}

// scope is where all changes are that are not covered yet; without any, as at a
// retry, it is everything.
func (c *Cleaner) scope() Scope {
	var s Scope
	for _, one := range c.due {
		s.merge(one.scope)
	}
	if s.Empty() {
		s.all()
	}
	return s
}

// settle drops the changes that a pass has covered which began late enough.
// After one that failed, everything is due.
func (c *Cleaner) settle(start time.Time, failed bool) {
	if failed {
		c.due = []change{{Scope{Everything: true}, c.index.Epoch(), start}}
		return
	}
	n := 0
	for n < len(c.due) && !start.Before(c.due[n].at.Add(late)) {
		n++
	}
	if n > 0 {
		c.index.Forget(c.due[n-1].epoch)
		c.due = c.due[n:]
	}
}

// confirm returns those of the flows that are stale by what is known by now: one
// that was made by rules that came while the table was read would seem to lead
// to no endpoint where its endpoint is only new. All rules that can have made
// them count: it waits for a sync that is under way, but for none that begins
// later. It works in place, and fails only if the context ends.
func (c *Cleaner) confirm(ctx context.Context, flows []Flow) ([]Flow, error) {
	if len(flows) == 0 {
		return nil, nil
	}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(flows, func(f Flow) bool {
		_, stale := c.index.Stale(f)
		return !stale
	}), nil
}

// await takes note of the outcome of all syncs that have begun by now.
func (c *Cleaner) await(ctx context.Context) error {
	c.mu.Lock()
	latest, known := c.begun, c.settled
	c.mu.Unlock()
	start := time.Now()
	for known < latest {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.wake:
			c.update(c.take(), time.Now())
		}
		c.mu.Lock()
		known = c.settled
		c.mu.Unlock()
	}
	c.held += time.Since(start)
	select {
	case <-c.wake:
		c.update(c.take(), time.Now())
	default:
	}
	return nil
}

// sweep looks at the table, or a part of it, and removes what is stale while it
// goes, so that its memory does not depend on how much that is. What cannot be
// removed does not keep the rest: the first error about it is returned in the
// end.
func (c *Cleaner) sweep(ctx context.Context, scope Scope, removed map[Reason]int) (scanned int, err error) {
	filters := scope.Filters
	if scope.Everything {
		filters = []Filter{{}}
	}
	stale := map[Reason][]Flow{}
	var denied error
	remove := func(reason Reason) error {
		flows, err := c.confirm(ctx, stale[reason])
		if err != nil {
			return err
		}
		n, err := c.table.Delete(ctx, flows)
		if n > 0 {
			removed[reason] += n
		}
		stale[reason] = stale[reason][:0]
		if denied == nil {
			denied = err
		}
		return nil // If the context has ended, Flows ends as well.
	}
	look := func(f Flow) error {
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
	}
	for _, f := range filters {
		if err = c.table.Flows(ctx, f, look); err != nil {
			break
		}
	}
	for reason := range stale { // what was found before an error is stale all the same
		if failed := remove(reason); err == nil {
			err = failed
		}
	}
	if err == nil {
		err = denied
	}
	return scanned, err
}
