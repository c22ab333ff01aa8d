package controlplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const manifests = `
# A document without an object.
---
apiVersion: v1
kind: Node
metadata:
  name: node-1
  labels: {topology.kubernetes.io/zone: zone-a}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: shop}
  spec:
    selector: {app: web}
    ipFamilyPolicy: PreferDualStack
    ports: [{name: http, port: 80, targetPort: 8080}]
- apiVersion: v1
  kind: Pod
  metadata: {name: web-1, namespace: shop, labels: {app: web}}
  spec:
    nodeName: node-1
    containers: [{name: web, image: web}]
`

// TestEndpoints: one pod appears in the EndpointSlices of its service. It appears again
// after a restart of the API server.
func TestEndpoints(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{Dir: t.TempDir(), NetNS: newNetNS(t)})
	client, err := kubernetes.NewForConfig(c.Client())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.CreateNamespace(ctx, "shop"); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, manifests); err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(ctx, manifests); err != nil {
		t.Fatalf("apply unchanged manifests again: %v", err)
	}
	pod := corev1.PodStatus{
		Phase:      corev1.PodRunning,
		PodIP:      "10.0.1.2",
		PodIPs:     []corev1.PodIP{{IP: "10.0.1.2"}, {IP: "fd00:1::2"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	setPodStatus(t, ctx, client, "shop", "web-1", pod)

	want := []string{
		"IPv4 10.0.1.2 ready=true node-1 zone-a http/8080",
		"IPv6 fd00:1::2 ready=true node-1 zone-a http/8080",
	}
	waitEndpoints(t, ctx, client, "shop", "web", want)

	if err := c.RestartAPIServer(ctx); err != nil {
		t.Fatal(err)
	}
	waitEndpoints(t, ctx, client, "shop", "web", want)

	// The controllers must have come back too.
	pod.Conditions[0].Status = corev1.ConditionFalse
	setPodStatus(t, ctx, client, "shop", "web-1", pod)
	waitEndpoints(t, ctx, client, "shop", "web", []string{
		"IPv4 10.0.1.2 ready=false node-1 zone-a http/8080",
		"IPv6 fd00:1::2 ready=false node-1 zone-a http/8080",
	})
	// The garbage collector must have come back, too: it alone removes the slices of a
	// deleted service.
	if err := client.CoreV1().Services("shop").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitEndpoints(t, ctx, client, "shop", "web", nil)
}

// TestRoutableAddress checks that the API server is an endpoint of its own service when pods can reach its address.
func TestRoutableAddress(t *testing.T) {
	ctx := newContext(t)
	cfg := Config{NetNS: newNetNS(t, "192.0.2.7/32"), ListenAddr: netip.MustParseAddr("192.0.2.7")}
	c := startCluster(t, ctx, cfg)
	client, err := kubernetes.NewForConfig(c.Client())
	if err != nil {
		t.Fatal(err)
	}
	waitEndpoints(t, ctx, client, "default", "kubernetes", []string{
		fmt.Sprintf("IPv4 192.0.2.7 ready=true - - https/%d", c.ports.apiServer),
	})
}

// TestServiceAccount checks that a service account may do what its role says and nothing else.
func TestServiceAccount(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	err := c.Apply(ctx, `
apiVersion: v1
kind: ServiceAccount
metadata: {name: proxy, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: proxy}
rules:
- {apiGroups: [""], resources: [services], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: proxy}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: proxy}
subjects: [{kind: ServiceAccount, name: proxy, namespace: kube-system}]
---
apiVersion: v1
kind: Service
metadata: {name: dns}
spec: {clusterIP: 10.96.0.10, ports: [{port: 53, protocol: UDP}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	path, err := c.ServiceAccountKubeconfig(ctx, "kube-system", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dial = c.Client().Dial // this process is in another namespace
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	services, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	isDNS := func(s corev1.Service) bool { return s.Name == "dns" && s.Spec.ClusterIP == "10.96.0.10" }
	if !slices.ContainsFunc(services.Items, isDNS) {
		t.Errorf("services: want one called dns, got %v", services.Items)
	}
	if _, err := client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list secrets: got %v, want forbidden", err)
	}
}
