package cluster

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

//go:embed manifests/dns.yaml
var dnsManifest string

// API is the address of the API server for nodes and clients outside.
func (c *Cluster) API() (netip.AddrPort, error) {
	u, err := url.Parse(c.Plane.Client().Host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address of the API server: %w", err)
	}
	return netip.ParseAddrPort(u.Host)
}

func (c *Cluster) applyManifests(ctx context.Context) error {
	api, err := c.API()
	if err != nil {
		return err
	}
	manifests, err := c.config.Manifests(ctx, api)
	if err != nil {
		return err
	}
	return c.Plane.Apply(ctx, append(manifests, dnsManifest)...)
}

// awaitSystemPods returns once the pods of the proxy, of Config.DaemonSets, of Config.Deployments
// and of the name service are ready.
func (c *Cluster) awaitSystemPods(ctx context.Context) error {
	if err := c.AwaitDaemonSets(ctx); err != nil {
		return err
	}
	for _, d := range append([]string{"kube-system/coredns"}, c.config.Deployments...) {
		namespace, name, _ := strings.Cut(d, "/")
		if err := c.AwaitDeployment(ctx, namespace, name); err != nil {
			return err
		}
	}
	return nil
}

// AwaitDaemonSets returns once each node has ready pods of the proxy and of Config.DaemonSets, of the newest version.
func (c *Cluster) AwaitDaemonSets(ctx context.Context) error {
	for _, d := range append([]string{"kube-system/" + c.config.Proxy}, c.config.DaemonSets...) {
		namespace, name, _ := strings.Cut(d, "/")
		if err := c.AwaitDaemonSet(ctx, namespace, name); err != nil {
			return err
		}
	}
	return nil
}

// AwaitDaemonSet returns once each node has a ready pod of the newest version.
func (c *Cluster) AwaitDaemonSet(ctx context.Context, namespace, name string) error {
	err := c.await(ctx, "daemonsets", namespace, name, &appsv1.DaemonSet{}, func(o runtime.Object) bool {
		d, ok := o.(*appsv1.DaemonSet)
		return ok && d.Status.ObservedGeneration == d.Generation && int(d.Status.DesiredNumberScheduled) >= len(c.Nodes()) &&
			d.Status.UpdatedNumberScheduled == d.Status.DesiredNumberScheduled &&
			d.Status.NumberReady == d.Status.DesiredNumberScheduled
	})
	if err != nil {
		return fmt.Errorf("wait for the DaemonSet %s/%s: %w", namespace, name, err)
	}
	return nil
}

// AwaitDeployment returns once all replicas are ready and of the newest version,
// and no others are left.
func (c *Cluster) AwaitDeployment(ctx context.Context, namespace, name string) error {
	err := c.await(ctx, "deployments", namespace, name, &appsv1.Deployment{}, func(o runtime.Object) bool {
		d, ok := o.(*appsv1.Deployment)
		want := int32(1)
		if ok && d.Spec.Replicas != nil {
			want = *d.Spec.Replicas
		}
		return ok && d.Status.ObservedGeneration == d.Generation && d.Status.UpdatedReplicas == want &&
			d.Status.Replicas == want && d.Status.ReadyReplicas == want
	})
	if err != nil {
		return fmt.Errorf("wait for the Deployment %s/%s: %w", namespace, name, err)
	}
	return nil
}

// await returns once an object of the API group apps is as wanted.
func (c *Cluster) await(ctx context.Context, resource, namespace, name string, kind runtime.Object,
	wanted func(runtime.Object) bool) error {
	list := cache.NewListWatchFromClient(c.Client.AppsV1().RESTClient(), resource, namespace,
		fields.OneTermEqualSelector("metadata.name", name))
	_, err := watchtools.UntilWithSync(ctx, list, kind, nil, func(e watch.Event) (bool, error) {
		return e.Type != watch.Deleted && wanted(e.Object), nil
	})
	if err != nil {
		return fmt.Errorf("%w; pods: %s", err, c.describePods(namespace))
	}
	return nil
}

// describePods says which pods of a namespace are not ready, and why.
func (c *Cluster) describePods(namespace string) string {
	pods, err := c.Client.CoreV1().Pods(namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	text := ""
	for _, p := range pods.Items {
		text += fmt.Sprintf("\n%s on %s: %s", p.Name, p.Spec.NodeName, p.Status.Phase)
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Waiting != nil {
				text += ", " + s.State.Waiting.Reason + ": " + s.State.Waiting.Message
			}
			if !s.Ready {
				text += fmt.Sprintf(", %s is not ready", s.Name)
			}
		}
	}
	return text
}
