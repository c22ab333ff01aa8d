package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"nftproxy/model/ejection"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// serveObjects is an API server in a network namespace that has the objects of a manifest, which never change. It
// returns its URL.
func serveObjects(t *testing.T, ns *testnet.Namespace, at netip.Addr, manifest string) string {
	t.Helper()
	objects := map[string][]unstructured.Unstructured{} // by kind
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096); ; {
		var o unstructured.Unstructured
		if err := d.Decode(&o.Object); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if o.GetNamespace() == "" && o.GetKind() != "Node" {
			o.SetNamespace("default")
		}
		setDefaults(&o)
		objects[o.GetKind()] = append(objects[o.GetKind()], o)
	}
	list := func(version, kind string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Query().Has("watch") {
				w.WriteHeader(http.StatusOK)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				return
			}
			items := []map[string]any{}
			for _, o := range objects[kind] {
				if name, only := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name="); !only ||
					name == o.GetName() {
					items = append(items, o.Object)
				}
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind + "List", "apiVersion": version,
				"metadata": map[string]any{"resourceVersion": "1"}, "items": items})
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/services", list("v1", "Service"))
	mux.HandleFunc("GET /api/v1/nodes", list("v1", "Node"))
	mux.HandleFunc("GET /apis/discovery.k8s.io/v1/endpointslices", list("discovery.k8s.io/v1", "EndpointSlice"))
	mux.HandleFunc("GET /apis/networking.k8s.io/v1/servicecidrs", list("networking.k8s.io/v1", "ServiceCIDR"))
	listener, err := ns.Listen(t.Context(), "tcp", netip.AddrPortFrom(at, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return "http://" + listener.Addr().String()
}

// setDefaults fills in what an API server does.
func setDefaults(o *unstructured.Unstructured) {
	ports, there, _ := unstructured.NestedSlice(o.Object, "ports")
	if !there {
		ports, _, _ = unstructured.NestedSlice(o.Object, "spec", "ports")
	}
	for _, p := range ports {
		p.(map[string]any)["protocol"] = "TCP"
	}
	switch o.GetKind() {
	case "Service":
		ips, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "clusterIPs")
		o.Object["spec"].(map[string]any)["clusterIP"], o.Object["spec"].(map[string]any)["ports"] = ips[0], ports
	case "EndpointSlice":
		ports[0].(map[string]any)["name"] = ""
		o.Object["ports"] = ports
	}
}

// nodeManifest is a Node with an address.
func nodeManifest(name string, a netip.Addr) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Node
metadata: {name: %q}
status: {addresses: [{type: InternalIP, address: %q}]}
`, name, a)
}

// nodes returns the Nodes of a world: each is where its pod is.
func (w *ejectWorld) nodes() (manifests string) {
	for name, a := range w.endpoints {
		if name == "node-1" {
			a = w.NodeAddrs.V4()
		}
		manifests += nodeManifest(name, a)
	}
	return manifests
}

// startWithServer starts a proxy that ejects, with an API server at an address.
func (w *ejectWorld) startWithServer(t *testing.T, ns *testnet.Namespace, at netip.Addr, manifests string) *running {
	t.Helper()
	r := start(t, w.Node, "--master", serveObjects(t, ns, at, manifests), "--cluster-cidr", "10.244.0.0/16",
		"--nftproxy-eject=on")
	r.awaitSync()
	return r
}

// serviceManifest is a Service of a namespace with endpoints by the nodes that its slice names.
func serviceManifest(namespace, name, ip string, endpoints map[netip.Addr]string) string {
	return fmt.Sprintf(`
