package proxy

import (
	"time"

	"golang.org/x/time/rate"

	"nftproxy/model/pace"
	"nftproxy/model/service"
)

// restsFrom sets the burst of syncs without a rest between them: as many as fit into restsFrom at one per
// MinSyncPeriod. So changes that on average come somewhat slower than MinSyncPeriod never wait, even if they are
// irregular. A rest delays the change, and wakes the process once more.
const restsFrom = 100 * time.Millisecond

// These bound the CPU time of syncs in the long run: one part in syncRest of a core, and a
// burst beyond that, which is for first loads and rollouts. Most changes cost 0.1 ms and
// never reach it. But some make the kernel walk through all Services (docs/internals/data-path.md, 'A
// scaled Service'), and one Service that makes such changes all the time would take most of a core.
const (
	syncRest  = 10
	syncBurst = 10 * time.Second
)

// These bound the CPU time of the syncs for the objects of one namespace, so that nobody else pays for them: half of
// what all have. Most namespaces never reach the burst.
const (
	namespaceRest  = 2 * syncRest
	namespaceBurst = 2 * time.Second
	// longestHold is the longest time that a change waits because of its namespace: an endpoint that has gone is no longer
	// used then.
	longestHold = 10 * time.Second
)

// NewAccounts returns the accounts of namespaces.
func NewAccounts() *pace.Accounts {
	return &pace.Accounts{Rest: namespaceRest, Burst: namespaceBurst, Longest: longestHold}
}

// namespaces sums up elements of parts by namespace. Parts that are no Service's have none.
func namespaces(parts map[string]int) map[string]int {
	sums := map[string]int{}
	for name, n := range parts {
		if namespace, base := service.Name(name).Split(); base != "" {
			sums[namespace] += n
		}
	}
	return sums
}

// rests decides how long the loop rests between syncs.
type rests struct {
	period time.Duration
	bucket *rate.Limiter // nil without a period
	budget pace.Budget
	// ended is when the last sync ended, and cost its CPU time.
	ended time.Time
	cost  time.Duration
}

func newRests() rests { return rests{budget: pace.Budget{Rest: syncRest, Burst: syncBurst}} }

// follow takes the period of the configuration, which may have changed.
func (r *rests) follow(period time.Duration) {
	if period != r.period {
		r.period = period
		r.bucket = nil
		if period > 0 {
			r.bucket = rate.NewLimiter(rate.Every(period), int(max(1, restsFrom/period)))
		}
	}
}

// left returns how long the next sync has to wait.
func (r *rests) left(now time.Time) time.Duration {
	left := r.long(now)
	if r.bucket != nil {
		left = max(left, time.Duration((1-r.bucket.TokensAt(now))*float64(r.period)))
	}
	return left
}

// long returns how long the next sync has to wait because syncs have taken too much CPU time:
// until the last sync and the rest after it are within the share. The rest after a cheap sync
// is short, whatever earlier syncs have cost.
func (r *rests) long(now time.Time) time.Duration {
	ready := r.budget.Ready()
	if !now.Before(ready) {
		return 0
	}
	return max(0, min(ready.Sub(now), r.ended.Add((syncRest-1)*r.cost).Sub(now)))
}

// spent notes the CPU time of a sync that has ended.
func (r *rests) spent(now time.Time, cpu time.Duration) {
	r.budget.Spend(now, cpu)
	r.ended, r.cost = now, cpu
}

// synced counts a sync that has ended and that wrote, or tried to.
func (r *rests) synced(now time.Time) {
	if r.bucket != nil {
		r.bucket.ReserveN(now, 1)
	}
}
