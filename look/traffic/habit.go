package traffic

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

const (
	// habitLooks is how many looks in a row must find packets of a Subject before its clients
	// count as persistent. A single client that tries again for a while does not.
	habitLooks = 3
	// silence is how long a Subject that was reported is not reported again.
	silence = 10 * time.Minute
	// reportBurst Subjects are reported at once, and then one in each reportPeriod. So a
	// tenant with many Services without endpoints cannot make many events.
	reportBurst  = 20
	reportPeriod = 30 * time.Second
)

// habits finds the Subjects whose clients keep coming although all are refused.
type habits struct {
	// looks is in how many looks in a row each Subject had packets.
	looks    map[Subject]int
	reported map[Subject]time.Time
	bucket   *rate.Limiter
}

// notice takes the packets of one look. It returns the Subjects to report, those with the
// most packets first.
func (h *habits) notice(now time.Time, more map[Subject]uint64) []Refused {
	for s := range h.looks {
		if more[s] == 0 {
			delete(h.looks, s)
		}
	}
	var due []Refused
	for s, n := range more {
		h.looks[s]++
		if last, before := h.reported[s]; h.looks[s] >= habitLooks && (!before || now.Sub(last) >= silence) {
			due = append(due, Refused{Subject: s, Packets: n})
		}
	}
	slices.SortFunc(due, func(a, b Refused) int {
		return cmp.Or(cmp.Compare(b.Packets, a.Packets), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Cause, b.Cause))
	})
	for i, r := range due {
		if !h.bucket.AllowN(now, 1) {
			due = due[:i]
			break
		}
		h.reported[r.Subject] = now
	}
	maps.DeleteFunc(h.reported, func(_ Subject, at time.Time) bool { return now.Sub(at) >= silence })
	return due
}

func (h *habits) forget(s Subject) {
	delete(h.looks, s)
	delete(h.reported, s)
}
