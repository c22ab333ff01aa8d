package conntrack

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// Run says what one pass over the table did.
type Run struct {
	// Scanned is how many entries the pass read: all of the table, or those that
	// the filters of the changes select.
	Scanned int
	// Removed counts the entries that the pass removed, by reason.
	Removed map[Reason]int
	// RemovedIPv6 is how many of the removed entries are IPv6 ones.
	RemovedIPv6 int
	// Walks is how many filtered walks over the table the pass made; 0 for one walk
	// over everything.
	Walks int
	// Duration is the wall time of the pass without its waits for syncs. CPU is its
	// CPU time.
	Duration, CPU time.Duration
	// Lag is the time from the first report of a change until the end of the first pass for it, for
	// the change that waited longest; 0 if the pass was not the first for any change.
	Lag time.Duration
	// Err says why the pass is incomplete; nil if it is complete. The Cleaner repeats an
	// incomplete pass later. If only entries that the kernel refused to remove are left
	// (RefusedError), it tries these again later.
	Err error
	// Repeated says that Err has the same text as the error of the pass before:
	// count it, but do not log it again.
	Repeated bool
}

// Cleaner removes stale entries after syncs, beside them. A pass looks where earlier syncs can have
// made entries stale. It makes filtered dumps, or one dump of the whole table if that costs less. A
// failed pass is followed by one over the whole table. The Cleaner's memory depends neither on the
// table nor on the number of stale entries, and in the long run it takes 5 % of a core at most. An
// entry that the kernel refuses to remove delays nothing else.
//
// Each of its parts decides one thing: agenda what is due, pacing when a pass may
// run, judge which entries are stale, and prices which kind of pass is cheaper.
// Syncs report to it through reports.
type Cleaner struct {
	table   flowTable
	config  CleanerConfig
	reports *syncReports

	agenda agenda
	pacing pacing
	judge  judge
	prices prices
	recent recent
	// refused has what the kernel did not remove.
	refused refused

	// dead has what CleanerConfig.Dead has found, and asking bounds how many are asked at once.
	dead   chan death
	asking chan struct{}
	tasks  sync.WaitGroup

	// asked is when CleanerConfig.Alone was asked last.
	asked time.Time
	// covered are epochs of the index that passes have covered, with the time of that, the
	// oldest first and at most one for each second.
	covered []coveredEpoch
	// cpu returns the CPU time of the calling thread.
	cpu func() time.Duration
	// failure is the text of the last pass's error, or empty.
	failure string
}

// formerFor is how long the Cleaner at least knows the endpoints that a Service had, after
// it has removed their flows. Until the sweep of session affinity has come to a client, the
// rules may lead it to such an endpoint. Later the address may be another pod's.
const formerFor = 5 * time.Minute

// maxConnects is how many departed endpoints are asked at once. The others wait, until the longest pause is over at
// most.
const maxConnects = 64

// aloneEvery is the time from one question to alone to the next: it may have to read many
// rules. Who changes our rules more often may also have rules that translate.
const aloneEvery = 10 * time.Second

type coveredEpoch struct {
	epoch uint64
	at    time.Time
}

// flowTable is the part of a Table that a Cleaner uses.
type flowTable interface {
	Flows(ctx context.Context, filter Filter, yield func(Flow) error) error
	Delete(ctx context.Context, flows []Flow) (n int, err error)
	Size(ctx context.Context) (entries, buckets int, err error)
}

// CleanerConfig is what a Cleaner asks and tells others.
type CleanerConfig struct {
	// Observe, if not nil, is called after each pass.
	Observe func(Run)
	// Alone says whether no other program's rules translate destinations. It is called when it is not known what the
	// rules did before. A flow that leads to no present or known former endpoint of its Service is then removed if there
	// is no such program, and stays otherwise, since it may be the other program's. Nil stands for a node that may have
	// such a program.
	Alone func() bool
	// Dead, if not nil, asks a departed endpoint of TCP for an answer, and reports that there is none. It may take seconds
	// and is called for many at once. With it, what has been given up goes sooner.
	Dead func(context.Context, netip.AddrPort) bool
	// Record, if not nil, is the rules' record of new connections. With it, the change of a claim without new connections
	// needs no pass for flows in the middle of their handshake.
	Record *Record
}

