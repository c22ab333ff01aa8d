package controlplane

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"
)

// testLog copies a cluster's log to the test's output.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// newNetNS makes a network namespace whose loopback interface is up and has further
// addresses. It returns a path to the namespace, valid until the test ends.
func newNetNS(t *testing.T, addrs ...string) string {
	t.Helper()
	Require(t)
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
				err = setUp(lo, addrs)
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

func setUp(link netlink.Link, addrs []string) error {
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
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

func setPodStatus(t *testing.T, ctx context.Context, client kubernetes.Interface, namespace, name string,
	status corev1.PodStatus) {
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

// waitEndpoints follows the slices of a service until they have the wanted endpoints: one
// line for each endpoint and port, sorted.
func waitEndpoints(t *testing.T, ctx context.Context, client kubernetes.Interface, namespace, service string,
	want []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	selector := func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + service }
	listWatch := cache.NewFilteredListWatchFromClient(client.DiscoveryV1().RESTClient(), "endpointslices", namespace,
		selector)
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
				*e.Conditions.Ready, ptr.Deref(e.NodeName, "-"), ptr.Deref(e.Zone, "-"), *port.Name, *port.Port))
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
