// Package eject finds the endpoints that do not answer this node, and says which of them to leave out: it looks for
// connections without an answer, asks endpoints, nodes and the API server, and lets model/ejection decide.
//
// It changes no rules and no snapshot: Config.Set takes the result. It opens TCP connections to endpoints of Services
// and to two ports of nodes, and sends no byte over them. All of its work has a budget of CPU time: a large table of
// connections makes looks rarer, not more expensive.
package eject

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync/atomic"
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
	Mode ejection.Mode
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
	// What is left out as of now, and why the rest is not.
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
	// wakeCost is what the runtime of Go spends when the process wakes from rest to read the counter. It is reported only.
	wakeCost = 400 * time.Microsecond
	// lookupPatience is how long the API server may take.
	lookupPatience = 2 * time.Second
)

// Ejector is the part of a daemon that does this. Notify may be called from any goroutine.
type Ejector struct {
	config   Config
	machine  *ejection.Machine
	snapshot atomic.Pointer[service.Snapshot]
	notified chan struct{}
	answers  chan answered

	budget pace.Budget
	cpu    func() time.Duration // of the calling thread so far
	// unreported is the CPU time since the last report.
	unreported time.Duration
	// look is when the next look is due, soonest when one may be if packets are repeated, and again when there is more to
	// ask; zero for no time.
	look, soonest, again time.Time
	// heard is when Repeats was called, which said repeats. deaf is its error.
	heard   time.Time
	repeats uint64
	deaf    error
	seen    *service.Snapshot // by the machine
	left    []ejection.Left   // as reported
	set     service.Adjustments
}

type answered struct {
	ask    ejection.Ask
	answer ejection.Answer
	facts  ejection.Facts
}

// New makes an Ejector.
func New(c Config) *Ejector {
	if c.Connect == nil {
		c.Connect = connect
	}
	return &Ejector{
		config: c, machine: ejection.New(c.Mode.Of, c.Lookup != nil, rand.Float64), notified: make(chan struct{}, 1),
		answers: make(chan answered, 64), budget: pace.Budget{Rest: rest, Burst: burst, Debt: debt},
		cpu: conntrack.ThreadTime,
	}
}

// Notify gives the snapshot that the rules serve now.
func (e *Ejector) Notify(s service.Snapshot) {
	e.snapshot.Store(&s)
	select {
	case e.notified <- struct{}{}:
	default:
	}
}

// Run works until the context ends, and then returns nil. What is left out then stays so until the next process.
func (e *Ejector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var news []answered
		select {
		case <-ctx.Done():
			return nil
		case <-e.notified:
		case a := <-e.answers:
			news = append(news, a)
		case <-timer.C:
		}
		for range len(e.answers) {
			news = append(news, <-e.answers)
		}
		if s := e.snapshot.Load(); s != nil {
			e.work(ctx, s, news)
		}
		timer.Reset(time.Until(e.next()))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(max(soon, min(every, time.Until(e.budget.Ready())))):
		}
	}
}

// work takes what is new, does a step, charges the budget, and reports.
func (e *Ejector) work(ctx context.Context, s *service.Snapshot, news []answered) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began, asks := e.cpu(), 0
	var report Report
	for _, a := range news {
		e.machine.Answered(time.Now(), a.ask, a.answer, a.facts)
	}
	if e.hear(time.Now()); !time.Now().Before(e.look) {
		e.lookAt(ctx, s, &report)
	}
	if s != e.seen {
		e.machine.See(*s)
		e.seen = s
	}
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
	report.CPU = max(report.CPU, e.cpu()-began) + time.Duration(asks)*askCost
	e.budget.Spend(time.Now(), report.CPU)
	if report.Looked {
		e.soonest = pace.Later(e.soonest, e.budget.Ready())
		e.look = pace.Later(e.look, e.soonest)
	}
	if report.CPU, e.unreported = report.CPU+e.unreported, 0; quiet || ctx.Err() != nil {
		e.unreported = report.CPU
		return
	}
	e.config.Observe(report)
	if next := report.Adjustments(e.set); len(report.Added)+len(report.Returned) > 0 && next.Len()+e.set.Len() > 0 {
		e.set = next
		e.config.Set(next)
	}
}

// ask asks, and says what came of it.
func (e *Ejector) ask(ctx context.Context, a ejection.Ask) {
	result := answered{ask: a}
	if len(a.To) > 0 {
		result.answer = e.config.Connect(ctx, a.To)
	} else {
		limited, cancel := context.WithTimeout(ctx, lookupPatience)
		defer cancel()
		var err error
		if result.facts, err = e.config.Lookup(limited, a.Node); err != nil {
			result.answer = ejection.Unknown
		}
	}
	select {
	case e.answers <- result:
	case <-ctx.Done():
	}
}

// next is when there is work without an answer or another snapshot.
func (e *Ejector) next() time.Time {
	next := pace.Soonest(e.look, e.again)
	if e.listens() {
		next = pace.Soonest(next, e.heard.Add(listen))
	}
	return next
}

// listens says that a repeated packet may bring the next look forward.
func (e *Ejector) listens() bool { return e.config.Repeats != nil && e.soonest.Before(e.look) }

// hear brings the next look forward if clients have repeated first packets.
func (e *Ejector) hear(now time.Time) {
	if !e.listens() || now.Before(e.heard.Add(listen)) {
		return
	}
	n, err := e.config.Repeats()
	e.unreported += wakeCost
	switch e.heard = now; {
	case err != nil: // Until it can be heard again, there are as many looks as without.
		if e.heard = now.Add(retry); e.deaf == nil {
			e.look = e.soonest
		}
	case n != e.repeats:
		e.repeats, e.look = n, e.soonest
	}
	e.deaf = err
}

// asked says whether any Service may have a mode, or a stronger one.
func (e *Ejector) asked(s *service.Snapshot, mode ejection.Mode) bool {
	if e.config.Mode >= mode {
		return true
	}
	for _, svc := range s.Services.All() {
		if e.config.Mode.Of(svc) >= mode {
			return true
		}
	}
	return false
}

// lookAt reads the connections without an answer, and decides when the next look is due. What is only reported can wait
// for idleMost.
func (e *Ejector) lookAt(ctx context.Context, s *service.Snapshot, report *Report) {
	if e.machine.Idle() && !e.asked(s, ejection.Report) {
		e.look = time.Now().Add(every)
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
	report.Looked, report.CPU, report.Err = true, cpu, errors.Join(err, e.deaf)
	now := time.Now()
	if err != nil && !errors.Is(err, conntrack.ErrInterrupted) {
		e.look, e.soonest = now.Add(retry), now.Add(retry)
		return
	}
	e.machine.Looked(now, flows)
	e.soonest = now.Add(every)
	switch {
	case e.machine.Waiting():
		// The same connection in two looks has waited for at least the time between them.
		e.look = e.soonest
	case e.config.Repeats != nil && e.deaf == nil:
		e.look = now.Add(max(restIdle*cpu, idleMost))
	case e.asked(s, ejection.On):
		e.look = now.Add(max(every, min(restIdle*cpu, idleMost)))
	default:
		e.look = now.Add(idleMost)
	}
}

// missing returns those of a list that another lacks. A changed mode makes another one.
func missing(list, from []ejection.Left) (lacking []ejection.Left) {
	there := make(map[ejection.Left]bool, len(from))
	for _, l := range from {
		there[l] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(l ejection.Left) bool { return there[l] })
}