// Record is what the rules note of new connections.
type Record struct {
	// Noted reports whether a connection came to the claim within the time Lasting, and was translated. It may return
	// false only if there was none.
	Noted   func(service.Claim) (bool, error)
	Lasting time.Duration
	// Most is the greatest number of claims of each family that the rules record, including those that were removed
	// within the time Lasting.
	Most int
}

// NewCleaner makes a Cleaner that uses the index to find stale entries. From then on only the
// Cleaner may use the index.
func NewCleaner(table flowTable, index *Index, config CleanerConfig) *Cleaner {
	if config.Observe == nil {
		config.Observe = func(Run) {}
	}
	c := &Cleaner{
		table: table, config: config, reports: newSyncReports(),
		pacing: newPacing(), judge: judge{index, map[Reason][]Flow{}}, prices: newPrices(), cpu: ThreadTime,
		recent: recent{record: config.Record}, dead: make(chan death), asking: make(chan struct{}, maxConnects),
	}
	if config.Record != nil {
		index.recent = c.mayBeRecent
	}
	return c
}

// mayBeRecent says whether a claim may have unanswered flows.
func (c *Cleaner) mayBeRecent(claim service.Claim) bool {
	index, now := c.judge.index, time.Now()
	record := c.config.Record
	claims := max(index.frontends[0], index.frontends[1]) + c.recent.lost.lately(index.lost, now, record.Lasting)
	return claims > record.Most || c.recent.may(claim, now)
}

// ServedBefore gives the Cleaner what the kernel's rules served before this process wrote any. The
// Cleaner uses it to recognize flows to Services that were removed meanwhile. Run calls previous once rules are in
// force.
func (c *Cleaner) ServedBefore(previous func() service.Snapshot) {
	c.reports.add(false, func(r *syncReport) { r.previous = previous })
}

// LocalRoutes gives the Cleaner the ranges that local routes make the node's own (see
// Index.SetLocalRoutes), before the first SyncDone and after each change. A call never blocks.
func (c *Cleaner) LocalRoutes(routes []netip.Prefix) {
	c.reports.add(false, func(r *syncReport) { r.routes = &routes })
}

// SyncBegins says that a sync may change the kernel's rules from now on. The Cleaner removes
// nothing until SyncDone or SyncChangedNothing reports the outcome, since flows of the new rules
// would look stale by the previous Services. A call never blocks. It delays only the entries that
// were found by then, so syncs without a pause between them do not prevent removals.
func (c *Cleaner) SyncBegins() { c.reports.begin() }

// SyncChangedNothing says that the sync that has begun left the rules unchanged. If the outcome is
// unknown, call neither this nor SyncDone: the next sync shows it.
func (c *Cleaner) SyncChangedNothing() { c.reports.add(true, func(*syncReport) {}) }

// SyncDone says that the kernel's rules now serve the snapshot. Set unknown if it is not known what
// the rules did before, as at the first sync or after another program has changed them. A call
// never blocks. Call it after each sync: each snapshot counts, even if the next one comes before
// the Cleaner looks.
func (c *Cleaner) SyncDone(s service.Snapshot, unknown bool) {
	c.reports.add(true, func(r *syncReport) {
		r.serve(s)
		r.unknown = r.unknown || unknown
	})
}

// CheckAll asks for a pass over the whole table, when entries may have become stale for another
// reason than a change of the rules, such as a client that was remembered for a removed endpoint.
func (c *Cleaner) CheckAll() {
	c.reports.add(false, func(r *syncReport) { r.unknown = true })
}

// Run makes passes until the context ends, and then returns nil. Errors of the
// table, such as a kernel without conntrack, do not end it: Run reports them to
// observe and repeats the pass.
func (c *Cleaner) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer c.tasks.Wait()
	for c.waitForPass(ctx, timer) {
		run, complete := c.makePass(ctx)
		if !complete {
			break // The context ended.
		}
		c.config.Observe(run)
	}
	return nil
}

