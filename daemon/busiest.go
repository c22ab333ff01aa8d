package daemon

import (
	"fmt"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/treap"
	"nftproxy/watch"
)

const (
	// busyFor is how long changes are counted before a report, and busyAgain the least time between two reports.
	busyFor   = 10 * time.Second
	busyAgain = 10 * time.Minute
	// busyNames bounds the Services that are counted.
	busyNames = 10_000
)

// busiest finds the Service that changes most while syncs have used up their CPU time, and
// reports it. It costs nothing while they have not.
type busiest struct {
	last service.Snapshot
	// changes counts changes by Service, in the syncs since the first one that rested.
	changes  map[service.Name]int
	syncs    int
	since    time.Time
	reported time.Time
	report   func(name service.Name, changes, syncs int, rest time.Duration)
}

func newBusiest(r reporter, w *watch.Watcher) *busiest {
	return &busiest{report: func(name service.Name, changes, syncs int, rest time.Duration) {
		r.log.Warn("changes of Services take more than a tenth of a core; further changes wait longer", "wait", rest,
			"syncs", syncs, "most-changed", name, "changed-in", changes)
		r.aboutService(w, name, watch.ReasonTooManyChanges, fmt.Sprintf("changed in %d of %d syncs on node %s, where "+
			"changes take more than a tenth of a core; all changes wait for up to %s there", changes, syncs, r.node,
			rest.Round(time.Millisecond)))
	}}
}

// observe counts the Services that differ from the sync before.
func (b *busiest) observe(s proxy.Sync) {
	before := b.last
	b.last = s.Snapshot
	now := s.End()
	if s.Rest == 0 || !b.reported.IsZero() && now.Sub(b.reported) < busyAgain {
		return
	}
	if b.changes == nil || now.Sub(b.since) > 2*busyFor {
		b.changes, b.syncs, b.since = map[service.Name]int{}, 0, now
	}
	b.syncs++
	for c := range treap.Diff(before.Services, s.Snapshot.Services) {
		if _, known := b.changes[c.Key]; known || len(b.changes) < busyNames {
			b.changes[c.Key]++
		}
	}
	if now.Sub(b.since) < busyFor {
		return
	}
	var most service.Name
	for name, n := range b.changes {
		if n > b.changes[most] || n == b.changes[most] && name < most {
			most = name
		}
	}
	b.report(most, b.changes[most], b.syncs, s.Rest)
	b.changes, b.reported = nil, now
}
