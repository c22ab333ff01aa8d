package main

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// addService adds a Service with endpoints on node-1; the first words of a text are ready addresses.
func (f *fakeCluster) addService(namespace, name, clusterIP string, endpoints ...discoveryv1.Endpoint) {
	f.services = append(f.services, corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP, ClusterIPs: []string{clusterIP},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	})
	f.slices = append(f.slices, discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name + "-x",
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		Ports:     []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
		Endpoints: endpoints,
	})
}

func endpoint(address, pod, node string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, NodeName: &node,
		TargetRef:  &corev1.ObjectReference{Kind: "Pod", Name: pod, Namespace: "shop"},
		Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
}

// shop has a Service with three endpoints, of which one is not ready.
func shop() *fakeCluster {
	f := newFakeCluster("node-1", "node-2", "node-3")
	f.addService("shop", "cart", "10.96.0.20", endpoint("10.244.1.5", "cart-a", "node-1", true),
		endpoint("10.244.2.5", "cart-b", "node-2", true), endpoint("10.244.3.5", "cart-c", "node-3", false))
	f.addService("shop", "headless", "None")
	f.addService("other", "web", "10.96.0.21", endpoint("10.244.1.6", "web-a", "node-1", true))
	return f
}

// TestGetServices: nodes that hold a Service in the same way are one row; a node that lacks it, and one with an
// obstacle, have rows of their own.
func TestGetServices(t *testing.T) {
	f := shop()
	f.run = func(node string, args []string) (string, int) {
		if strings.Join(args, " ") != "get services -o json -n shop" {
			t.Errorf("node %s ran %q", node, args)
		}
		switch node {
		case "node-1":
			return `{"services":[{"namespace":"shop","name":"cart","endpoints":2,"obstacles":[]},` +
				`{"namespace":"shop","name":"old","endpoints":1,"obstacles":[]}]}`, 0
		case "node-2":
			return `{"services":[{"namespace":"shop","name":"cart","endpoints":0,"obstacles":[{"kind":"no-endpoints",` +
				`"text":"no endpoint serves"}]}]}`, 0
		}
		return `{"services":[]}`, 0
	}
	stdout, stderr, code := f.runPlugin(t, "get", "services", "-n", "shop", "-o", "wide")
	want := []string{
		"NAMESPACE NAME CLUSTER-IP PORT(S) READY ENDPOINTS OBSTACLES NODES DETAILS HELD-BY",
		"shop cart 10.96.0.20 80/tcp 2 0 missing 1/3 - node-3",
		"shop cart 10.96.0.20 80/tcp 2 0 no-endpoints 1/3 no endpoint serves node-2",
		"shop cart 10.96.0.20 80/tcp 2 2 - 1/3 - node-1",
		"shop old - - 0 1 stale 1/3 - node-1",
	}
	for _, w := range want {
		if !strings.Contains(squeezed(stdout), w+"\n") {
			t.Errorf("no row %q", w)
		}
	}
	if strings.Count(stdout, "\n") != len(want) || code != 0 || stderr != "" {
		t.Errorf("exit status %d: %s\n%s", code, stderr, stdout)
	}
}

// squeezed has one blank where a table has several.
func squeezed(table string) string {
	var b strings.Builder
	for line := range strings.Lines(table) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

// TestGetNames: a name that no Service has is an error, and one that node proxies do not serve is nothing.
func TestGetNames(t *testing.T) {
	f := shop()
	f.run = func(string, []string) (string, int) { return `{"services":[]}`, 0 }
	if _, stderr, code := f.runPlugin(t, "get", "services", "-n", "shop", "nothing"); code != 2 ||
		!strings.Contains(stderr, `services "nothing" not found`) {
		t.Errorf("exit status %d: %s", code, stderr)
	}
	if stdout, stderr, code := f.runPlugin(t, "get", "services", "-n", "shop", "headless"); code != 0 || stdout != "" ||
		!strings.Contains(stderr, "No resources found") {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
}

// TestGetEndpoints: the endpoints of the EndpointSlices, with what the nodes say of each.
func TestGetEndpoints(t *testing.T) {
	f := shop()
	f.run = func(node string, args []string) (string, int) {
		if node == "node-3" {
			return "", 1
		}
		state := "active"
		if node == "node-2" {
			state = "left-out"
		}
		return `{"endpoints":[{"namespace":"shop","service":"cart","portName":"http","protocol":"tcp",` +
			`"endpoint":"10.244.1.5:8080","state":"active"},{"namespace":"shop","service":"cart","portName":"http",` +
			`"protocol":"tcp","endpoint":"10.244.9.9:8080","state":"draining"},{"namespace":"shop","service":"cart",` +
			`"portName":"http","protocol":"tcp","endpoint":"10.244.2.5:8080","state":"` + state + `","why":"silent"}]}`, 0
	}
	stdout, stderr, code := f.runPlugin(t, "get", "endpoints", "cart", "-n", "shop")
	for _, w := range []string{
		"shop cart http 8080/tcp 10.244.1.5:8080 pod/cart-a node-1 ready active 2/2",
		"shop cart http 8080/tcp 10.244.2.5:8080 pod/cart-b node-2 ready active 1/2",
		"shop cart http 8080/tcp 10.244.2.5:8080 pod/cart-b node-2 ready left-out 1/2",
		"shop cart http 8080/tcp 10.244.3.5:8080 pod/cart-c node-3 not-ready unused 2/2",
		"shop cart http 8080/tcp 10.244.9.9:8080 - - gone draining 2/2",
	} {
		if !strings.Contains(squeezed(stdout), w+"\n") {
			t.Errorf("no row %q:\n%s", w, stdout)
		}
	}
	if code != 1 || !strings.Contains(stderr, "node node-3: nftproxy: it failed") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}
