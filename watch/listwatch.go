package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"nftproxy/model/service"
	"nftproxy/watch/wire"
)

const (
	// watchTime is the least time for which a watch is asked for, and half of the most. The nodes' watches end at
	// different times.
	watchTime = 5 * time.Minute
	// watchGrace is how long a watch may last beyond that before the watcher ends it.
	watchGrace = 30 * time.Second
	// openPatience is how long the answer to a watch may take to begin. Proxies hold it back until the first event, and an
	// API server sends a bookmark each minute.
	openPatience = 90 * time.Second
	// steady is how long a watch has to be open for its resource to count as up to date.
	steady = time.Second
	// stubborn is after how many refusals of a watch by a server in trouble its version is given up: they may be because
	// of it.
	stubborn = 5
)

// listWatch keeps the index equal to a resource of the API server. The package's comment has the protocol. Its methods
// are called from one goroutine.
type listWatch[K converted] struct {
	watcher  *Watcher
	resource string
	ways     ways[K]
	// known returns the objects of the kind that the index has.
	known func(*index) []K
	// synced is closed once the first full list is in the index, or the API server has said that it lacks
	// an optional resource.
	synced chan struct{}
	// optional says that the proxy can do without the resource, and that some API servers do not have it, or
	// give no right to read it.
	optional bool
	// seen says that the API server has had the resource.
	seen   bool
	pauses pauses

	// The watcher's lock holds what follows. last has the text of the last failure of each verb, empty for none. open says
	// that a watch is open.
	last map[string]string
	open bool
}

func newListWatch[K converted](w *Watcher, resource string, known func(*index) []K, list ...way[K]) *listWatch[K] {
	return &listWatch[K]{
		watcher: w, resource: resource, ways: ways[K]{list: list}, known: known, synced: make(chan struct{}),
		last: map[string]string{},
	}
}

// run follows the resource until ctx ends.
func (l *listWatch[K]) run(ctx context.Context) {
	version := "" // The index has everything up to it; empty if it is to be listed.
	for ctx.Err() == nil {
		if version == "" {
			version = l.list(ctx)
		} else {
			version = l.watch(ctx, version)
		}
	}
}

// list puts the API server's list into the index, and returns its version. If there is none, it returns "" after a
// pause.
//
// Without a version and a limit, the list has everything that was written before the request. The API server answers
// from its cache, once that is up to date (KEP-2340, since Kubernetes 1.31). With the version 0 it would send what the
// cache happens to have, and a node would go back in time by a server whose cache is old. Lists as streams of events
// (KEP-3157) take the API server and the node two to three times the CPU time (docs/evidence/reliability.md).
func (l *listWatch[K]) list(ctx context.Context) (version string) {
	var list *wire.List[K]
	err := l.ways.ask(func(w way[K]) (err error) {
		list, err = w.client.List(ctx, w.selectors)
		return err
	})
	if err == nil && list.Version == "" {
		err = errors.New("the list has no version")
	}
	if err != nil {
		l.failed(ctx, "list", err)
		return ""
	}
	l.seen = true
	l.pauses.answer()
	l.replace(list.Items)
	l.listed()
	return list.Version
}

// replace puts the list in the place of all objects, in one step: at the start, and when the API server lists again.
// Where the list lacks most Services or their endpoints, these are retained (retention.go).
func (l *listWatch[K]) replace(objects []K) {
	now := time.Now()
	l.watcher.change(func(ix *index) {
		gone := others(l.known(ix), objects)
		lost := lossOf(ix, gone)
		for _, o := range gone {
			o.drop(ix)
		}
		ix.expect(objects)
		for _, o := range objects {
			o.put(ix)
		}
		ix.retain(lost, now)
	})
	closeOnce(l.synced)
}

// others returns those of the known objects that are not in the list.
func others[K converted](known, list []K) []K {
	if len(known) == 0 { // the start
		return nil
	}
	listed := make(map[service.Name]bool, len(list))
	for _, o := range list {
		listed[o.meta().key] = true
	}
	return slices.DeleteFunc(known, func(o K) bool { return listed[o.meta().key] })
}

// watch follows the changes since a version until the watch ends, and then pauses unless it was open for the longest
// pause, whatever it brought. It returns the version from which to go on, or "" if it has to be listed.
func (l *listWatch[K]) watch(ctx context.Context, version string) (next string) {
	w := l.watchOnce(ctx, version)
	if w.lasted >= longestPause {
		l.pauses = pauses{}
	}
	switch {
	case ctx.Err() != nil, w.err == nil && w.lasted >= longestPause:
		return w.version
	case w.err == nil && (w.changed || w.lasted >= steady):
		l.short(ctx, w.lasted)
		return w.version
	case w.err == nil:
		w.err = errEnded
	}
	if l.loses(w.err, w.opened) {
		w.version = ""
	}
	l.failed(ctx, "watch", w.err)
	return w.version
}

// errEnded is the error of a watch that ends at once, and errShort that of one of many that end soon.
var (
	errEnded = errors.New("the watch ends as soon as it is open")
	errShort = fmt.Errorf("watches end within %s again and again, so changes can be as late", longestPause)
)

// manyShort is after how many watches in a row that end soon the watcher reports it.
const manyShort = 5

// short pauses after a watch that did its work but ended soon. The first times there is hardly a pause: a connection
// that breaks is made anew at once.
func (l *listWatch[K]) short(ctx context.Context, lasted time.Duration) {
	if l.pauses.tries == manyShort {
		l.watcher.reportError(newRequestError("watch", l.resource, errShort))
	}
	pauseFor(ctx, l.pauses.next(nil, longestPause)-lasted)
}

