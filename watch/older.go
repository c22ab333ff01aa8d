package watch

import (
	"context"
	"math/rand/v2"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	networkingv1beta1 "k8s.io/api/networking/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
)

// lackPeriod is how long the watcher does without what an API server does not know or have. It may know it after an
// upgrade of the cluster.
const lackPeriod = 5 * time.Minute

// jittered returns a time between d and 1.5 d, so that nodes that start together ask at different times.
func jittered(d time.Duration) time.Duration { return d + rand.N(d/2) }

// knownFields asks without a field selector where the API server does not know the field: spec.clusterIP of Services is
// known since Kubernetes 1.31. The answer then has more objects, which the index leaves out. One goroutine uses it.
type knownFields[L runtime.Object] struct {
	lister[L]
	// again is when the selector is tried again.
	again time.Time
}

// List returns the list.
func (k *knownFields[L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	return askKnown(ctx, &k.again, options, k.lister.List)
}

// Watch follows the changes since a version.
func (k *knownFields[L]) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	return askKnown(ctx, &k.again, options, k.lister.Watch)
}

// askKnown calls ask, without the field selector until again, and once more without it if the API server takes the request
// for a bad one.
func askKnown[A any](ctx context.Context, again *time.Time, options metav1.ListOptions, ask func(context.Context, metav1.ListOptions) (A, error)) (A, error) {
	if !time.Now().Before(*again) {
		answer, err := ask(ctx, options)
		if options.FieldSelector == "" || !apierrors.IsBadRequest(err) {
			return answer, err
		}
		*again = time.Now().Add(jittered(lackPeriod))
	}
	options.FieldSelector = ""
	return ask(ctx, options)
}

// serviceCIDRs lists and watches ServiceCIDRs by v1 (since Kubernetes 1.33), or by v1beta1 where that is all that the API
// server has (1.31 and 1.32, if it is turned on). One goroutine uses it.
type serviceCIDRs struct {
	v1   lister[*networkingv1.ServiceCIDRList]
	beta lister[*networkingv1beta1.ServiceCIDRList]
	// byBeta says that the last list was one of v1beta1.
	byBeta bool
}

// List returns the list. If the API server has no version of it, the error is the one for v1.
func (s *serviceCIDRs) List(ctx context.Context, options metav1.ListOptions) (*networkingv1.ServiceCIDRList, error) {
	list, err := s.v1.List(ctx, options)
	s.byBeta = false
	if !apierrors.IsNotFound(err) {
		return list, err
	}
	beta, betaErr := s.beta.List(ctx, options)
	if apierrors.IsNotFound(betaErr) {
		return list, err
	}
	if betaErr != nil {
		return nil, betaErr
	}
	s.byBeta = true
	list = &networkingv1.ServiceCIDRList{ListMeta: beta.ListMeta}
	for i := range beta.Items {
		list.Items = append(list.Items, *cidrOfBeta(&beta.Items[i]))
	}
	return list, nil
}

// Watch follows the changes since a version of the last list.
func (s *serviceCIDRs) Watch(ctx context.Context, options metav1.ListOptions) (apiwatch.Interface, error) {
	if !s.byBeta {
		return s.v1.Watch(ctx, options)
	}
	stream, err := s.beta.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	return apiwatch.Filter(stream, func(e apiwatch.Event) (apiwatch.Event, bool) {
		if beta, ok := e.Object.(*networkingv1beta1.ServiceCIDR); ok {
			e.Object = cidrOfBeta(beta)
		}
		return e, true
	}), nil
}

// cidrOfBeta returns what convertCIDR reads.
func cidrOfBeta(beta *networkingv1beta1.ServiceCIDR) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: beta.ObjectMeta, Spec: networkingv1.ServiceCIDRSpec{CIDRs: beta.Spec.CIDRs}}
}
