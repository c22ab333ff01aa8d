package proxy

import (
	"time"

	"golang.org/x/time/rate"
)

// These bound how often the loop repairs tables that another program changes again and
// again. Two proxies that keep the same tables with different options would otherwise
// write them over and over, as often as they look. The burst is for a program that changes
// them a few times, such as another proxy in its last seconds.
const (
	repairBurst  = 8
	repairPeriod = 15 * time.Second
)

// repairs says whether the loop may repair tables now. Beyond the burst it waits for one to
// two periods after each repair: two proxies do not wait for the same time, so each of them
// is in force for a while, and their writes do not meet.
type repairs struct {
	bucket *rate.Limiter
	jitter func() float64
	// after is when the loop may repair again.
	after time.Time
}

func newRepairs(jitter func() float64) repairs {
	return repairs{bucket: rate.NewLimiter(rate.Every(repairPeriod), repairBurst), jitter: jitter}
}

func (r *repairs) ready(now time.Time) bool { return !now.Before(r.after) }

// made notes a repair.
func (r *repairs) made(now time.Time) {
	if r.bucket.AllowN(now, 1); r.bucket.TokensAt(now) < 1 {
		r.after = now.Add(time.Duration((1 + r.jitter()) * float64(repairPeriod)))
	}
}
