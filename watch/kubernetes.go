package watch

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The selectors of the requests are kube-proxy's own, so that both proxies ignore the
// same objects. But Services of other proxies come too (label service-proxy-name): a watch without them would tell of a
// Service that is handed to another proxy what it tells of one that is deleted. EndpointSlices of no Service stay at
// the API server too: those of an EndpointSelector (KEP-6116) may be many.
const (
	serviceFields = "spec.clusterIP!=" + corev1.ClusterIPNone
	sliceLabels   = "!" + labelHeadless + "," + discoveryv1.LabelServiceName
)

// RunKubernetes follows the API server until ctx ends, and returns nil then. It publishes nothing
// before Services and EndpointSlices have synced, and ServiceCIDRs and the Node have come or their
// time-outs are over. It reports an API server that is away or refuses, and tries again until it
// succeeds; meanwhile the last state stays. The number of reported problems is bounded: see
// OmittedError.
func (w *Watcher) RunKubernetes(ctx context.Context, client *Client) error {
	w.bounds = newBounds()
	w.change(func(ix *index) {
		ix.expectNode()
		for _, resource := range []string{"services", "endpointslices"} {
			w.outage.require(resource)
		}
	})
	services := newListWatch(w, "services", (*index).knownServices, serviceWays(client)...)
	selector := sliceLabels
	if w.opts.AllSlices {
		selector = ""
	}
	endpointSlices := newListWatch(w, "endpointslices", (*index).knownSlices, way[*sliceObject]{client.slices,
		metav1.ListOptions{LabelSelector: selector}})
	cidrs := newListWatch(w, "servicecidrs", (*index).knownCIDRs, cidrWays(client)...)
	cidrs.optional = true
	nodes := newListWatch(w, "nodes", (*index).knownNodes,
		way[*nodeObject]{client.nodes, metav1.ListOptions{FieldSelector: "metadata.name=" + w.opts.Node}})
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for _, run := range []func(context.Context){services.run, endpointSlices.run, cidrs.run, nodes.run} {
		tasks.Go(func() { run(ctx) })
	}
	tasks.Go(func() {
		w.awaitSync(ctx,
			awaited{what: "Services", there: services.synced},
			awaited{what: "EndpointSlices", there: endpointSlices.synced},
			awaited{
				what: "ServiceCIDRs", there: cidrs.synced, limit: w.opts.ListTimeout,
				without: "addresses of services that no service has are not dropped until they come",
			},
			awaited{what: "Node " + w.opts.Node, there: w.index.node.seen, limit: w.opts.NodeTimeout})
	})
	w.loop(ctx)
	return nil
}
