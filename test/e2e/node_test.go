package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/nft/kernel"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/testnet"
)

// node is a node of the cluster with its surroundings, for one test.
type node struct {
	*testnet.Topology
	t     *testing.T
	ctx   context.Context
	plane *controlPlane
	// name is that of the Node object, namespace that of the test's own objects.
	name, namespace string
}

// newNode makes a node of the shared control plane.
func newNode(t *testing.T) *node {
	t.Helper()
	controlplane.Require(t)
	return newNodeOf(t, shared.controlPlane(t), strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name())))
}

func newNodeOf(t *testing.T, plane *controlPlane, name string) *node {
	t.Helper()
	n := &node{Topology: testnet.NewForTest(t, testnet.Config{}), t: t, ctx: testContext(t), plane: plane}
	plane.connect(t, n.Node)
	n.namespace = fmt.Sprintf("%s-%d", name, plane.Nodes()) // a test may run more than once
	n.name = "node-" + n.namespace
	n.register()
	if err := plane.cluster.CreateNamespace(n.ctx, n.namespace); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.clean)
	return n
}

// register makes the Node object, as a kubelet would.
func (n *node) register() {
	n.t.Helper()
	nodes := n.plane.client.CoreV1().Nodes()
	object, err := nodes.Create(n.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	n.must(err)
	for _, a := range n.NodeAddrs {
		object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
			Address: a.String()})
	}
	_, err = nodes.UpdateStatus(n.ctx, object, metav1.UpdateOptions{})
	n.must(err)
	n.t.Cleanup(func() {
		// Some tests have it more than once.
		if err := nodes.Delete(context.Background(), n.name, metav1.DeleteOptions{}); err != nil &&
			!apierrors.IsNotFound(err) {
			n.t.Errorf("delete the Node: %v", err)
		}
	})
}

// clean removes the test's objects and waits until they are gone, so that the
// next test sees nothing of this one. The namespace itself stays: its end would
// take the controllers seconds.
func (n *node) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	core, endpointSlices := n.plane.client.CoreV1(), n.plane.client.DiscoveryV1().EndpointSlices(n.namespace)
	now := int64(0) // no kubelet is there to stop the pods
	services, err := core.Services(n.namespace).List(ctx, metav1.ListOptions{})
	errs := []error{err}
	for _, s := range services.Items {
		errs = append(errs, core.Services(n.namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}))
	}
	errs = append(errs,
		core.Pods(n.namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}),
		endpointSlices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	if err := errors.Join(errs...); err != nil {
		n.t.Errorf("clean up: %v", err)
	}
	left := map[string]bool{}
	list := cache.NewListWatchFromClient(n.plane.client.DiscoveryV1().RESTClient(), "endpointslices", n.namespace,
		fields.Everything())
	_, err = watchtools.UntilWithSync(ctx, list, &discoveryv1.EndpointSlice{},
		func(store cache.Store) (bool, error) { return len(store.ListKeys()) == 0, nil },
		func(e watch.Event) (bool, error) {
			name := e.Object.(*discoveryv1.EndpointSlice).Name
			if left[name] = true; e.Type == watch.Deleted {
				delete(left, name)
			}
			return len(left) == 0, nil
		})
	if err != nil {
		n.t.Errorf("wait for the end of the EndpointSlices in %s: %v", n.namespace, err)
	}
}

// startAPIServerAtEnd is for tests that stop it: cleaning up needs it.
func (n *node) startAPIServerAtEnd() {
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := n.plane.cluster.StartAPIServer(ctx); err != nil {
			n.t.Errorf("start the API server again: %v", err)
		}
	})
}

// nftables opens the node's nftables for reading.
func (n *node) nftables() *kernel.Conn {
	n.t.Helper()
	conn, err := kernel.Open(kernel.Config{NetNS: n.Node.Fd()})
	n.must(err)
	n.t.Cleanup(func() { conn.Close() })
	return conn
}

func (n *node) generation(conn *kernel.Conn) uint32 {
	n.t.Helper()
	g, err := conn.Generation()
	n.must(err)
	return g
}

// must ends the test at the first error.
func (n *node) must(errs ...error) {
	n.t.Helper()
	for _, err := range errs {
		if err != nil {
			n.t.Fatal(err)
		}
	}
}
