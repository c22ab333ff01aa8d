package proxy

import (
	"time"

	"nftproxy/model/pace"
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
	bucket pace.Bucket
	jitter func() float64
	// after is when the loop may repair again.
	after time.Time
}

func newRepairs(jitter func() float64) repairs {
	return repairs{bucket: pace.Bucket{Burst: repairBurst, Period: repairPeriod}, jitter: jitter}
}

func (r *repairs) ready(now time.Time) bool { return !now.Before(r.after) }

// made notes a repair.
func (r *repairs) made(now time.Time) {
	if r.bucket.Take(now); r.bucket.Level(now) == 0 {
		r.after = now.Add(time.Duration((1 + r.jitter()) * float64(repairPeriod)))
	}
}
