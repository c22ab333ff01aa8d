// Package eject finds the endpoints that do not answer this node, and says which of them to leave out: it looks for
// connections without an answer, asks endpoints, nodes and the API server, and lets model/ejection decide.
// All of its work has a budget of CPU time: a large table of connections makes looks rarer, not more expensive.
package eject

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/ejection"
	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// Config is what an Ejector works with.
type Config struct {
	// Table has the connections.
	Table interface {
		Unanswered(ctx context.Context, yield func(conntrack.Flow) error) (cpu time.Duration, err error)
	}
	// Repeats counts the first packets that clients repeat, since they have no answer: then a look is worth it. Without
	// (nil) there are more looks at rest.
	Repeats func() (uint64, error)
	// Lookup asks the API server for a Node; nil if there is no API server.
	Lookup func(ctx context.Context, node string) (ejection.Facts, error)
	// Mode is that of Services that do not ask for one.
	Mode service.Eject
	// Set is called when other endpoints are to be left out.
	Set func(service.Adjustments)
	// Observe is called after each look, and after each step while something is suspected. It must not wait.
	Observe func(Report)
	// Connect tries to connect to addresses for ejection.Patience, and says whether one has answered; nil stands for the
	// network.
	Connect func(context.Context, []netip.AddrPort) ejection.Answer
}

// Report says what has been seen and decided.
type Report struct {
	ejection.Verdict
	// Added and Returned are the differences of Left to the report before.
	Added, Returned []ejection.Left
	// Looked says that there was a look at the connections, which may have failed.
	Looked bool
	Err    error
	// CPU is the CPU time of all work since the report before, that of connects by estimate.
	CPU time.Duration
}

// The shares of a core, as the time for each unit of CPU time: of looks while nothing is unanswered, and of all that
// the Ejector does in the long run. burst is what may be spent beyond, so that a second look follows the first one that
// finds something within a second, and debt what other work may leave for a look to wait for.
const (
	restIdle, rest = 500, 100
	burst, debt    = 300 * time.Millisecond, 20 * time.Millisecond
	// every is the least time from one look to the next, unless repeated packets follow one that finds nothing.
	every = time.Second
	// idleMost is the longest time from one look to the next while nothing is unanswered. It is the time if no Service has
	// the mode on, and if repeats are counted: their counter is read each listen then, and says when a look is worth it
	// earlier.
	idleMost = 30 * time.Second
	listen   = 200 * time.Millisecond
	// retry is the time to the next look after one that failed.
	retry = 30 * time.Second
	// mostFlows bounds the connections that one look takes in, and mostOfOne those to one endpoint: nobody hides others.
	mostFlows, mostOfOne = 8192, 32
	// soon is the least time from one step to the next: answers come many at a time. Beyond the budget it is every:
	// answers get old, so steps do not wait for longer, and looks do.
	soon = 20 * time.Millisecond
	// askCost is the CPU time that a connect takes (BenchmarkConnect), or a question to the API server.
	askCost = 100 * time.Microsecond
	// wakeCost is what the runtime of Go spends when the process wakes from rest. It is reported only.
	wakeCost = 400 * time.Microsecond
	// lookupPatience is how long the API server may take.
	lookupPatience = 2 * time.Second
)

// Ejector is the part of a daemon that does this.
type Ejector struct {
	config    Config
	machine   *ejection.Machine
	snapshots service.Newest
	snapshot  *service.Snapshot // that came last
	answers   chan func()       // Each tells the machine of one.

	budget pace.Budget
	cpu    func() time.Duration // of the calling thread so far
	// unreported is the CPU time since the last report.
	unreported time.Duration
	// look is when the next look is due, soonest when one may be if packets are repeated, again when there is more to ask,
	// and listen when Repeats is called; zero for no time. repeats and deaf are what it said last.
	look, soonest, again, listen time.Time
	repeats                      uint64
	deaf                         error
	left                         []ejection.Left // as reported
}

// New makes an Ejector.
func New(c Config) *Ejector {
	if c.Connect == nil {
		c.Connect = connect
	}
	return &Ejector{
		config: c, machine: ejection.New(c.Mode.Of, c.Lookup != nil, rand.Float64),
		snapshots: service.NewNewest(), answers: make(chan func(), 64),
		budget: pace.Budget{Rest: rest, Burst: burst, Debt: debt}, cpu: conntrack.ThreadTime,
	}
}

// Notify gives the snapshot that the rules serve now. One call has to end before the next.
func (e *Ejector) Notify(s service.Snapshot) { e.snapshots.Put(s) }

// Run works until the context ends, and then returns nil. What is left out then stays so until the next process.
func (e *Ejector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var news []func()
		snapshots := e.snapshots
		if e.machine.Idle() && !e.look.IsZero() {
			snapshots = nil // It matters when the next look is due.
		}
		select {
		case <-ctx.Done():
			return nil
		case s := <-snapshots:
			e.take(s)
		case a := <-e.answers:
			news = append(news, a)
		case <-timer.C:
			e.unreported += wakeCost
			select {
			case s := <-e.snapshots:
				e.take(s)
			default:
			}
		}
		for range len(e.answers) {
			news = append(news, <-e.answers)
		}
		if e.snapshot == nil {
			continue
		}
		e.work(ctx, news)
		if next := pace.Soonest(e.look, e.again, e.listen); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(soon, min(every, time.Until(e.budget.Ready())))):
		}
	}
}

