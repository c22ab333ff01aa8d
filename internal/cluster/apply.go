package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// fieldManager owns the fields that Apply writes.
const fieldManager = "cluster"

// Apply creates or updates the objects of YAML or JSON manifests by server-side apply, in order, as
// `kubectl apply --server-side --force-conflicts` does. A manifest may have several documents, and lists; an object
// without a namespace goes to default. It stops at the first object that is refused, and names it.
func (c *Cluster) Apply(ctx context.Context, manifests ...string) error {
	disco, err := discovery.NewDiscoveryClientForConfig(c.clientCfg)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	client, err := dynamic.NewForConfig(c.clientCfg)
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))
	for i, manifest := range manifests {
		objects, err := decode(manifest)
		if err != nil {
			return fmt.Errorf("apply manifest %d: %w", i+1, err)
		}
		for _, object := range objects {
			if err := applyObject(ctx, client, mapper, object); err != nil {
				return fmt.Errorf("apply %s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
			}
		}
	}
	return nil
}

func applyObject(ctx context.Context, client dynamic.Interface, mapper meta.RESTMapper, object *unstructured.Unstructured) error {
	kind := object.GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return err
	}
	var resource dynamic.ResourceInterface = client.Resource(mapping.Resource)
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
		resource = client.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err = resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	return err
}

// decode splits a manifest into its objects. Documents that hold nothing but comments do not count.
func decode(manifest string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := yaml.NewYAMLReader(bufio.NewReader(strings.NewReader(manifest)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		if !object.IsList() {
			objects = append(objects, object)
			continue
		}
		err = object.EachListItem(func(item runtime.Object) error {
			objects = append(objects, item.(*unstructured.Unstructured))
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// CreateNamespace creates a namespace and returns when pods can be created in it: once the controllers have made its
// service account `default`.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	client, err := kubernetes.NewForConfig(c.clientCfg)
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	accounts := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "serviceaccounts", name,
		fields.OneTermEqualSelector("metadata.name", "default"))
	_, err = watchtools.UntilWithSync(ctx, accounts, &corev1.ServiceAccount{}, nil, func(e watch.Event) (bool, error) {
		return e.Type == watch.Added, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the service account of namespace %s: %w", name, err)
	}
	return nil
}
