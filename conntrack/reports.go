package conntrack

import (
	"net/netip"
	"sync"
	"time"

	"nftproxy/model/service"
)

// syncReport is the news of one or more syncs.
type syncReport struct {
	// previous returns what the kernel's rules served before this process; nil if that
	// was not reported.
	previous func() service.Snapshot
	// served has the snapshots that were in force, the latest last; empty if no sync has changed the rules. Each counts: a
	// flow to an endpoint that came and went between two looks at the reports is stale, too.
	served []service.Snapshot
	// routes has the newest local routes; nil if they were not reported.
	routes *[]netip.Prefix
	// unknown says that any entry may be stale.
	unknown bool
	// since is the time of the first news in the report.
	since time.Time
}

// The Cleaner reads reports at most once in readEvery, since a look at them asks the kernel a question for each
// endpoint that went: one look at several syncs costs less. A report after that time wakes the Cleaner at once: the
// process is awake then anyway. If none comes, a timer does at readLatest, which is half of firstEvery: the first
// passes are as soon as without these rests.
const (
	readEvery  = 25 * time.Millisecond
	readLatest = firstEvery / 2
)

// mostServed bounds the snapshots of a report that is not read, as during a long pass. They share what did not change.
// Beyond it any entry may be stale.
const mostServed = 1024

// serve adds a snapshot that came into force.
func (r *syncReport) serve(s service.Snapshot) {
	if len(r.served) == mostServed {
		r.served, r.unknown = r.served[:0], true
	}
	r.served = append(r.served, s)
}

// syncReports carries the news of syncs to the Cleaner. Several reports become one
// until the Cleaner reads them. It is safe for concurrent use.
type syncReports struct {
	// unread holds one token while there is a report that the Cleaner should read now.
	unread chan struct{}

	mu     sync.Mutex
	report syncReport
	// lastRead is when the Cleaner last read a report. late puts the token into unread at readLatest after that; waits
	// says that it is going to.
	lastRead time.Time
	late     *time.Timer
	waits    bool
	// hurried says that each report wakes the Cleaner at once.
	hurried bool
	// begun counts the syncs. The outcome of the first known ones is reported.
	begun, known uint64
}

func newSyncReports() *syncReports {
	r := &syncReports{unread: make(chan struct{}, 1)}
	r.late = time.AfterFunc(readLatest, r.isLate)
	r.late.Stop()
	return r
}

// begin counts a sync that begins.
func (r *syncReports) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.begun++
}

// add lets the caller add to the report. outcome says that the outcome of all
// syncs that have begun is known with it.
func (r *syncReports) add(outcome bool, write func(*syncReport)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.report.since.IsZero() {
		r.report.since = now
	}
	write(&r.report)
	if outcome {
		r.known = r.begun
	}
	switch wait := r.lastRead.Add(readEvery).Sub(now); {
	case wait <= 0 || r.hurried:
		r.wake()
	case !r.waits:
		r.waits = true
		r.late.Reset(r.lastRead.Add(readLatest).Sub(now))
	}
}

// hurry says whether a pass waits for reports. Then there is no rest between two looks at them.
func (r *syncReports) hurry(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hurried = yes
	if yes && !r.report.since.IsZero() {
		r.wake()
	}
}

// isLate wakes the Cleaner for a report that no later one has woken it for.
func (r *syncReports) isLate() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waits {
		r.wake()
	}
}

// wake puts the token into unread. The caller holds the lock.
func (r *syncReports) wake() {
	r.stopLate()
	select {
	case r.unread <- struct{}{}:
	default:
	}
}

func (r *syncReports) stopLate() {
	if r.waits {
		r.waits = false
		r.late.Stop()
	}
}

// read returns the unread report, which may be empty. The previous snapshot stays
// unread until there is one in force.
func (r *syncReports) read() syncReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := r.report
	r.report, r.lastRead = syncReport{}, time.Now()
	r.stopLate()
	if len(report.served) == 0 {
		report.previous, r.report.previous = nil, report.previous
	}
	return report
}

// count returns how many syncs have begun, and of how many the outcome is known.
func (r *syncReports) count() (begun, known uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.begun, r.known
}
