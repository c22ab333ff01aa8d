package watch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
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
// Nothing is published before Services and EndpointSlices have synced, and the
// ServiceCIDRs and the Node too, or their time-outs are over. An API server that
// is away or refuses is reported, asked again and again, and the last state
// stays.
func (w *Watcher) RunKubernetes(ctx context.Context, client kubernetes.Interface) error {
	services, slices := newServiceStore(w), newSliceStore(w)
	cidrs := newStore(w, convertCIDR, (*index).setCIDR, (*index).deleteCIDR, (*index).cidrNames)
	node := newStore(w, convertNode, (*index).setNode, (*index).deleteNode, (*index).nodeNames)

	refused := make(chan struct{})
	asked := &requests{watcher: w, resource: "servicecidrs", refused: refused}
	// The reflectors are not waited for: one that backs off from an API
	// server that is away sees the end of ctx only afterwards.
	go reflect(ctx, client, &requests{watcher: w, resource: "services"}, client.CoreV1().Services(metav1.NamespaceAll),
		metav1.ListOptions{LabelSelector: serviceLabels, FieldSelector: serviceFields}, &corev1.Service{}, services)
	go reflect(ctx, client, &requests{watcher: w, resource: "endpointslices"}, client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll),
		metav1.ListOptions{LabelSelector: sliceLabels}, &discoveryv1.EndpointSlice{}, slices)
	go reflect(ctx, client, asked, client.NetworkingV1().ServiceCIDRs(), metav1.ListOptions{}, &networkingv1.ServiceCIDR{}, cidrs)
	go reflect(ctx, client, &requests{watcher: w, resource: "nodes"}, client.CoreV1().Nodes(),
		metav1.ListOptions{FieldSelector: "metadata.name=" + w.opts.Node}, &corev1.Node{}, node)
	go w.awaitSync(ctx, services.synced, slices.synced, either(ctx, cidrs.synced, refused), node.synced)
	w.loop(ctx)
	return nil
}

// awaitSync waits for Services and EndpointSlices and, within bounds, for the
// ServiceCIDRs and the Node.
func (w *Watcher) awaitSync(ctx context.Context, services, slices, cidrs, node <-chan struct{}) {
	for _, required := range []<-chan struct{}{services, slices} {
		select {
		case <-required:
		case <-ctx.Done():
			return
		}
	}
	timeout, cancel := context.WithTimeout(ctx, w.opts.NodeTimeout)
	defer cancel()
	for _, wanted := range []<-chan struct{}{cidrs, node} {
		select {
		case <-wanted:
		case <-timeout.Done():
		}
	}
	w.release(ctx)
}

// either is closed when one of two channels is, or ctx ends.
func either(ctx context.Context, a, b <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-a:
		case <-b:
		case <-ctx.Done():
		}
	}()
	return done
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
func reflect[L runtime.Object](ctx context.Context, client kubernetes.Interface, requests *requests, api lister[L],
	selectors metav1.ListOptions, example runtime.Object, store cache.ReflectorStore) {
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
		cache.ReflectorOptions{Name: "nftproxy/watch", TypeDescription: requests.resource, Backoff: backoff()},
	).RunWithContext(ctx)
}

// requests reports a request that fails, once as long as it fails in the same
// way. One reflector uses it, from one goroutine.
type requests struct {
	watcher  *Watcher
	resource string
	last     string
	// refused, if there is one, is closed when the API server has no such
	// resource or does not give it: one before 1.33 has no ServiceCIDRs, and
	// nobody waits for them then.
	refused chan struct{}
}

func (r *requests) done(ctx context.Context, verb string, err error) {
	switch {
	case err == nil:
		if r.last != "" {
			r.last = ""
			r.watcher.change(func(*index) { r.watcher.outage.succeeded(r.resource) })
		}
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
	refused := apierrors.IsNotFound(err) || apierrors.IsForbidden(err)
	if refused && r.refused != nil {
		close(r.refused)
		r.refused = nil
	}
	if text := err.Error(); text != r.last {
		r.last = text
		r.watcher.change(func(ix *index) {
			ix.problems = append(ix.problems, Problem{Err: err})
			r.watcher.outage.failed(r.resource, refused)
		})
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
