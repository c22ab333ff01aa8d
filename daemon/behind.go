package daemon

import (
	"context"
	"time"

	"nftproxy/watch"
)

const (
	// behindPeriod is the time between two looks at what is behind.
	behindPeriod = time.Minute
	// behindLimit is how long something may be behind before that is an error: longer than the restart of an API server.
	behindLimit = 5 * time.Minute
	// behindReminder is the time between two lines about it.
	behindReminder = time.Hour
)

// followBehind logs an error once something has been behind for long, and again every hour, until the context ends.
// The first failure was logged at once. /readyz only has a note of it: the rules still serve, a restart would not help,
// and nodes that are not ready would hold up the very rollout that may help. A proxy that starts then is not ready.
func (r reporter) followBehind(ctx context.Context, behind func() watch.Behind) error {
	tick := time.NewTicker(behindPeriod)
	defer tick.Stop()
	var logged time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		b, now := behind(), time.Now()
		if len(b.Resources) == 0 || now.Sub(b.Since) < behindLimit {
			logged = time.Time{}
			continue
		}
		if logged.IsZero() || now.Sub(logged) >= behindReminder {
			logged = now
			r.log.Error("the rules do not follow the cluster: the API server is away or refuses; a token or certificate that "+
				"a file holds is read again when it changes",
				"behind", b.Resources, "since", b.Since.UTC().Format(time.RFC3339), "err", b.Err)
		}
	}
}