// take takes a snapshot. Where nobody has wanted a look, somebody may now.
func (e *Ejector) take(s *service.Snapshot) {
	if e.snapshot = s; e.look.IsZero() {
		e.soonest = pace.Later(time.Now(), e.soonest)
		e.look = e.soonest
	}
}

// work takes what is new, does a step, charges the budget, and reports.
func (e *Ejector) work(ctx context.Context, news []func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, asks := e.cpu(), 0
	var report Report
	e.machine.See(*e.snapshot)
	for _, tell := range news {
		tell()
	}
	if e.hear(time.Now()); !e.look.IsZero() && !time.Now().Before(e.look) {
		e.lookAt(ctx, &report)
	}
	walk := report.CPU
	quiet := e.machine.Idle() && !report.Looked && len(e.left) == 0 // Only the counter was read.
	if e.again = (time.Time{}); !quiet {
		var list []ejection.Ask
		report.Verdict, list, e.again = e.machine.Step(time.Now())
		for _, a := range list {
			asks += max(1, len(a.To))
			go e.ask(ctx, a)
		}
		report.Added, report.Returned = missing(report.Left, e.left), missing(e.left, report.Left)
		e.left = report.Left
	}
	report.CPU = max(walk, e.cpu()-began) + time.Duration(asks)*askCost
	e.budget.Spend(time.Now(), report.CPU)
	if report.Looked {
		e.plan(time.Now(), walk, report.Err)
		report.Err = errors.Join(report.Err, e.deaf)
	}
	if report.CPU, e.unreported = report.CPU+e.unreported, 0; quiet || ctx.Err() != nil {
		e.unreported = report.CPU
		return
	}
	e.config.Observe(report)
	on := func(l ejection.Left) bool { return l.Mode == service.EjectOn }
	if slices.ContainsFunc(report.Added, on) || slices.ContainsFunc(report.Returned, on) {
		e.config.Set(report.Adjustments())
	}
}

// ask asks, and has the machine told what came of it.
func (e *Ejector) ask(ctx context.Context, a ejection.Ask) {
	var answer ejection.Answer
	var facts ejection.Facts
	if len(a.To) > 0 {
		answer = e.config.Connect(ctx, a.To)
	} else {
		limited, cancel := context.WithTimeout(ctx, lookupPatience)
		defer cancel()
		var err error
		if facts, err = e.config.Lookup(limited, a.Node); err != nil {
			answer = ejection.Unknown
		}
	}
	select {
	case e.answers <- func() { e.machine.Answered(time.Now(), a, answer, facts) }:
	case <-ctx.Done():
	}
}

// hear brings the next look forward if clients have repeated first packets.
func (e *Ejector) hear(now time.Time) {
	if e.config.Repeats == nil || e.look.IsZero() || now.Before(e.listen) {
		return
	}
	n, err := e.config.Repeats()
	switch e.listen = now.Add(listen); {
	case err != nil: // Until it can be heard again, there are as many looks as without.
		if e.listen = now.Add(retry); e.deaf == nil {
			e.look = e.soonest
		}
	case n != e.repeats:
		e.repeats, e.look = n, e.soonest
	}
	e.deaf = err
}

// asked says whether any Service may have a mode, or a stronger one.
func (e *Ejector) asked(mode service.Eject) bool {
	if e.config.Mode >= mode {
		return true
	}
	for _, s := range e.snapshot.Services.All() {
		if e.config.Mode.Of(s) >= mode {
			return true
		}
	}
	return false
}

// lookAt reads the connections without an answer.
func (e *Ejector) lookAt(ctx context.Context, report *Report) {
	if e.machine.Idle() && !e.asked(service.EjectReport) {
		e.look, e.listen, e.soonest = time.Time{}, time.Time{}, time.Now().Add(every)
		return
	}
	var flows []ejection.Flow
	to := map[netip.AddrPort]int{}
	cpu, err := e.config.Table.Unanswered(ctx, func(f conntrack.Flow) error {
		if len(flows) < mostFlows && to[f.Reply.Src] < mostOfOne {
			to[f.Reply.Src]++
			flows = append(flows, ejection.Flow{ID: f.ID, To: f.Reply.Src})
		}
		return nil
	})
	if report.Looked, report.CPU, report.Err = true, cpu, err; err == nil || errors.Is(err, conntrack.ErrInterrupted) {
		e.machine.Looked(time.Now(), flows)
	}
}

// plan decides when the next look is due, after one whose walk took this much. What is only reported can wait for
// idleMost.
func (e *Ejector) plan(now time.Time, walk time.Duration, err error) {
	after := idleMost
	e.soonest = pace.Later(now.Add(every), e.budget.Ready())
	switch {
	case err != nil && !errors.Is(err, conntrack.ErrInterrupted):
		after, e.soonest = retry, now.Add(retry)
	case e.machine.Waiting():
		// The same connection in two looks has waited for at least the time between them.
		after = every
	case e.config.Repeats != nil && e.deaf == nil:
		after = max(restIdle*walk, idleMost)
	case e.asked(service.EjectOn):
		after = max(every, min(restIdle*walk, idleMost))
	}
	e.look = pace.Later(now.Add(after), e.soonest)
}

// missing returns those of a list that another lacks. A changed mode makes another one.
func missing(list, from []ejection.Left) (lacking []ejection.Left) {
	there := make(map[ejection.Left]bool, len(from))
	for _, l := range from {
		there[l] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(l ejection.Left) bool { return there[l] })
}
