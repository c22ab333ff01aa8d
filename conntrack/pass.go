package conntrack

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"time"

	"nftproxy/model/ip"
)

// pass is a pass under way.
type pass struct {
	scope  Scope
	serves purposeSet
	start  time.Time
	// cpu is the thread's CPU time at the start.
	cpu time.Duration
	// table is the size of the table at the start.
	table size
	// first says that it is a first pass, for changes that wait since the time.
	first bool
	since time.Time
	// waited is how long it has waited for the outcome of syncs.
	waited time.Duration
	// failed says why the pass may have missed entries. undeleted is the first error about
	// entries that cannot be removed: these are tried again, and nothing else is due for them.
	failed, undeleted error
	run               Run
}

func newPass(scope Scope) *pass {
	return &pass{scope: scope, run: Run{Walks: scope.walks(), Removed: map[Reason]int{}}}
}

// makePass makes one pass: it plans, cleans the table and reports. It returns false
// if the context ended first, which is no failure.
func (c *Cleaner) makePass(ctx context.Context) (run Run, complete bool) {
	runtime.LockOSThread() // The CPU time of this thread is that of the pass.
	defer runtime.UnlockOSThread()
	p := c.planPass(ctx)
	p.failed = c.clean(ctx, p)
	p.run.Err = cmp.Or(p.failed, p.undeleted)
	if ctx.Err() != nil {
		return Run{}, false
	}
	c.endPass(p)
	return p.run, true
}

// planPass decides where a pass that begins now looks: where changes call for it,
// or at the whole table if no change calls for a pass now, or if that is cheaper.
func (c *Cleaner) planPass(ctx context.Context) *pass {
	start, cpu := time.Now(), c.cpu()
	c.forgetFormer(start)
	serves := c.pacing.due(start, c.agenda.secondDue())
	since, first := c.agenda.firstSince()
	serves[firstPass] = serves[firstPass] || first // A pass for another purpose is a first pass as well.
	scope := c.agenda.begin(start, serves[secondPass])
	table := c.size(ctx)
	if serves.whole() || scope.Everything || scope.Empty() || c.prices.wholeIsCheaper(table, scope.walks()) {
		scope = Scope{Everything: true}
		c.agenda.begin(start, true)
		serves = allPurposes()
	}
	serves[routinePass] = scope.Everything
	c.pacing.begin(start, serves)
	if scope.Everything {
		c.recent.begin(start)
	}
	p := newPass(scope)
	p.serves, p.start, p.cpu, p.table, p.first, p.since = serves, start, cpu, table, first, since
	return p
}

// size returns the table's size. Its error is left to the pass, which meets it as
// well.
func (c *Cleaner) size(ctx context.Context) size {
	entries, buckets, err := c.table.Size(ctx)
	if err != nil {
		return size{}
	}
	return size{entries, buckets}
}

// clean reads the entries in the pass's scope and removes the stale ones batch by
// batch, so that its memory does not depend on their number. An entry that cannot be
// removed does not hold up the others, and is no failure of the pass: see refused.
func (c *Cleaner) clean(ctx context.Context, p *pass) (err error) {
	filters := p.scope.Filters
	if p.scope.Everything {
		filters = []Filter{{}}
	}
	read := func(f Flow) error {
		p.run.Scanned++
		c.recent.see(&f, p.start)
		if f.Unacknowledged {
			c.judge.index.tell(time.Now()) // How long no packet has come depends on the second.
		}
		if reason, full := c.judge.suspect(f); full {
			return c.remove(ctx, p, reason)
		}
		return nil
	}
	for _, f := range filters {
		if err = c.table.Flows(ctx, f, read); err != nil {
			break
		}
	}
	for reason := range c.judge.suspects { // Entries found before an error are stale all the same.
		if failed := c.remove(ctx, p, reason); err == nil {
			err = failed
		}
	}
	clear(c.judge.suspects)
	return err
}

// remove removes the suspects of a reason that are still stale when the outcome of
// the syncs under way is known. It fails only if the context ends.
func (c *Cleaner) remove(ctx context.Context, p *pass, reason Reason) error {
	if len(c.judge.suspects[reason]) == 0 {
		return nil
	}
	if err := c.awaitSyncs(ctx, p); err != nil {
		return err
	}
	v4, v6 := splitFamilies(c.judge.confirm(reason))
	c.delete(ctx, p, reason, v4)
	p.run.RemovedIPv6 += c.delete(ctx, p, reason, v6)
	return nil // If the context has ended, Flows ends as well.
}

// delete removes entries, all of one family, and returns how many it has removed.
func (c *Cleaner) delete(ctx context.Context, p *pass, reason Reason, flows []Flow) int {
	if len(flows) == 0 {
		return 0
	}
	n, err := c.table.Delete(ctx, flows)
	if n > 0 {
		p.run.Removed[reason] += n
	}
	if left := (*RefusedError)(nil); errors.As(err, &left) {
		c.refused.add(left.Flows)
		p.undeleted = cmp.Or(p.undeleted, err)
	}
	return n // Another error is the end of the context.
}

// splitFamilies puts the IPv6 flows of a list behind the others, in place.
func splitFamilies(list []Flow) (v4, v6 []Flow) {
	n := 0
	for i := range list {
		if list[i].Family() == ip.V4 {
			list[n], list[i] = list[i], list[n]
			n++
		}
	}
	return list[:n], list[n:]
}

// awaitSyncs learns the outcome of all syncs that have begun by now. It does not
// wait for syncs that begin later.
func (c *Cleaner) awaitSyncs(ctx context.Context, p *pass) error {
	c.reports.hurry(true)
	defer c.reports.hurry(false)
	begun, known := c.reports.count()
	start := time.Now()
	for known < begun {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.reports.unread:
			c.learn()
		}
		_, known = c.reports.count()
	}
	p.waited += time.Since(start)
	select {
	case <-c.reports.unread:
		c.learn()
	default:
	}
	return nil
}

// endPass completes the pass's report, and notes what the pass has done and cost.
func (c *Cleaner) endPass(p *pass) {
	end, run := time.Now(), &p.run
	run.Duration, run.CPU = end.Sub(p.start)-p.waited, c.cpu()-p.cpu // Waiting costs no CPU time.
	if p.first {
		run.Lag = end.Sub(p.since)
	}
	c.recent.end(p.scope.Everything && p.failed == nil)
	if c.refused.plan(end); p.failed != nil {
		c.agenda.fail(end, c.judge.index.Epoch())
	} else {
		c.cover(c.agenda.end(p.start, p.serves[secondPass]), end)
		c.prices.observe(p.table, *run)
	}
	c.pacing.end(end, p.serves, run.CPU, p.failed != nil, c.agenda.secondDue())
	switch last := c.failure; {
	case run.Err != nil:
		c.failure = run.Err.Error()
		run.Repeated = c.failure == last
	case !c.refused.pending(): // Otherwise the pass looked elsewhere.
		c.failure = ""
	}
}
