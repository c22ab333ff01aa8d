package conntrack

import (
	"context"
	"time"
)

// Occupancy is how full the table is.
type Occupancy struct {
	// Entries are those of this network namespace, Limit how many it may have
	// before the kernel drops packets of new connections; 0 is no limit.
	Entries, Limit int
	// Full says that the limit was reached, give or take a hundredth: at the
	// limit itself entries come and go all the time. It stays until a tenth of
	// the table is free again.
	Full bool
	// Err is why nothing is known; Full is as it was then.
	Err error
}

// Shares of the limit, in percent, from which on the table counts as full, and
// below which no longer.
const (
	fullFrom  = 99
	fullUntil = 90
)

// next is what follows o when the kernel has counted anew.
func (o Occupancy) next(entries, limit int, err error) Occupancy {
	if err != nil {
		return Occupancy{Full: o.Full, Err: err}
	}
	share := fullFrom
	if o.Full {
		share = fullUntil
	}
	return Occupancy{Entries: entries, Limit: limit, Full: limit > 0 && entries*100 >= limit*share}
}

// FollowOccupancy asks at once, and then once in every period, how full the
// table is, until the context is done, and then returns nil. That costs one
// message, whatever the size of the table. Meanwhile nobody else is to call
// Count.
func FollowOccupancy(ctx context.Context, table interface {
	Count(ctx context.Context) (entries, limit int, err error)
}, period time.Duration, observe func(Occupancy)) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	var o Occupancy
	for {
		entries, limit, err := table.Count(ctx)
		if ctx.Err() != nil {
			return nil
		}
		o = o.next(entries, limit, err)
		observe(o)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
