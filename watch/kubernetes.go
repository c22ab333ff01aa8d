package watch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// What the API server is asked for: kube-proxy's own choice, so that the same
// labels keep an object away from either.
const (
	serviceLabels = "!" + labelProxyName
	serviceFields = "spec.clusterIP!=" + corev1.ClusterIPNone
	sliceLabels   = "!" + labelHeadless
)

// RunKubernetes follows the API server until ctx ends, and returns nil then.
// Nothing is published before Services and EndpointSlices have synced and the
// Node too, or its time-out is over. An API server that is away or refuses is
// reported, asked again and again, and the last state stays.
func (w *Watcher) RunKubernetes(ctx context.Context, client kubernetes.Interface) error {
	services := newStore(w, convertService, (*index).setService, (*index).deleteService, (*index).serviceNames)
	slices := newStore(w, convertSlice, (*index).setSlice, (*index).deleteSlice, (*index).sliceNames)
	node := newStore(w, convertNode, (*index).setNode, (*index).deleteNode, (*index).nodeNames)

	// The reflectors are not waited for: one that backs off from an API
	// server that is away sees the end of ctx only afterwards.
	go reflect(ctx, w, client, "services", client.CoreV1().Services(metav1.NamespaceAll),
		metav1.ListOptions{LabelSelector: serviceLabels, FieldSelector: serviceFields}, &corev1.Service{}, services)
	go reflect(ctx, w, client, "endpointslices", client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll),
		metav1.ListOptions{LabelSelector: sliceLabels}, &discoveryv1.EndpointSlice{}, slices)
	go reflect(ctx, w, client, "nodes", client.CoreV1().Nodes(),
		metav1.ListOptions{FieldSelector: "metadata.name=" + w.opts.Node}, &corev1.Node{}, node)
	go w.awaitSync(ctx, node.synced, services.synced, slices.synced)
	w.loop(ctx)
	return nil
}

// awaitSync waits for what is required and, within bounds, for the Node.
func (w *Watcher) awaitSync(ctx context.Context, node <-chan struct{}, required ...<-chan struct{}) {
	for _, synced := range required {
		select {
		case <-synced:
		case <-ctx.Done():
			return
		}
	}
	timeout := time.NewTimer(w.opts.NodeTimeout)
	defer timeout.Stop()
	select {
	case <-node:
	case <-timeout.C:
	case <-ctx.Done():
		return
	}
	w.setSynced()
}

// backoff is how often a reflector asks an API server that is away: after
// 0.2-0.4 s first, then less and less, every 10-20 s in the end. client-go's
// own goes to a minute, for which a node would have no new endpoints after the
// server has come back.
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 10 * time.Second, Steps: 50}
}

// lister is what client-go's typed clients have in common.
type lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error)
}

// reflect keeps the store like the API server's list until ctx ends. There is
// no informer in between: the index holds everything already, and an informer
// would hold it a second time and pass each event on through a queue.
func reflect[L runtime.Object](ctx context.Context, w *Watcher, client kubernetes.Interface, resource string, api lister[L],
	selectors metav1.ListOptions, example runtime.Object, store cache.ReflectorStore) {
	requests := &requests{watcher: w, resource: resource}
	listWatch := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			opts.LabelSelector, opts.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
			list, err := api.List(ctx, opts)
			requests.done(ctx, "list", err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			opts.LabelSelector, opts.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
			stream, err := api.Watch(ctx, opts)
			requests.done(ctx, "watch", err)
			return stream, err
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(listWatch, client), example, store,
		cache.ReflectorOptions{Name: "nftproxy/watch", TypeDescription: resource, Backoff: backoff()},
	).RunWithContext(ctx)
}

// requests reports a request that fails, once as long as it fails in the same
// way. One reflector uses it, from one goroutine.
type requests struct {
	watcher  *Watcher
	resource string
	last     string
}

func (r *requests) done(ctx context.Context, verb string, err error) {
	switch {
	case err == nil:
		r.last = ""
		return
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsInvalid(err):
		// The end, or what reflectors take in their stride: a watch that has
		// grown too old, a server that cannot stream lists.
		return
	}
	// The URL has a random time-out in it, which would make every error new.
	if request := (*url.Error)(nil); errors.As(err, &request) {
		err = request.Err
	}
	err = &RequestError{Verb: verb, Resource: r.resource, Err: err}
	if text := err.Error(); text != r.last {
		r.last = text
		r.watcher.change(func(ix *index) { ix.problems = append(ix.problems, Problem{Err: err}) })
	}
}

// RequestError is a request that the API server does not answer, or refuses.
// It is asked again; until then the last state stays.
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
