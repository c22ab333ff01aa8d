package traffic

import (
	"context"
	"sync/atomic"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// refusalPeriod is the time between two looks.
const refusalPeriod = 10 * time.Second

// RefusalWatcher looks at the counters now and then, in a goroutine of its own.
type RefusalWatcher struct {
	counter *RefusalCounter
	observe func(Refusals)
	latest  atomic.Pointer[nft.Program]
	look    atomic.Pointer[Refusals]
}

// NewRefusalWatcher makes a RefusalWatcher. Run calls observe after each look.
func NewRefusalWatcher(k RefusalKernel, observe func(Refusals)) *RefusalWatcher {
	return &RefusalWatcher{counter: NewRefusalCounter(k, time.Now, conntrack.ThreadTime), observe: observe}
}

// Notify says which program is in force after a sync. It costs nothing and never blocks.
func (w *RefusalWatcher) Notify(inForce *nft.Program) { w.latest.Store(inForce) }

// Held returns the connections of a Service that are held, by the latest look. It is safe for concurrent use.
func (w *RefusalWatcher) Held(name service.Name) Held {
	if look := w.look.Load(); look != nil {
		for _, h := range look.Held {
			if h.Name == name {
				return h
			}
		}
	}
	return Held{Name: name}
}

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
			look := w.counter.Look()
			w.look.Store(&look)
			w.observe(look)
		}
	}
}
