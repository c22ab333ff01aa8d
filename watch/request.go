package watch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// requests follows the requests for one resource. It reports one that fails, and not
// again while it fails in the same way. It notes in the outage when the resource is up
// to date and when it no longer is. One reflector uses it, from one goroutine.
type requests struct {
	watcher  *Watcher
	resource string
	// last has the text of the last failure of each verb, empty for none.
	last map[string]string
	// away says that nobody listened at the API server's address when the watch was to go
	// on.
	away bool
	// optional says that the proxy can do without the resource, and that some API servers do not have it, or
	// give no right to read it.
	optional bool
	// absent is closed when the API server has no such resource: before 1.33 it has no
	// ServiceCIDRs, and the watcher does not wait for them.
	absent chan struct{}
	// pause is the time before the next list of an optional resource that the API server lacks or refuses.
	pause time.Duration
	// seen says that the API server has had the resource.
	seen bool
}

func (w *Watcher) newRequests(resource string) *requests {
	return &requests{watcher: w, resource: resource, last: map[string]string{}, absent: make(chan struct{})}
}

func (r *requests) done(ctx context.Context, verb string, err error) {
	switch {
	case err == nil:
		r.last[verb] = ""
		r.watcher.mu.Lock()
		defer r.watcher.mu.Unlock()
		r.watcher.lastFailure = nil
		return
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsInvalid(err):
		// The end of the run, or an error that reflectors handle: the version of a
		// watch is too old.
		return
	}
	// The URL has a random time-out in it, which would make each error text different.
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	absent := apierrors.IsNotFound(err)
	if absent {
		closeOnce(r.absent)
	}
	if absent && r.optional {
		err = &AbsentError{Resource: r.resource, Err: err}
	} else {
		err = &RequestError{Verb: verb, Resource: r.resource, Err: err}
	}
	r.away = r.away || verb == "watch" && utilnet.IsConnectionRefused(err)
	text := err.Error()
	news := text != r.last[verb]
	r.last[verb] = text
	r.watcher.change(func(ix *index) {
		if news {
			ix.problems = append(ix.problems, Problem{Err: err})
		}
		if !absent {
			r.watcher.lastFailure = err
		}
		r.watcher.outage.failed(r.resource, absent || apierrors.IsForbidden(err))
	})
}

// lackPause is the first pause of lacks where the API server may have the resource in a moment.
const lackPause = time.Second

// lacks says whether err is the refusal of an optional resource. Then it has waited for some minutes, and the list is to
// be asked for again. The first waits are short where the resource was there before, and where the right to read it
// is missing: a server that starts, and an administrator, may give it in a moment.
func (r *requests) lacks(ctx context.Context, err error) bool {
	absent := apierrors.IsNotFound(err)
	switch {
	case err == nil:
		r.pause, r.seen = 0, true
		return false
	case !r.optional || !absent && !apierrors.IsForbidden(err):
		return false
	case absent && !r.seen:
		r.pause = lackPeriod
	default:
		r.pause = min(max(2*r.pause, lackPause), lackPeriod)
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(jittered(r.pause)):
		return true
	}
}

// mayHaveGoneBack says, once after each time that the API server was away, that a watch must
// not go on from the version that the store has: etcd may have been restored from an
// older state meanwhile. The server counts versions from that state on, and leaves out
// of such a watch whatever has a lower one than the store's. Then the watcher would miss
// changes for good.
func (r *requests) mayHaveGoneBack() bool {
	away := r.away
	r.away = false
	return away
}

// watchAgain returns the error of a watch that was not opened. Where the connection ended or timed out, a reflector opens
// the watch again after a pause, as after a refused connection. Otherwise it would list everything, and so would all nodes
// behind a load balancer whose API server restarts.
func watchAgain(err error) error {
	if utilnet.IsProbableEOF(err) || utilnet.IsTimeout(err) {
		return unanswered{err}
	}
	return err
}

// unanswered is an error that reflectors take for a refused connection.
type unanswered struct{ error }

// As makes it a syscall.ECONNREFUSED for errors.As.
func (unanswered) As(target any) bool {
	errno, ok := target.(*syscall.Errno)
	if ok {
		*errno = syscall.ECONNREFUSED
	}
	return ok
}

// Unwrap returns the error itself.
func (u unanswered) Unwrap() error { return u.error }

// follow notes that a watch is open, and when it ends. The resource is up to date from then on: a watch goes on from a
// list or from another watch.
func (r *requests) follow(stream apiwatch.Interface) apiwatch.Interface {
	r.watcher.change(func(*index) { r.watcher.outage.current(r.resource) })
	return &openWatch{Interface: stream, ended: func() {
		r.watcher.change(func(*index) { r.watcher.outage.ended(r.resource) })
	}}
}

// openWatch is a watch that calls ended when its reader stops it, as every reader does.
type openWatch struct {
	apiwatch.Interface
	once  sync.Once
	ended func()
}

// Stop ends the watch.
func (o *openWatch) Stop() {
	o.Interface.Stop()
	o.once.Do(o.ended)
}

// RequestError is a request that the API server does not answer, or refuses. The watcher
// sends it again; until it succeeds the last state stays.
type RequestError struct {
	// Verb is list or watch.
	Verb, Resource string
	Err            error
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("%s %s: %v: trying again", e.Verb, e.Resource, e.Err)
}

// Unwrap returns the client's error.
func (e *RequestError) Unwrap() error { return e.Err }

// AbsentError says that the API server does not have a resource that the proxy can do without. The watcher asks again
// every few minutes.
type AbsentError struct {
	Resource string
	// Err is the API server's answer.
	Err error
}

func (e *AbsentError) Error() string { return fmt.Sprintf("%s: %v", e.Resource, e.Err) }

// Unwrap returns the API server's answer.
func (e *AbsentError) Unwrap() error { return e.Err }
