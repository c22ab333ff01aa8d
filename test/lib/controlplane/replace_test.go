package controlplane

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const balanced = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: false
  ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443}]
status: {loadBalancer: {ingress: [{ip: 192.0.2.1, ipMode: VIP}]}}
---
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: zone-a}}
status: {addresses: [{type: InternalIP, address: 192.0.2.7}, {type: InternalIP, address: "2001:db8::7"}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: more}
spec: {cidrs: [10.128.0.0/16]}
`

// TestReplace makes objects, changes them, and deletes them.
func TestReplace(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	client, err := kubernetes.NewForConfig(c.Client())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Replace(ctx, balanced); err != nil {
		t.Fatal(err)
	}
	service, node := get(t, ctx, client)
	if got := service.Status.LoadBalancer.Ingress; len(got) != 1 || got[0].IP != "192.0.2.1" {
		t.Errorf("the load balancer's addresses are %v", got)
	}
	if got := node.Status.Addresses; len(got) != 2 {
		t.Errorf("the node's addresses are %v", got)
	}

	changed := strings.NewReplacer(", {name: https, port: 443}", "", "status: {loadBalancer: {ingress: [{ip: 192.0.2.1, "+
		"ipMode: VIP}]}}", "", "zone-a", "zone-b").Replace(balanced)
	if err := c.Replace(ctx, changed); err != nil {
		t.Fatal(err)
	}
	was := service
	service, node = get(t, ctx, client)
	if diff := cmp.Diff(was.Spec.ClusterIPs, service.Spec.ClusterIPs); diff != "" {
		t.Errorf("cluster IPs (-before +after):\n%s", diff)
	}
	if len(service.Spec.Ports) != 1 || len(service.Status.LoadBalancer.Ingress) != 0 ||
		node.Labels[corev1.LabelTopologyZone] != "zone-b" {
		t.Errorf("the objects were not replaced: %v, %v", service, node)
	}

	// By then the controller has either set a finalizer or never will.
	if err := c.Delete(ctx, changed); err != nil {
		t.Fatal(err)
	}
	_, err = client.NetworkingV1().ServiceCIDRs().Get(ctx, "more", metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the deleted ServiceCIDR: got %v, want not found", err)
	}
	if err := c.Delete(ctx, changed); err == nil || !strings.Contains(err.Error(), "delete Service default/web") {
		t.Errorf("deleted again: %v", err)
	}
}

func get(t *testing.T, ctx context.Context, client kubernetes.Interface) (*corev1.Service, *corev1.Node) {
	t.Helper()
	service, err := client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(ctx, "node-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return service, node
}

// refused are objects that the API server does not let in.
const refused = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default, creationTimestamp: "2020-01-02T03:04:05Z"}
spec:
  clusterIP: 010.96.0.99
  externalIPs: [192.0.2.300]
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.1.0.0/24]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [127.0.0.1]}]
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: none}
spec: {cidrs: []}
`

// TestStore writes objects into etcd past the API server, changes and removes them. The API server's watchers get an
// event for each.
func TestStore(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	client, err := kubernetes.NewForConfig(c.Client())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Replace(ctx, refused); !apierrors.IsInvalid(err) {
		t.Fatalf("through the API server: %v, want invalid", err)
	}
	events, err := client.CoreV1().Services("default").Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=web"})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	if err := c.Store(ctx, refused); err != nil {
		t.Fatal(err)
	}
	service, node := get(t, ctx, client)
	if got := service.CreationTimestamp.UTC().Format(time.RFC3339); got != "2020-01-02T03:04:05Z" {
		t.Errorf("the service is from %v", got)
	}
	if service.Spec.ClusterIP != "010.96.0.99" || service.Spec.Ports[0].Protocol != corev1.ProtocolTCP ||
		service.Spec.SessionAffinity == "" {
		t.Errorf("the service was not stored as it is, with defaults: %v", service.Spec)
	}
	slice, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "web-1", metav1.GetOptions{})
	if err != nil || slice.Endpoints[0].Addresses[0] != "127.0.0.1" {
		t.Errorf("the slice: %v, %v", slice, err)
	}
	if _, err := client.NetworkingV1().ServiceCIDRs().Get(ctx, "none", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	if err := c.Store(ctx, strings.ReplaceAll(refused, "10.1.0.0", "10.2.0.0")); err != nil {
		t.Fatal(err)
	}
	_, after := get(t, ctx, client)
	if after.UID != node.UID || after.CreationTimestamp != node.CreationTimestamp ||
		after.Spec.PodCIDRs[0] != "10.2.0.0/24" {
		t.Errorf("the node was not replaced: %v, %v", node, after)
	}
	if err := c.Unstore(ctx, refused); err != nil {
		t.Fatal(err)
	}
	for _, want := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
		if e := <-events.ResultChan(); e.Type != want {
			t.Errorf("event %v, want %v", e.Type, want)
		}
	}
	if err := c.Unstore(ctx, refused); err == nil || !strings.Contains(err.Error(), "it does not exist") {
		t.Errorf("taken out again: %v", err)
	}
	if err := c.Store(ctx, "{apiVersion: v1, kind: Pod, metadata: {name: web}}"); err == nil ||
		!strings.Contains(err.Error(), "kind Pod") {
		t.Errorf("a pod: %v", err)
	}
}
