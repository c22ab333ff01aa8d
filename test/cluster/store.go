package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
)

// Store puts the objects of manifests into etcd as they are, new or in place of others, behind the API server's back; it
// serves them, and tells its watchers, as if it had written them itself. It is for Services, EndpointSlices, Nodes and
// ServiceCIDRs that the API server would refuse today and that one of another release may have let in, and for those
// whose age matters.
//
// Nothing validates or allocates, and defaults are what the API server fills in when it reads. An object that exists
// keeps its identity and, unless the manifest says otherwise, its age.
func (c *Cluster) Store(ctx context.Context, manifests ...string) error {
	client := c.newEtcdClient()
	defer client.close()
	return c.each("store", manifests, func(resource dynamic.ResourceInterface, object *unstructured.Unstructured) error {
		typed, key, err := storable(object)
		if err != nil {
			return err
		}
		if err := identify(ctx, resource, typed.(metav1.Object)); err != nil {
			return err
		}
		e, err := encode(key, object.GroupVersionKind().GroupVersion(), typed)
		if err != nil {
			return err
		}
		return client.put(ctx, e)
	})
}

// identify gives an object the identity and age of the one of its name that is there, or of a new one.
func identify(ctx context.Context, resource dynamic.ResourceInterface, object metav1.Object) error {
	var m metav1.ObjectMeta
	live, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
	switch {
	case err == nil:
		m.UID, m.CreationTimestamp = live.GetUID(), live.GetCreationTimestamp()
	case apierrors.IsNotFound(err):
		complete(&m)
	default:
		return err
	}
	object.SetUID(m.UID)
	if age := object.GetCreationTimestamp(); age.IsZero() {
		object.SetCreationTimestamp(m.CreationTimestamp)
	}
	return nil
}

// Unstore takes the objects that manifests name out of etcd again. Use it only for objects of Store: for
// others the API server would not release the addresses and ports that it has allocated.
func (c *Cluster) Unstore(ctx context.Context, manifests ...string) error {
	client := c.newEtcdClient()
	defer client.close()
	return c.each("unstore", manifests, func(_ dynamic.ResourceInterface, object *unstructured.Unstructured) error {
		_, key, err := storable(object)
		if err != nil {
			return err
		}
		return client.remove(ctx, registry+key)
	})
}

// storable converts an object to the type that etcd has it in, and returns its key there.
func storable(object *unstructured.Unstructured) (runtime.Object, string, error) {
	name := object.GetNamespace() + "/" + object.GetName()
	var typed runtime.Object
	var key string
	switch object.GetKind() {
	case "Service":
		typed, key = &corev1.Service{}, "services/specs/"+name
	case "EndpointSlice":
		typed, key = &discoveryv1.EndpointSlice{}, "endpointslices/"+name
	case "Node":
		typed, key = &corev1.Node{}, "minions/"+object.GetName()
	case "ServiceCIDR":
		typed, key = &networkingv1.ServiceCIDR{}, "servicecidrs/"+object.GetName()
	default:
		return nil, "", fmt.Errorf("objects of kind %s are not supported", object.GetKind())
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		return nil, "", err
	}
	return typed, key, nil
}
