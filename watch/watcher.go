package watch

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"k8s.io/client-go/kubernetes"
)

// Options are what a Watcher needs to know besides its source.
type Options struct {
	// Node is the name of this node's Node object, already lower-cased.
	Node string
	// NodeTimeout is how long the first update waits for the Node once
	// Services and EndpointSlices are there; 0 means 5 s.
	NodeTimeout time.Duration
	// Report is called with every problem, from one goroutine at a time and
	// never while the watcher holds a lock. Nil drops them.
	Report func(Problem)
}

// Watcher keeps a Mailbox filled with the latest snapshot of one source.
type Watcher struct {
	opts Options
	out  *Mailbox
}

// NewWatcher returns a Watcher that has not started.
func NewWatcher(opts Options, out *Mailbox) *Watcher {
	return &Watcher{opts: opts, out: out}
}

// RunKubernetes follows the API server until ctx ends, and returns nil then.
// Nothing is published before Services and EndpointSlices have synced and the
// Node too, or its time-out is over. An API server that is away is waited for,
// and the last state stays.
func (w *Watcher) RunKubernetes(ctx context.Context, client kubernetes.Interface) error {
	return errors.New("not written yet")
}

// RunManifests follows the manifests at path, a file or a directory of *.yaml,
// *.yml and *.json files, until ctx ends, and returns nil then. A path that
// does not exist at the start is an error.
func (w *Watcher) RunManifests(ctx context.Context, path string) error {
	return errors.New("not written yet")
}

// SetHostAddresses tells the addresses on the node's interfaces, in any order.
// It may be called at any time, before and during a Run, from any goroutine.
func (w *Watcher) SetHostAddresses(addrs []netip.Addr) {
}
