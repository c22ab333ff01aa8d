package conntrack

import (
	"context"
	"time"
)

// Occupancy is how full the table is, and what packets it has no entry for.
type Occupancy struct {
	// Entries is the number of entries of this network namespace. Limit is the
	// number from which the kernel drops packets of new connections; 0 is no limit.
	Entries, Limit int
	// Invalid is the number of packets that belonged to no connection since the network namespace began.
	Invalid uint64
	// Full says that the table reached 99 % of the limit: at the limit itself,
	// entries come and go all the time. It stays true until a tenth of the table is
	// free again.
	Full bool
	// Err says why the count failed; Full is then the same as before.
	Err error
}

// The table counts as full from fullFrom percent of the limit on, until it is below
// fullUntil percent.
const (
	fullFrom  = 99
	fullUntil = 90
)

// next returns the occupancy after o, from a new count.
func (o Occupancy) next(entries, limit int, invalid uint64, err error) Occupancy {
	if err != nil {
		return Occupancy{Full: o.Full, Err: err}
	}
	share := fullFrom
	if o.Full {
		share = fullUntil
	}
	return Occupancy{Entries: entries, Limit: limit, Invalid: invalid, Full: limit > 0 && entries*100 >= limit*share}
}

// FollowOccupancy reports how full the table is to observe, at once and then once in
// every period. It returns nil when the context ends. A count costs two messages, of
// which one is answered for each CPU, whatever the size of the table.
func FollowOccupancy(ctx context.Context, table interface {
	Count(ctx context.Context) (entries, limit int, err error)
	Invalid(ctx context.Context) (packets uint64, err error)
}, period time.Duration, observe func(Occupancy)) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	var o Occupancy
	for {
		entries, limit, err := table.Count(ctx)
		var invalid uint64
		if err == nil {
			invalid, err = table.Invalid(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		o = o.next(entries, limit, invalid, err)
		observe(o)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
