package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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

// Apply creates or updates the objects of YAML or JSON manifests by server-side apply, in
// order, as `kubectl apply --server-side --force-conflicts` does. A manifest may have
// several documents, and lists. An object without a namespace goes to default. Apply
// stops at the first object that the API server refuses, and names it.
func (c *Cluster) Apply(ctx context.Context, manifests ...string) error {
	return c.each("apply", manifests, func(resource dynamic.ResourceInterface, object *unstructured.Unstructured) error {
		_, err := resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
		return err
	})
}

// Check has the API server check manifests as `kubectl apply --dry-run=server
// --validate=strict` does. It stores nothing. A field that the API does not have is an
// error. Check goes on after an object that is refused, and names each one.
func (c *Cluster) Check(ctx context.Context, manifests ...string) error {
	force := true
	options := metav1.PatchOptions{
		FieldManager: fieldManager, Force: &force, DryRun: []string{metav1.DryRunAll},
		FieldValidation: metav1.FieldValidationStrict,
	}
	var refused []error
	err := c.each("check", manifests, func(resource dynamic.ResourceInterface, object *unstructured.Unstructured) error {
		text, err := object.MarshalJSON()
		if err != nil {
			return err
		}
		_, err = resource.Patch(ctx, object.GetName(), types.ApplyYAMLPatchType, text, options)
		refused = append(refused, err)
		return nil
	})
	return errors.Join(append(refused, err)...)
}

// Replace creates or updates the objects of manifests, as `kubectl replace --force=false`
// does, so that they equal the manifests. For Services and Nodes, whose status others
// write, it also writes the status subresource. Fields that the API server allocates
// stay.
func (c *Cluster) Replace(ctx context.Context, manifests ...string) error {
	return c.each("replace", manifests, func(resource dynamic.ResourceInterface, object *unstructured.Unstructured) error {
		return replaceObject(ctx, resource, object)
	})
}

func replaceObject(ctx context.Context, resource dynamic.ResourceInterface, object *unstructured.Unstructured) error {
	live, err := resource.Get(ctx, object.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		live, err = resource.Create(ctx, object, metav1.CreateOptions{FieldManager: fieldManager})
	case err == nil:
		object = object.DeepCopy()
		object.SetResourceVersion(live.GetResourceVersion())
		live, err = resource.Update(ctx, object, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	if err != nil || object.GetKind() != "Service" && object.GetKind() != "Node" {
		return err
	}
	status, found := object.Object["status"]
	if !found {
		status = map[string]any{}
	}
	if equality.Semantic.DeepEqual(live.Object["status"], status) {
		return nil
	}
	live.Object["status"] = status
	_, err = resource.UpdateStatus(ctx, live, metav1.UpdateOptions{FieldManager: fieldManager})
	return err
}

// Delete deletes the objects that manifests name. It does not wait for their finalizers.
func (c *Cluster) Delete(ctx context.Context, manifests ...string) error {
	return c.each("delete", manifests, func(resource dynamic.ResourceInterface, object *unstructured.Unstructured) error {
		now := int64(0)
		if err := resource.Delete(ctx, object.GetName(), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			return err
		}
		_, err := resource.Patch(ctx, object.GetName(), types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
			metav1.PatchOptions{FieldManager: fieldManager})
		if apierrors.IsNotFound(err) {
			return nil // the object had no finalizer
		}
		return err
	})
}

// each calls do with every object of manifests and the API's client for it. The error
// names the object.
func (c *Cluster) each(verb string, manifests []string, do func(dynamic.ResourceInterface,
	*unstructured.Unstructured) error) error {
	r, err := c.resources()
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	for i, manifest := range manifests {
		objects, err := decode(manifest)
		if err != nil {
			return fmt.Errorf("%s manifest %d: %w", verb, i+1, err)
		}
		for _, object := range objects {
			resource, err := r.of(object)
			if err == nil {
				err = do(resource, object)
			}
			if err != nil {
				return fmt.Errorf("%s %s %s/%s: %w", verb, object.GetKind(), object.GetNamespace(), object.GetName(), err)
			}
		}
	}
	return nil
}

// resources finds the API's client for objects of any kind, and remembers the kinds.
type resources struct {
	client dynamic.Interface
	mapper meta.ResettableRESTMapper
}

func (c *Cluster) resources() (*resources, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known != nil {
		return c.known, nil
	}
	disco, err := discovery.NewDiscoveryClientForConfig(c.clientCfg)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(c.clientCfg)
	if err != nil {
		return nil, err
	}
	c.known = &resources{client, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco))}
	return c.known, nil
}

// of gives an object the namespace default if it needs one and has none.
func (r *resources) of(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := r.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) { // an earlier object may have defined the kind
		r.mapper.Reset()
		mapping, err = r.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return r.client.Resource(mapping.Resource), nil
	}
	if object.GetNamespace() == "" {
		object.SetNamespace(metav1.NamespaceDefault)
	}
	return r.client.Resource(mapping.Resource).Namespace(object.GetNamespace()), nil
}

// decode splits a manifest into its objects. It skips documents with nothing but
// comments.
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

// CreateNamespace creates a namespace and returns when pods can be created in it. That is
// once the controllers have made its service account `default`. A control plane without controllers has no pods.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	client, err := kubernetes.NewForConfig(c.clientCfg)
	if err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	if c.cfg.APIServer != "" {
		return nil
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