// waitForPass waits until a pass is due and may run, and learns what syncs report
// meanwhile. It returns false when the context ends.
func (c *Cleaner) waitForPass(ctx context.Context, timer *time.Timer) bool {
	for {
		c.ask(ctx)
		var wait <-chan time.Time
		at, ok := c.pacing.next(c.agenda.secondDue())
		if due := c.refused.due; !due.IsZero() && (!ok || due.Before(at)) {
			at, ok = pace.Later(due, c.pacing.budget.Ready()), true
		}
		if cut, planned := c.judge.index.NextCut(); planned && (!ok || cut.Before(at)) {
			at, ok = cut, true
		}
		if ok {
			timer.Reset(time.Until(at))
			wait = timer.C
		}
		select {
		case <-ctx.Done():
			return false
		case <-c.reports.unread:
			c.learn()
		case d := <-c.dead:
			c.look(c.judge.index.silence.died(d), time.Now())
		case <-wait:
			now := time.Now()
			if c.retry(now) || c.look(c.judge.index.Advance(now), now) {
				continue
			}
			if at, ok := c.pacing.next(c.agenda.secondDue()); ok && !now.Before(at) {
				return true
			} // Otherwise it was time for something else.
		}
	}
}

// retry asks for a pass where the kernel refused to remove entries, if it is time for that.
func (c *Cleaner) retry(now time.Time) bool {
	scope, ok := c.refused.take(now)
	if ok {
		c.agenda.add(change{scope, c.judge.index.Epoch(), now, now})
		c.pacing.requestFirst()
	}
	return ok
}

// look asks for a pass where time, or the silence of an endpoint, has made flows stale, or may have, unless that is
// nowhere. One pass is enough: no packet is on its way by other rules.
func (c *Cleaner) look(scope Scope, now time.Time) bool {
	if scope.Empty() {
		return false
	}
	c.agenda.add(change{scope, c.judge.index.Epoch(), now, now.Add(-secondPassAfter)})
	c.pacing.requestFirst()
	return true
}

// ask asks the departed endpoints that are to be asked for an answer.
func (c *Cleaner) ask(ctx context.Context) {
	for _, endpoint := range c.judge.index.silence.take() {
		if c.config.Dead != nil {
			c.tasks.Go(func() { c.askOne(ctx, endpoint) })
		}
	}
}

func (c *Cleaner) askOne(ctx context.Context, endpoint netip.AddrPort) {
	select {
	case <-ctx.Done():
		return
	case c.asking <- struct{}{}:
	}
	began := time.Now()
	dead := c.config.Dead(ctx, endpoint)
	<-c.asking
	if !dead {
		return
	}
	select {
	case <-ctx.Done():
	case c.dead <- death{endpoint, began}:
	}
}

// learn reads the report of the syncs and makes it known to judge, agenda and
// pacing.
func (c *Cleaner) learn() {
	report := c.reports.read()
	if report.unknown {
		c.recent.forget()
	}
	now := time.Now()
	change, ok := c.judge.learn(report, now)
	if report.unknown && len(report.served) > 0 && c.config.Alone != nil && now.Sub(c.asked) >= aloneEvery {
		if c.asked = now; c.config.Alone() {
			c.judge.index.Presume()
		}
	}
	if len(report.served) > 0 {
		c.pacing.requestRoutine()
	}
	if ok {
		c.agenda.add(change)
		c.pacing.requestFirst()
	} else if epoch := c.agenda.addNothing(change.epoch); epoch > 0 {
		c.cover(epoch, now) // No pass will look for what departed.
	}
}

// cover notes that nothing is due any more up to an epoch.
func (c *Cleaner) cover(epoch uint64, now time.Time) {
	if c.refused.pending() && now.Sub(c.asked) < formerFor {
		c.judge.index.departed.cover(epoch) // What is presumed is the reason for what is tried again.
	} else {
		c.judge.index.Cover(epoch)
	}
	if n := len(c.covered); n > 0 && now.Sub(c.covered[n-1].at) < time.Second {
		c.covered[n-1].epoch = max(epoch, c.covered[n-1].epoch)
	} else if epoch > 0 {
		c.covered = append(c.covered, coveredEpoch{epoch, now})
	}
}

// forgetFormer forgets the endpoints whose flows were removed long ago. While the kernel
// refuses to remove an entry, none is forgotten: without it that entry would seem to be another
// program's.
func (c *Cleaner) forgetFormer(now time.Time) {
	for len(c.covered) > 0 && !c.refused.pending() && now.Sub(c.covered[0].at) >= formerFor {
		c.judge.index.Forget(c.covered[0].epoch)
		c.covered = c.covered[1:]
	}
}
