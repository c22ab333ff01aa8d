package watch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"syscall"

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
	// absent is closed when the API server has no such resource: before 1.33 it has no
	// ServiceCIDRs, and the watcher does not wait for them.
	absent chan struct{}
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
	err = &RequestError{Verb: verb, Resource: r.resource, Err: err}
	if apierrors.IsNotFound(err) {
		closeOnce(r.absent)
	}
	r.away = r.away || verb == "watch" && utilnet.IsConnectionRefused(err)
	text := err.Error()
	news := text != r.last[verb]
	r.last[verb] = text
	r.watcher.change(func(ix *index) {
		if news {
			ix.problems = append(ix.problems, Problem{Err: err})
		}
		r.watcher.lastFailure = err
		r.watcher.outage.failed(r.resource, apierrors.IsNotFound(err) || apierrors.IsForbidden(err))
	})
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
