package watch

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// The selectors of the requests are kube-proxy's own, so that both proxies ignore the
// same objects, unless the proxy has a name.
const (
	serviceFields = "spec.clusterIP!=" + corev1.ClusterIPNone
	sliceLabels   = "!" + labelHeadless
)

// serviceLabels selects the Services that index.serves.
func (o *Options) serviceLabels() string {
	if o.ProxyName == "" {
		return "!" + labelProxyName
	}
	return labelProxyName + "=" + o.ProxyName
}

// RunKubernetes follows the API server until ctx ends, and returns nil then. It
// publishes nothing before Services and EndpointSlices have synced, and ServiceCIDRs
// and the Node have come or their time-outs are over. It reports an API server that is
// away or refuses, and asks again and again; until then the last state stays. The
// number of reported problems is bounded: see OmittedError.
func (w *Watcher) RunKubernetes(ctx context.Context, client *Client) error {
	w.bounds = newBounds()
	serviceStore, sliceStore := newServiceStore(w), newSliceStore(w)
	cidrStore := newStore(w, convertCIDR, (*index).setCIDR, (*index).deleteCIDR, (*index).cidrNames)
	nodeStore := newStore(w, convertNode, (*index).setNode, (*index).deleteNode, (*index).nodeNames)

	cidrRequests := w.newRequests("servicecidrs")
	cidrRequests.optional = true
	w.change(func(ix *index) {
		ix.expectNode()
		for _, resource := range []string{"services", "endpointslices"} {
			w.outage.require(resource)
		}
	})
	// RunKubernetes does not wait for the reflectors: one that waits before it asks
	// again does not see the end of ctx until then.
	go reflectList(ctx, w.newRequests("services"), &knownFields[runtime.Object]{lister: direct{client.services, serviceStore}},
		metav1.ListOptions{LabelSelector: w.opts.serviceLabels(), FieldSelector: serviceFields}, serviceStore)
	go reflectList(ctx, w.newRequests("endpointslices"), direct{client.slices, sliceStore}, metav1.ListOptions{LabelSelector: sliceLabels}, sliceStore)
	go reflectList(ctx, cidrRequests, &serviceCIDRs{v1: client.NetworkingV1().ServiceCIDRs(), beta: client.NetworkingV1beta1().ServiceCIDRs()}, metav1.ListOptions{}, cidrStore)
	go reflectList(ctx, w.newRequests("nodes"), client.CoreV1().Nodes(), metav1.ListOptions{FieldSelector: "metadata.name=" + w.opts.Node}, nodeStore)
	go w.awaitSync(ctx,
		awaited{what: "Services", there: serviceStore.synced},
		awaited{what: "EndpointSlices", there: sliceStore.synced},
		awaited{
			what: "ServiceCIDRs", there: either(ctx, cidrStore.synced, cidrRequests.absent), limit: w.opts.ListTimeout,
			without: "addresses of services that no service has are not dropped until they come",
		},
		awaited{what: "Node " + w.opts.Node, there: w.index.node.seen, limit: w.opts.NodeTimeout})
	w.loop(ctx)
	return nil
}

// either returns a channel that is closed when a or b is closed, or ctx ends.
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

// backoff returns the pauses of a reflector while the API server is away: first
// 0.2-0.4 s, then longer ones, up to 10-20 s. client-go's own go up to a minute: for so
// long a node would have no new endpoints after the server has come back.
func backoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 1, Cap: 10 * time.Second, Steps: 50}
}

// lister has the methods that client-go's typed clients and direct share.
type lister[L runtime.Object] interface {
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error)
}

// reflectList keeps the store equal to the API server's list until ctx ends. It uses no
// informer: the index already holds the objects, and an informer would hold them a
// second time and pass each event on through a queue.
//
// It asks for whole lists, not for lists as streams of events (KEP-3157): these take the API server and the node two to
// three times the CPU time (docs/reliability.md). What streams are for is there all the same: package wire holds
// one object at a time, and so does an API server since Kubernetes 1.33 (KEP-5116).
func reflectList[L runtime.Object](ctx context.Context, requests *requests, api lister[L], selectors metav1.ListOptions, store cache.ReflectorStore) {
	listWatch := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
			// Without a version and a limit, the list has everything that was written before the request. The API server
			// answers from its cache, once that is up to date (KEP-2340, since Kubernetes 1.31). A reflector asks for
			// what the cache happens to have, and a node would go back in time by a server whose cache is old.
			for {
				list, err := api.List(ctx, selectors)
				requests.done(ctx, "list", err)
				if !requests.lacks(ctx, err) {
					return list, err
				}
			}
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (apiwatch.Interface, error) {
			opts.LabelSelector, opts.FieldSelector = selectors.LabelSelector, selectors.FieldSelector
			stream, err := api.Watch(ctx, opts)
			requests.done(ctx, "watch", err)
			if err != nil {
				return nil, watchAgain(err)
			}
			if requests.mayHaveGoneBack() {
				stream.Stop()
				return nil, apierrors.NewResourceExpired("the API server was away: list again")
			}
			return requests.follow(stream), nil
		},
	}
	cache.NewReflectorWithOptions(wholeLists{listWatch}, nil, store,
		cache.ReflectorOptions{Name: "nftproxy/watch", TypeDescription: requests.resource, Backoff: backoff()},
	).RunWithContext(ctx)
}

// wholeLists keeps a reflector from asking for lists as streams.
type wholeLists struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported is the method that reflectors look for (k8s.io/client-go/util/watchlist).
func (wholeLists) IsWatchListSemanticsUnSupported() bool { return true }
