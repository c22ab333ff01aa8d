package watch

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"nftproxy/internal/service"
)

// Options are what a Watcher needs to know besides its source.
type Options struct {
	// Node is the name of this node's Node object, already lower-cased.
	Node string
	// NodeTimeout is how long the first update waits for the Node once
	// Services and EndpointSlices are there; 0 means 5 s.
	NodeTimeout time.Duration
	// AwaitPodCIDRs holds the first update back until the Node has podCIDRs,
	// for whoever tells pods by them (kube-proxy's detect-local mode NodeCIDR),
	// but no longer than PodCIDRTimeout; 0 means 5 min, kube-proxy's own.
	AwaitPodCIDRs  bool
	PodCIDRTimeout time.Duration
	// Synced is called once, when all that the first snapshot is made of is there,
	// and before it is made: whatever else it has to wait for, it has waited for.
	// It must not wait. Nil drops it.
	Synced func()
	// Report is called with every problem, from one goroutine at a time and
	// never while the watcher holds a lock. Nil drops them.
	Report func(Problem)
	// Answers is called, from the same goroutine as Report, when the API server
	// answers again after a RequestError: each request that had failed has
	// succeeded, or is refused. Nil drops it.
	Answers func()
}

// Watcher keeps a mailbox filled with the latest snapshot of one source. It
// runs once, with RunKubernetes or RunManifests.
type Watcher struct {
	opts Options
	out  *service.Mailbox
	// wake holds a token while there may be something to publish.
	wake chan struct{}

	mu     sync.Mutex
	index  *index
	outage outage
	// since is when the oldest change that is not published yet arrived.
	since  time.Time
	synced bool
	// published is the last snapshot that went out; its zero value equals none
	// of the index's, which always have a Node.
	published service.Snapshot
}

// NewWatcher returns a Watcher that has not started.
func NewWatcher(opts Options, out *service.Mailbox) *Watcher {
	if opts.NodeTimeout == 0 {
		opts.NodeTimeout = 5 * time.Second
	}
	if opts.PodCIDRTimeout == 0 {
		opts.PodCIDRTimeout = 5 * time.Minute
	}
	if opts.Synced == nil {
		opts.Synced = func() {}
	}
	if opts.Report == nil {
		opts.Report = func(Problem) {}
	}
	if opts.Answers == nil {
		opts.Answers = func() {}
	}
	return &Watcher{opts: opts, out: out, wake: make(chan struct{}, 1), index: newIndex(opts.Node)}
}

// SetHostAddresses tells the addresses on the node's interfaces, in any order.
// It may be called at any time, before and during a run, from any goroutine.
func (w *Watcher) SetHostAddresses(addrs []netip.Addr) {
	w.change(func(ix *index) { ix.setHostAddresses(addrs) })
}

// change edits the index. What comes of it is worked out later, once for all
// events that have arrived by then.
func (w *Watcher) change(edit func(*index)) {
	now := time.Now()
	w.mu.Lock()
	edit(w.index)
	if w.since.IsZero() {
		w.since = now
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // Somebody has left a token already.
	}
}

// release lets the first update go, unless ctx has ended: the index has seen
// every object, but for the Node's podCIDRs, which may take their time.
func (w *Watcher) release(ctx context.Context) {
	if w.opts.AwaitPodCIDRs {
		w.awaitPodCIDRs(ctx)
	}
	if ctx.Err() == nil {
		w.setSynced()
	}
}

// awaitPodCIDRs waits, within bounds, and says that it does.
func (w *Watcher) awaitPodCIDRs(ctx context.Context) {
	select {
	case <-w.index.podCIDRs:
		return
	default:
	}
	w.change(func(ix *index) {
		ix.missPodCIDRs(fmt.Sprintf("the first rules wait for one, up to %s", w.opts.PodCIDRTimeout))
	})
	timeout, cancel := context.WithTimeout(ctx, w.opts.PodCIDRTimeout)
	defer cancel()
	select {
	case <-w.index.podCIDRs:
	case <-timeout.Done():
		if ctx.Err() != nil {
			return
		}
		w.change(func(ix *index) { ix.missPodCIDRs("going on without: pods are not told from other sources") })
	}
}

// setSynced lets the first update go.
func (w *Watcher) setSynced() {
	w.opts.Synced()
	w.change(func(ix *index) {
		w.synced, w.since = true, time.Now()
		ix.missNode()
	})
}

// loop publishes until ctx ends.
func (w *Watcher) loop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			w.publish()
		}
	}
}

// publish puts the state into the mailbox if it has changed, and then reports
// the problems that came with it.
func (w *Watcher) publish() {
	w.mu.Lock()
	update, changed := service.Update{Since: w.since}, false
	if w.synced {
		update.Snapshot = w.index.flush()
		changed = update.Snapshot != w.published
		w.published, w.since = update.Snapshot, time.Time{}
	}
	problems, answers := w.index.takeProblems(), w.outage.takeOver()
	w.mu.Unlock()

	if changed {
		w.out.Put(update)
	}
	for _, p := range problems {
		w.opts.Report(p)
	}
	if answers {
		w.opts.Answers()
	}
}