// outcome is what came of a watch.
type outcome struct {
	// version is the one that the watch has reached. changed says that there was a change on the way.
	version string
	changed bool
	// opened says that the watch was opened, and lasted for how long it was open.
	opened bool
	lasted time.Duration
	// err is as wire.Client.Watch has it.
	err error
}

// watchOnce makes a watch, and takes its changes into the index until it ends.
func (l *listWatch[K]) watchOnce(ctx context.Context, version string) outcome {
	w := outcome{version: version}
	most := watchTime + rand.N(watchTime)
	seconds := int64(most.Seconds())
	limited, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limit := time.AfterFunc(openPatience, func() { cancel(fmt.Errorf("no answer for %s", openPatience)) })
	defer limit.Stop()
	var since time.Time
	current := sync.OnceFunc(l.current)
	proof := time.AfterFunc(steady, current)
	proof.Stop()
	defer proof.Stop()
	opened := func() {
		w.opened, since = true, time.Now()
		limit.Reset(most + watchGrace)
		l.setOpen(true)
		proof.Reset(steady)
	}
	take := func(kind apiwatch.EventType, object K) {
		switch kind {
		case apiwatch.Bookmark:
		case apiwatch.Deleted:
			l.watcher.change(object.drop)
		default:
			l.watcher.change(object.put)
		}
		if v := object.GetResourceVersion(); v != "" {
			w.changed = w.changed || kind != apiwatch.Bookmark && v != w.version
			w.version = v
		}
		if w.changed {
			current()
		}
	}
	_ = l.ways.ask(func(a way[K]) error { // w.err has the error, too.
		options := a.selectors
		options.ResourceVersion, options.TimeoutSeconds, options.AllowWatchBookmarks = version, &seconds, true
		if w.err = a.client.Watch(limited, options, opened, take); w.opened {
			return nil
		}
		return w.err
	})
	if !w.opened && limited.Err() != nil {
		w.err = context.Cause(limited)
	}
	if w.opened {
		w.lasted = time.Since(since)
		l.setOpen(false)
	}
	return w
}

// loses says whether a watch that was not opened, or ended, with this error is not to go on from its version.
func (l *listWatch[K]) loses(err error, opened bool) bool {
	status := apierrors.APIStatus(nil)
	answered := errors.As(err, &status)
	switch {
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsBadRequest(err), apierrors.IsInvalid(err):
		return true
	case utilnet.IsConnectionRefused(err):
		// Nobody listens: the API server begins again, and knows no change from before. Also etcd may have been restored from
		// an older state meanwhile. Then the server counts versions from that state on, and leaves out of a watch whatever
		// has a lower one than the index's: the watcher would miss changes for good.
		return true
	case answered:
		return status.Status().Code >= 500 && l.pauses.tries >= stubborn
	case errors.Is(err, errEnded), errors.Is(err, wire.ErrForeign):
		return false
	}
	return opened // An event that cannot be decoded comes again; the list may be without it.
}

// setOpen notes that a watch is open, or that it has ended, as each does after some minutes.
func (l *listWatch[K]) setOpen(open bool) {
	l.watcher.mu.Lock()
	defer l.watcher.mu.Unlock()
	l.open = open
	if !open {
		l.watcher.outage.ended(l.resource)
	}
}

// current notes that the resource is up to date if its watch is still open: a watch goes on from a list or from another
// watch.
func (l *listWatch[K]) current() {
	l.watcher.change(func(*index) {
		if l.open {
			l.last["watch"], l.watcher.lastFailure = "", nil
			l.watcher.outage.current(l.resource)
		}
	})
}

// listed notes that a list has succeeded: its next failure is reported.
func (l *listWatch[K]) listed() {
	l.watcher.mu.Lock()
	defer l.watcher.mu.Unlock()
	l.last["list"], l.watcher.lastFailure = "", nil
}

// failed reports that a request failed, but not again while it fails in the same way, and then pauses. Where the server
// lacks or refuses a resource that the proxy can do without, the pause grows to some minutes: a server that starts, and
// an administrator, may give it in a moment.
func (l *listWatch[K]) failed(ctx context.Context, verb string, err error) {
	if ctx.Err() != nil {
		return
	}
	expected := apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || errors.Is(err, errEnded) &&
		l.pauses.tries == 0
	if !expected {
		l.report(verb, err)
	}
	pause := time.Duration(0)
	switch absent := apierrors.IsNotFound(err); {
	case l.optional && absent && !l.seen:
		pause = jittered(longestLack)
	case l.optional && (absent || apierrors.IsForbidden(err)):
		pause = l.pauses.next(err, longestLack)
	default:
		pause = l.pauses.next(err, longestPause)
	}
	pauseFor(ctx, pause)
}

func pauseFor(ctx context.Context, pause time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func (l *listWatch[K]) report(verb string, err error) {
	absent := apierrors.IsNotFound(err)
	refused := absent || apierrors.IsForbidden(err)
	if absent = absent && l.optional; absent {
		closeOnce(l.synced)
		err = &AbsentError{Resource: l.resource, Err: err}
	} else {
		err = newRequestError(verb, l.resource, err)
	}
	text := err.Error()
	l.watcher.change(func(ix *index) {
		if text != l.last[verb] {
			ix.problems = append(ix.problems, Problem{Err: err})
		}
		l.last[verb] = text
		if !absent {
			l.watcher.lastFailure = err
		}
		l.watcher.outage.failed(l.resource, refused, err)
	})
}
