package traffic

import (
	"context"
	"sync/atomic"
	"time"

	"nftproxy/nft"
)

// refusalPeriod is the time between two looks.
const refusalPeriod = 10 * time.Second

// RefusalWatcher looks at the counters now and then, in a goroutine of its own.
type RefusalWatcher struct {
	counter *RefusalCounter
	observe func(Refusals)
	latest  atomic.Pointer[nft.Program]
}

// NewRefusalWatcher makes a RefusalWatcher. Run calls observe after each look.
func NewRefusalWatcher(k RefusalKernel, observe func(Refusals)) *RefusalWatcher {
	return &RefusalWatcher{counter: NewRefusalCounter(k, time.Now), observe: observe}
}

// Notify says which program is in force after a sync. It costs nothing and never blocks.
func (w *RefusalWatcher) Notify(inForce *nft.Program) { w.latest.Store(inForce) }

// Run looks at the counters until the context ends, first after one period.
func (w *RefusalWatcher) Run(ctx context.Context) error {
	ticker := time.NewTicker(refusalPeriod)
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