---
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: %s}
spec: {clusterIPs: [%s], ports: [{port: 80}]}
`, name, namespace, ip) + sliceManifest(namespace, name, name+"-1", "{}", endpoints)
}

func sliceManifest(namespace, service, name, annotations string, endpoints map[netip.Addr]string) string {
	text := fmt.Sprintf(`
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: %s, labels: {kubernetes.io/service-name: %s}, annotations: %s}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
`, name, namespace, service, annotations)
	for a, node := range endpoints {
		text += fmt.Sprintf("- {addresses: [%q], nodeName: %q}\n", a, node)
	}
	return text
}

// remoteAddrs are addresses of pods on other nodes that nobody has.
func remoteAddrs(n int) (list []netip.Addr) {
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{10, 244, 1, byte(100 + i)}))
	}
	return list
}

func notKept(l logged) bool { return strings.HasPrefix(l.Msg, "endpoints do not answer and are kept") }

// TestEjectDrained: the endpoints of weight 0 answer the node, and a policy forbids the node and one client to reach
// the others. Nothing is left out: those of weight 0 take no connections.
func TestEjectDrained(t *testing.T) {
	w := newEjectWorld(t, 4)
	other, err := w.AddPod("other")
	if err != nil {
		t.Fatal(err)
	}
	blue, green := map[netip.Addr]string{w.endpoints["node-1"]: "node-1", w.endpoints["node-2"]: "node-2"},
		map[netip.Addr]string{}
	admitted := map[string]netip.Addr{}
	for _, node := range []string{"node-3", "node-4"} {
		green[w.endpoints[node]], admitted[node] = "node-3", w.endpoints[node]
		loadPolicy(t, w.pods[node].NS, w.client.Addrs.V4().String()+", "+w.NodeAddrs.V4().String())
	}
	text := serviceManifest("default", "web", "10.96.0.10", green) + sliceManifest("default", "web", "web-2",
		`{nftproxy.io/weight: "0"}`, blue)
	r := start(t, w.Node, "--nftproxy-manifests", manifest(t, text), "--cluster-cidr", "10.244.0.0/16",
		"--nftproxy-eject=on")
	r.awaitSync()
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 2*time.Second)
	held := r.await("that nothing is left out", func(l logged) bool {
		if notAnswering(l) {
			t.Fatalf("left out: %s", r.lines.Text())
		}
		return notKept(l)
	})
	if held.Reason != string(ejection.NoControl) {
		t.Errorf("the reason is %q", held.Reason)
	}
	stop()
	visitAll(t, other, admitted)
	r.end()
}

// TestEjectNeighbour: endpoints of one Service on a node are silent, and a pod of another Service there answers. It
// stays.
func TestEjectNeighbour(t *testing.T) {
	w := newEjectWorld(t, 3)
	dead := remoteAddrs(3)
	endpoints := map[netip.Addr]string{}
	for node, a := range w.endpoints {
		endpoints[a] = node
	}
	silent := map[netip.Addr]string{w.endpoints["node-1"]: "node-1", w.endpoints["node-3"]: "node-3",
		w.client.Addrs.V4(): "node-1"}
	serveVisits(t, w.client, 8080, "client")
	for _, a := range dead {
		silent[a] = "node-2"
	}
	asked := serveVisits(t, w.pods["node-2"], 10256, "node-2")
	partition(t, w, "10.244.1.96/27")
	r := w.startWithServer(t, w.Outside, w.OutsideAddrs.V4(), serviceManifest("shop", "web", "10.96.0.10", silent)+
		serviceManifest("shop", "b", "10.96.0.11", endpoints)+w.nodes())
	stop := clientLoad(t.Context(), w.client, 10*time.Millisecond, 5*time.Second)
	n := 0
	r.await("that the silent ones are left out", func(l logged) bool {
		n += boolInt(notAnswering(l))
		return n == len(dead)
	})
	for range 2 { // Their node is asked and answers meanwhile.
		awaitVisit(t, asked, w.NodeAddrs.V4())
	}
	stop()
	r.end()
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, w.endpoints["node-2"].String()+":8080") {
			t.Errorf("an endpoint that answers: %s", line)
		}
	}
}

// TestEjectInvented: two namespaces invent the same nodes, and place endpoints there that do not answer. The dead pod
// of another one is left out.
func TestEjectInvented(t *testing.T) {
	w := newEjectWorld(t, 3)
	evil, fiend := map[netip.Addr]string{}, map[netip.Addr]string{}
	for i, a := range remoteAddrs(16) {
		if i < 8 {
			evil[a] = fmt.Sprint("invented-", i%8)
		} else {
			fiend[a] = fmt.Sprint("invented-", i%8)
		}
	}
	partition(t, w, "10.244.1.96/27")
	r := w.startWithServer(t, w.Outside, w.OutsideAddrs.V4(), ejectManifest("", w.endpoints)+w.nodes()+
		serviceManifest("evil", "web", "10.96.0.11", evil)+serviceManifest("fiend", "web", "10.96.0.12", fiend))
	for i, front := range []string{"10.96.0.11:80", "10.96.0.12:80"} {
		var senders []netip.Addr
		for j := range 32 {
			senders = append(senders, netip.AddrFrom4([4]byte{10, 244, 0, byte(150 + 32*i + j)}))
		}
		hang(t, w.client, senders, front)
	}
	r.await("that the endpoints on invented nodes are kept or left out", func(l logged) bool {
		return notKept(l) || notAnswering(l)
	})
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 10*time.Second)
	if _, err := w.pods["node-2"].NS.Cut(netip.AddrPortFrom(w.endpoints["node-2"], 8080)); err != nil {
		t.Fatal(err)
	}
	want := netip.AddrPortFrom(w.endpoints["node-2"], 8080).String()
	r.await("that the dead pod is left out", func(l logged) bool { return notAnswering(l) && l.Endpoint == want })
	stop()
	r.end()
}

// TestEjectListedByOthers: a namespace that comes first by name lists the pod of another one, on a node that it
// invents, and has 300 dead endpoints that clients meet. When the other's pod dies, it is left out.
func TestEjectListedByOthers(t *testing.T) {
	w := newEjectWorld(t, 3)
	victim := w.endpoints["node-2"]
	listed := map[netip.Addr]string{victim: "invented"}
	for i := range 300 { // No node has these pods: the packets are lost.
		listed[netip.AddrFrom4([4]byte{10, 244, byte(2 + i/200), byte(i % 200)})] = fmt.Sprint("node-", 2+i%2)
	}
	r := w.startWithServer(t, w.Outside, w.OutsideAddrs.V4(), ejectManifest("", w.endpoints)+w.nodes()+
		serviceManifest("alpha", "web", "10.96.0.11", listed))
	var senders []netip.Addr
	for i := range 128 {
		senders = append(senders, netip.AddrFrom4([4]byte{10, 244, 0, byte(100 + i)}))
	}
	hang(t, w.client, senders, "10.96.0.11:80")
	tables, err := netfilter.Listen(w.Node.Fd())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testnet.Require(t, tables.Close()) })
	r.await("that the crowd is asked", func(l logged) bool { return notKept(l) || notAnswering(l) })
	stop := clientLoad(t.Context(), w.client, 20*time.Millisecond, 10*time.Second)
	if _, err := w.pods["node-2"].NS.Cut(netip.AddrPortFrom(victim, 8080)); err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	// The log names five endpoints of a moment, which may be others.
	want := fmt.Sprintf("endpoint %s does not answer this node: left out", netip.AddrPortFrom(victim, 8080))
	// Without a crowd it takes 2.3 s. With a queue for all namespaces it took 7 to 14 s.
	for limit := time.After(6 * time.Second); ; {
		_, changed := tables.Last()
		out, notes, code := runIn(t, w.Node, "explain", "10.96.0.10:80")
		if code == 0 && strings.Contains(out, want) {
			break
		}
		select {
		case <-changed:
		case <-limit:
			t.Fatalf("explain: %d\n%s%s\nwant %q", code, out, notes, want)
		}
	}
	t.Logf("left out within %v", time.Since(cut))
	stop()
	r.end()
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
