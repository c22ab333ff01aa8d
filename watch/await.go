package watch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// awaitPatience is how long the watcher waits before it reports that it waits.
const awaitPatience = time.Second

// awaited is something that the first update waits for.
type awaited struct {
	// what names it in words.
	what string
	// there is closed when it has come.
	there <-chan struct{}
	// limit bounds the wait, which begins when everything without a limit is there;
	// 0 means no limit.
	limit time.Duration
	// without says what happens without it. Empty means that another problem says
	// so.
	without string
}

// awaitSync waits for everything in the list, first for what has no limit, and then
// releases the first update. It reports a long wait, and what has not come in time.
func (w *Watcher) awaitSync(ctx context.Context, list ...awaited) {
	slices.SortStableFunc(list, func(a, b awaited) int { return cmp.Compare(a.limit, b.limit) })
	w.mu.Lock()
	w.awaited = list
	w.mu.Unlock()
	start := time.Time{}
	for i := range list {
		a := &list[i]
		var timeout <-chan time.Time
		if a.limit > 0 {
			if start.IsZero() {
				start = time.Now()
			}
			timeout = time.After(a.limit - time.Since(start))
		}
		if !w.await(ctx, list[i:], timeout) {
			return
		}
	}
	w.release(ctx)
}

// await waits for the first of the list, or for its time-out. If the wait is long, it
// reports all of the list that is missing. It returns false when ctx has ended.
func (w *Watcher) await(ctx context.Context, list []awaited, timeout <-chan time.Time) bool {
	a := &list[0]
	long := time.After(awaitPatience)
	for {
		select {
		case <-ctx.Done():
			return false
		case <-a.there:
			return true
		case <-long:
			w.reportError(&AwaitError{For: missingOf(list), Limit: a.limit})
		case <-timeout:
			if a.without != "" {
				w.reportError(&AwaitError{For: []string{a.what}, Limit: a.limit, Without: a.without})
			}
			return true
		}
	}
}

// missingOf names what has not come yet.
func missingOf(list []awaited) []string {
	var words []string
	for i := range list {
		if !isClosed(list[i].there) {
			words = append(words, list[i].what)
		}
	}
	return words
}

func (w *Watcher) reportError(err error) {
	w.change(func(ix *index) { ix.problems = append(ix.problems, Problem{Err: err}) })
}

// Awaiting returns, in words, what the first update waits for, and the last request that failed. It
// returns nil before the start and after the first update. It may be called from any goroutine.
func (w *Watcher) Awaiting() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.synced {
		return nil
	}
	words := missingOf(w.awaited)
	if w.opts.AwaitPodCIDRs && !isClosed(w.index.node.podCIDRs) {
		words = append(words, "a podCIDR of Node "+w.opts.Node)
	}
	if len(words) > 0 && w.lastFailure != nil {
		words = append(words, fmt.Sprintf("the API server (%v)", w.lastFailure))
	}
	return words
}

// release waits for the Node's podCIDRs, if they are needed, and then releases the
// first update, unless ctx has ended. The index has every object by then.
func (w *Watcher) release(ctx context.Context) {
	if w.opts.AwaitPodCIDRs {
		w.awaitPodCIDRs(ctx)
	}
	if ctx.Err() == nil {
		w.retainFormer()
		w.setSynced()
	}
}

// awaitPodCIDRs waits for the Node's podCIDRs, up to the time-out, and reports it.
func (w *Watcher) awaitPodCIDRs(ctx context.Context) {
	if isClosed(w.index.node.podCIDRs) {
		return
	}
	w.change(func(ix *index) {
		ix.missPodCIDRs(fmt.Sprintf("the first rules wait for one, up to %s", w.opts.PodCIDRTimeout))
	})
	timeout, cancel := context.WithTimeout(ctx, w.opts.PodCIDRTimeout)
	defer cancel()
	select {
	case <-w.index.node.podCIDRs:
	case <-timeout.Done():
		if ctx.Err() != nil {
			return
		}
		w.change(func(ix *index) { ix.missPodCIDRs("going on without: pods are not told from other sources") })
	}
}

// setSynced releases the first update.
func (w *Watcher) setSynced() {
	w.opts.Synced()
	w.change(func(ix *index) {
		w.synced, w.since = true, time.Now()
		ix.missNode()
	})
}

// isClosed says whether a channel is closed that nothing is sent to.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// closeOnce closes a channel that is not closed yet. No other goroutine may close it
// at the same time.
func closeOnce(c chan struct{}) {
	if !isClosed(c) {
		close(c)
	}
}
