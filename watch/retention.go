package watch

import (
	"maps"
	"slices"
	"time"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// leastMissing is how many Services a list has to lack to be suspicious. Fewer are soon written again, and
// it is normal for small clusters to lose most of their Services.
const leastMissing = 10

// settled is how long the source has to answer without a break before anything is
// removed, if the period is not shorter. A restored API server sends its new list in that
// time.
const settled = time.Minute

// suspicious reports whether a list is suspicious: it lacks more than half of the Services that
// serve, and at least leastMissing.
func suspicious(missing, serving int) bool { return missing >= leastMissing && 2*missing > serving }

// retention decides which Services are still served although a list lacks them, and until when. A list that takes the
// endpoints away from most Services at once is more likely to come from a broken or restored API server than from its
// users. It knows names and times only; the caller passes both in, keeps the Services and serves them.
type retention struct {
	// period is how long a Service is retained; 0 retains none.
	period time.Duration
	until  map[service.Name]time.Time
	// first is when the first Service is due. It may be earlier, for one that was released.
	first time.Time
	// away says that the source does not answer. answers is since when it has answered
	// again, the zero time if it was never away.
	away    bool
	answers time.Time
}

// newRetention makes a retention that retains Services for the period after the list that lacks
// them; 0 retains none.
func newRetention(period time.Duration) *retention {
	return &retention{period: period, until: map[service.Name]time.Time{}}
}

// Judge decides about a list. missing are the Services that the list takes the endpoints away from,
// and serving is the number of all that serve. Judge retains them if the list is suspicious, and
// reports whether it does.
func (r *retention) Judge(missing []service.Name, serving int, now time.Time) bool {
	if r.period <= 0 || !suspicious(len(missing), serving) {
		return false
	}
	for _, name := range missing {
		if !r.Retains(name) {
			r.note(name, now.Add(r.period))
		}
	}
	return true
}

func (r *retention) note(name service.Name, until time.Time) {
	r.until[name], r.first = until, pace.Soonest(r.first, until)
}

// Retains reports whether a Service is retained.
func (r *retention) Retains(name service.Name) bool {
	_, is := r.until[name]
	return is
}

// Release forgets a Service: it is there again, or the source says that it is gone.
func (r *retention) Release(name service.Name) { delete(r.until, name) }

// ReleaseAll forgets all Services, and returns them.
func (r *retention) ReleaseAll() []service.Name {
	all := slices.Sorted(maps.Keys(r.until))
	clear(r.until)
	return all
}

// Away notes whether the source answers. While it is away, nothing is removed.
func (r *retention) Away(away bool, now time.Time) {
	if r.away && !away {
		r.answers = now
	}
	r.away = away
}

// Next returns the time at which to call Due; zero if there is none. It costs the same for
// any number of Services.
func (r *retention) Next() time.Time {
	if r.away || len(r.until) == 0 {
		return time.Time{}
	}
	return pace.Later(r.first, r.earliest())
}

// Last returns when the last retained Service is due, as far as known, and whether the
// source has to answer first.
func (r *retention) Last() (due time.Time, away bool) {
	due = r.earliest()
	for _, until := range r.until {
		due = pace.Later(due, until)
	}
	return due, r.away
}

// earliest is when the first Service may go after the source has come back.
func (r *retention) earliest() time.Time {
	if r.answers.IsZero() {
		return r.answers
	}
	return r.answers.Add(min(settled, r.period))
}

// Due returns the Services whose period is over, sorted, and forgets them.
func (r *retention) Due(now time.Time) []service.Name {
	if r.away || now.Before(r.earliest()) {
		return nil
	}
	var due []service.Name
	all := r.until
	r.until, r.first = map[service.Name]time.Time{}, time.Time{}
	for name, until := range all {
		if now.Before(until) {
			r.note(name, until)
		} else {
			due = append(due, name)
		}
	}
	slices.Sort(due)
	return due
}
