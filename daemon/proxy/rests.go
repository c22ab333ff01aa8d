package proxy

import (
	"time"

	"nftproxy/model/pace"
)

// restsFrom is the time over which syncs are counted. As many syncs as have room in it, MinSyncPeriod apart, may
// follow each other without a rest. So changes that come somewhat slower than MinSyncPeriod never wait, however
// irregular they are. A rest costs a change its time, and wakes the process once more.
const restsFrom = 100 * time.Millisecond

// rests decides how long the loop rests between syncs.
type rests struct {
	period time.Duration
	bucket pace.Bucket
}

// follow takes the period of the configuration, which may have changed.
func (r *rests) follow(period time.Duration) {
	if period != r.period {
		r.period = period
		r.bucket = pace.Bucket{Period: period}
		if period > 0 {
			r.bucket.Burst = int(max(1, restsFrom/period))
		}
	}
}

// left is how long the next sync has to wait.
func (r *rests) left(now time.Time) time.Duration {
	if r.period <= 0 {
		return 0
	}
	return r.bucket.Next(now).Sub(now)
}

// synced counts a sync that has ended.
func (r *rests) synced(now time.Time) {
	if r.period > 0 {
		r.bucket.Take(now)
	}
}
