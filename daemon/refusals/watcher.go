package refusals

import (
	"context"
	"sync/atomic"
	"time"

	"nftproxy/nft"
)

// Period is the time between two looks.
const Period = 10 * time.Second

// Watcher looks at the counters now and then, in a goroutine of its own.
type Watcher struct {
	counter *Counter
	period  time.Duration
	observe func(Look)
	latest  atomic.Pointer[nft.Program]
}

// NewWatcher makes a Watcher. Run calls observe after each look.
func NewWatcher(k Kernel, period time.Duration, observe func(Look)) *Watcher {
	return &Watcher{counter: NewCounter(k, time.Now), period: period, observe: observe}
}

// Notify says which program is in force after a sync. It costs nothing and never blocks.
func (w *Watcher) Notify(inForce *nft.Program) { w.latest.Store(inForce) }

// Run looks at the counters until the context ends, first after one period.
func (w *Watcher) Run(ctx context.Context) error {
	ticker := time.NewTicker(w.period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if p := w.latest.Load(); p != nil {
			w.counter.Follow(p)
			w.observe(w.counter.Look())
		}
	}
}
