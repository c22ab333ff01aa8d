package watch

import (
	"fmt"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/watch/wire"
)

// longestLack is the most time that the watcher does without what an API server does not know or have, and half of it
// the least. It may know it after an upgrade of the cluster.
const longestLack = 8 * time.Minute

// way is a way to ask for a resource.
type way[K converted] struct {
	client    *wire.Client[K]
	selectors metav1.ListOptions
}

// ways are the ways to ask for a resource. The first is the best; a server that is too old for one may know the next.
type ways[K converted] struct {
	list []way[K]
	// at is the way that the server knows. again is when the best one is tried again.
	at    int
	again time.Time
}

// ask makes a request in the best way that the server knows. The error is that of the last way if the server knows
// none.
func (w *ways[K]) ask(request func(way[K]) error) error {
	if w.at > 0 && !time.Now().Before(w.again) {
		w.at = 0
	}
	for {
		err := request(w.list[w.at])
		if !apierrors.IsNotFound(err) && !apierrors.IsBadRequest(err) {
			return err
		}
		if w.at++; w.at == len(w.list) {
			w.at = 0
			return err
		}
		w.again = time.Now().Add(jittered(longestLack))
	}
}

// serviceWays are those of Services. API servers know the field selector since Kubernetes 1.31. Without it they send
// more objects, which the index leaves out.
func serviceWays(c *Client) []way[*serviceObject] {
	return []way[*serviceObject]{
		{client: c.services, selectors: metav1.ListOptions{FieldSelector: serviceFields}},
		{client: c.services},
	}
}

// cidrWays are those of ServiceCIDRs: v1 is there since Kubernetes 1.33, and v1beta1 is all that 1.31 and 1.32 have, if
// it is turned on.
func cidrWays(c *Client) []way[*cidrObject] {
	return []way[*cidrObject]{{client: c.cidrs}, {client: c.betaCIDRs}}
}

// convertBetaCIDR is convertCIDR for v1beta1.
func convertBetaCIDR(c *networkingv1beta1.ServiceCIDR) *cidrObject {
	return convertCIDR(&networkingv1.ServiceCIDR{ObjectMeta: c.ObjectMeta,
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: c.Spec.CIDRs}})
}

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
