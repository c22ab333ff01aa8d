package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

// testLog passes what a cluster says on to the test's output.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// newNetNS makes a network namespace with loopback and returns a path to it, which is valid until the test ends.
func newNetNS(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" || os.Getenv("REQUIRE_PRIVILEGED") != "" {
			t.Fatal("needs root to make a network namespace")
		}
		t.Skip("needs root to make a network namespace")
	}
	type result struct {
		ns  netns.NsHandle
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		ns, err := netns.New()
		if err == nil {
			var lo netlink.Link
			if lo, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(lo)
			}
		}
		made <- result{ns, err}
	}()
	r := <-made
	if r.err != nil {
		t.Fatalf("make a network namespace: %v", r.err)
	}
	t.Cleanup(func() { r.ns.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", int(r.ns))
}

func newContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func startCluster(t *testing.T, ctx context.Context, cfg Config) *Cluster {
	t.Helper()
	cfg.Log = testLog{t}
	c, err := Start(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

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

// TestEndpoints follows one pod into the EndpointSlices of its service, and looks for them again in an API server that
// was restarted.
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
	// And the garbage collector, which alone removes the slices of a deleted service.
	if err := client.CoreV1().Services("shop").Delete(ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitEndpoints(t, ctx, client, "shop", "web", nil)
}

func setPodStatus(t *testing.T, ctx context.Context, client kubernetes.Interface, namespace, name string, status corev1.PodStatus) {
	t.Helper()
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = status
	if _, err := client.CoreV1().Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// waitEndpoints follows the slices of a service until they are as wanted: one line for each endpoint and port, sorted.
func waitEndpoints(t *testing.T, ctx context.Context, client kubernetes.Interface, namespace, service string, want []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	selector := func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + service }
	listWatch := cache.NewFilteredListWatchFromClient(client.DiscoveryV1().RESTClient(), "endpointslices", namespace, selector)
	bySlice := map[string][]string{}
	var got []string
	_, err := watchtools.UntilWithSync(ctx, listWatch, &discoveryv1.EndpointSlice{},
		func(store cache.Store) (bool, error) { return len(want) == 0 && len(store.List()) == 0, nil },
		func(e watch.Event) (bool, error) {
			slice := e.Object.(*discoveryv1.EndpointSlice)
			bySlice[slice.Name] = describe(slice)
			if e.Type == watch.Deleted {
				delete(bySlice, slice.Name)
			}
			got = sortedValues(bySlice)
			return cmp.Equal(want, got), nil
		})
	if err != nil {
		t.Fatalf("wait for the endpoints of %s/%s: %v (-want +got):\n%s", namespace, service, err, cmp.Diff(want, got))
	}
}

// describe returns one line for each endpoint and port of a slice.
func describe(slice *discoveryv1.EndpointSlice) []string {
	var lines []string
	for _, e := range slice.Endpoints {
		for _, port := range slice.Ports {
			lines = append(lines, fmt.Sprintf("%s %s ready=%t %s %s %s/%d", slice.AddressType, e.Addresses[0],
				*e.Conditions.Ready, *e.NodeName, *e.Zone, *port.Name, *port.Port))
		}
	}
	return lines
}

func sortedValues(m map[string][]string) []string {
	var all []string
	for _, v := range m {
		all = append(all, v...)
	}
	slices.Sort(all)
	return all
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
	cfg.Dial = c.Client().Dial // this process is elsewhere
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

// TestStopped checks that nothing of a cluster is left after Stop.
func TestStopped(t *testing.T) {
	ctx := newContext(t)
	c := startCluster(t, ctx, Config{NetNS: newNetNS(t)})
	processes := []*process{c.process(etcd), c.process(apiServer), c.process(controllerManager)}
	c.Stop()
	for _, p := range processes {
		if !p.dead() {
			t.Errorf("%s is still there", p.name)
		}
	}
	if _, err := os.Stat(c.cfg.Dir); !os.IsNotExist(err) {
		t.Errorf("directory %s: got %v, want that it does not exist", c.cfg.Dir, err)
	}
	if err := c.StartAPIServer(ctx); err == nil {
		t.Error("StartAPIServer after Stop: want an error")
	}
}

// TestComponentFails checks that an error says what the component said.
func TestComponentFails(t *testing.T) {
	var cidrs []netip.Prefix
	for _, cidr := range []string{"10.0.0.0/16", "10.1.0.0/16", "10.2.0.0/16"} {
		cidrs = append(cidrs, netip.MustParsePrefix(cidr))
	}
	cfg := Config{NetNS: newNetNS(t), ServiceCIDRs: cidrs}
	c, err := Start(newContext(t), cfg)
	if err == nil {
		c.Stop()
		t.Fatal("three ranges, of which the API server takes two: want an error")
	}
	for _, want := range []string{"start kube-apiserver", "service-cluster-ip-range"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not mention %q: %v", want, err)
		}
	}
}
