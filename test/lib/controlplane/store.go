package controlplane

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

// Store puts the objects of manifests into etcd as they are, past the API server. An
// object may be new or replace another one. The API server serves the objects and tells
// its watchers, as if it had written them itself. Store is for Services, EndpointSlices,
// Nodes and ServiceCIDRs that this API server would refuse but another release may have
// accepted. It is also for objects whose age matters.
//
// Nothing validates or allocates. The API server fills in defaults when it reads. An
// existing object keeps its identity. It also keeps its age, unless the manifest sets
// another.
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

// identify gives an object the identity and age of the existing object with its name, or
// new ones.
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

// Unstore removes the objects that manifests name from etcd. Use it only for objects of
// Store: the API server would not release the addresses and ports that it has allocated
// for other objects.
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

// storable converts an object to the type under which etcd has it, and returns its key.
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
