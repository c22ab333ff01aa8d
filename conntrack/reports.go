package conntrack

import (
	"sync"
	"time"

	"nftproxy/model/service"
)

// syncReport is the news of one or more syncs.
type syncReport struct {
	// previous returns what the kernel's rules served before this process; nil if that
	// was not reported.
	previous func() service.Snapshot
	// latest is the newest snapshot in force; nil if no sync has changed the rules.
	latest *service.Snapshot
	// unknown says that any entry may be stale.
	unknown bool
	// since is the time of the first news in the report.
	since time.Time
}

// syncReports carries the news of syncs to the Cleaner. Several reports become one
// until the Cleaner reads them. It is safe for concurrent use.
type syncReports struct {
	// unread holds one token while there is an unread report.
	unread chan struct{}

	mu     sync.Mutex
	report syncReport
	// begun counts the syncs. The outcome of the first known ones is reported.
	begun, known uint64
}

func newSyncReports() *syncReports { return &syncReports{unread: make(chan struct{}, 1)} }

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
	if r.report.since.IsZero() {
		r.report.since = time.Now()
	}
	write(&r.report)
	if outcome {
		r.known = r.begun
	}
	r.leave()
}

// leave says that there is an unread report.
func (r *syncReports) leave() {
	select {
	case r.unread <- struct{}{}:
	default:
	}
}

// read returns the unread report, which may be empty. The previous snapshot stays
// unread until there is a latest one.
func (r *syncReports) read() syncReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := r.report
	r.report = syncReport{}
	if report.latest == nil {
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
