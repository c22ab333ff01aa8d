package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// fakeCluster is an API server with nftproxy's DaemonSet, whose pods answer commands.
type fakeCluster struct {
	nodes    []corev1.Node
	pods     []corev1.Pod
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice
	set      appsv1.DaemonSet
	// delay is how long a pod takes to answer. An answer that is none never comes.
	delay time.Duration
	// owned are the owners of ReplicaSets and Jobs, by the resource, namespace and name, as replicasets/shop/web-1.
	owned map[string]metav1.OwnerReference
	// forbidden says that the user may not make a request; nil for all.
	forbidden func(path string) bool
	// broken says that a request fails; nil for none.
	broken func(path string) bool
	run    func(node string, args []string) (stdout string, exit int)
	// gaveUp gets whether a client had opened the standard input of a command from which no answer came, when the client
	// has gone; nil for nobody.
	gaveUp chan bool
}

// neverAnswers is an exit status. stderrOnly begins what a command that fails prints there, in place of its output.
const (
	neverAnswers = -1
	stderrOnly   = "stderr: "
)

func newFakeCluster(nodes ...string) *fakeCluster {
	f := &fakeCluster{set: appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "nftproxy", Namespace: "kube-system", UID: "set", Generation: 1,
			Labels: map[string]string{"app.kubernetes.io/name": "nftproxy"}},
		Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/os": "linux"}}}},
		Status: appsv1.DaemonSetStatus{ObservedGeneration: 1},
	}}
	for _, name := range nodes {
		f.addNode(name)
	}
	return f
}

// addNode adds a node with a pod of nftproxy.
func (f *fakeCluster) addNode(name string) {
	n := strconv.Itoa(len(f.nodes) + 1)
	f.nodes = append(f.nodes, corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.168.0." + n}}},
	})
	f.pods = append(f.pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "nftproxy-" + n, Namespace: "kube-system",
			Labels: map[string]string{"app.kubernetes.io/name": "nftproxy"}, OwnerReferences: []metav1.OwnerReference{
				{Kind: "DaemonSet", UID: types.UID("set"), Controller: new(true)}}},
		Spec: corev1.PodSpec{NodeName: name, HostNetwork: true},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: "nftproxy", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	})
	f.set.Status.DesiredNumberScheduled++
	f.set.Status.UpdatedNumberScheduled++
	f.set.Status.NumberReady++
}

func (f *fakeCluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	list := func(kind, version string, items any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{},
			"items": items})
	}
	if f.broken != nil && f.broken(r.URL.Path) {
		http.Error(w, "the API server starts", http.StatusServiceUnavailable)
		return
	}
	if f.forbidden != nil && f.forbidden(r.URL.Path) {
		serveStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "forbidden")
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch last := parts[len(parts)-1]; {
	case last == "exec":
		f.exec(w, r, parts[len(parts)-2])
	case last == "nodes":
		list("NodeList", "v1", f.nodes)
	case last == "daemonsets":
		list("DaemonSetList", "apps/v1", []appsv1.DaemonSet{f.set})
	case last == "services":
		list("ServiceList", "v1", slices.DeleteFunc(slices.Clone(f.services), func(s corev1.Service) bool {
			return !strings.Contains(r.URL.Path, "/namespaces/"+s.Namespace+"/") && strings.Contains(r.URL.Path, "/namespaces/")
		}))
	case last == "endpointslices":
		list("EndpointSliceList", "discovery.k8s.io/v1", f.slices)
	case last == "events":
		list("EventList", "v1", []corev1.Event{})
	case last == "log":
		fmt.Fprintln(w, "level=INFO msg=starting")
	case last == "pods":
		list("PodList", "v1", f.podsBy(r))
	case parts[len(parts)-2] == "replicasets" || parts[len(parts)-2] == "jobs":
		f.serveOwned(w, parts[len(parts)-2], parts[len(parts)-3], last)
	case parts[len(parts)-2] == "pods" || parts[len(parts)-2] == "services":
		f.serveOne(w, parts[len(parts)-2], parts[len(parts)-3], last)
	default:
		http.NotFound(w, r)
	}
}

// podsBy answers a list of pods by its selectors.
func (f *fakeCluster) podsBy(r *http.Request) (pods []corev1.Pod) {
	address, byAddress := strings.CutPrefix(r.URL.Query().Get("fieldSelector"), "status.podIP=")
	ours := r.URL.Query().Get("labelSelector") != ""
	for _, p := range f.pods {
		if strings.Contains(r.URL.Path, "/namespaces/") && !strings.Contains(r.URL.Path, "/namespaces/"+p.Namespace+"/") {
			continue
		}
		if byAddress && p.Status.PodIP != address || ours && p.Labels["app.kubernetes.io/name"] != "nftproxy" {
			continue
		}
		pods = append(pods, p)
	}
	return pods
}

func (f *fakeCluster) serveOne(w http.ResponseWriter, resource, namespace, name string) {
	var found any
	for i := range f.pods {
		if p := &f.pods[i]; resource == "pods" && p.Name == name && p.Namespace == namespace {
			found = p
		}
	}
	for i := range f.services {
		if s := &f.services[i]; resource == "services" && s.Name == name && s.Namespace == namespace {
			found = s
		}
	}
	if found == nil {
		serveStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, resource+" "+name+" not found")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(found)
}

// serveStatus serves why a request fails.
func serveStatus(w http.ResponseWriter, code int32, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(code))
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: "Failure", Reason: reason, Code: code, Message: message})
}

// serveOwned serves a ReplicaSet or a Job.
func (f *fakeCluster) serveOwned(w http.ResponseWriter, resource, namespace, name string) {
	by, known := f.owned[resource+"/"+namespace+"/"+name]
	if !known {
		serveStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound, resource+" "+name+" not found")
		return
	}
	kind := map[string][2]string{"replicasets": {"ReplicaSet", "apps/v1"}, "jobs": {"Job", "batch/v1"}}[resource]
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind[0], "apiVersion": kind[1], "metadata": metav1.ObjectMeta{
		Namespace: namespace, Name: name, OwnerReferences: []metav1.OwnerReference{by}}})
}

// exec runs a command in a pod by the protocol v5.channel.k8s.io (KEP-4006).
func (f *fakeCluster) exec(w http.ResponseWriter, r *http.Request, pod string) {
	upgrader := websocket.Upgrader{Subprotocols: []string{"v5.channel.k8s.io"}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer conn.Close()
	node := ""
	for i := range f.pods {
		if f.pods[i].Name == pod {
			node = f.pods[i].Spec.NodeName
		}
	}
	stdout, exit := f.run(node, r.URL.Query()["command"][1:])
	if exit == neverAnswers {
		_, _, _ = conn.ReadMessage() // Until the client gives up.
		if f.gaveUp != nil {
			f.gaveUp <- r.URL.Query().Get("stdin") == "true"
		}
		return
	}
	select {
	case <-time.After(f.delay):
	case <-r.Context().Done():
		return
	}
	const stdoutChannel, stderrChannel, errorChannel = "\x01", "\x02", "\x03"
	status := metav1.Status{Status: metav1.StatusSuccess}
	if exit != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: strconv.Itoa(exit)}}}}
		if says, is := strings.CutPrefix(stdout, stderrOnly); is || stdout == "" {
			stdout = ""
			_ = conn.WriteMessage(websocket.BinaryMessage, []byte(stderrChannel+"nftproxy: "+cmp.Or(says, "it failed")+"\n"))
		}
	}
	text, _ := json.Marshal(status)
	_ = conn.WriteMessage(websocket.BinaryMessage, []byte(stdoutChannel+stdout))
	_ = conn.WriteMessage(websocket.BinaryMessage, []byte(errorChannel+string(text)))
	_ = conn.WriteMessage(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""))
}

// start starts the API server and returns the path of a kubeconfig for it.
func (f *fakeCluster) start(t testing.TB) (kubeconfig string) {
	t.Helper()
	server := httptest.NewTLSServer(f)
	t.Cleanup(server.Close)
	config := clientcmdapi.Config{CurrentContext: "test",
		Clusters: []clientcmdapi.NamedCluster{{Name: "test", Cluster: clientcmdapi.Cluster{Server: server.URL,
			InsecureSkipTLSVerify: true}}},
		Contexts: []clientcmdapi.NamedContext{{Name: "test", Context: clientcmdapi.Context{Cluster: "test",
			AuthInfo: "test"}}},
		AuthInfos: []clientcmdapi.NamedAuthInfo{{Name: "test", AuthInfo: clientcmdapi.AuthInfo{Token: "token"}}},
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

// runPlugin runs the plugin against the cluster.
func (f *fakeCluster) runPlugin(t testing.TB, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return runPlugin(t.Context(), append([]string{"--kubeconfig", f.start(t)}, args...)...)
}

func runPlugin(ctx context.Context, args ...string) (stdout, stderr string, code int) {
	var out, errs bytes.Buffer
	code = execute(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: &errs})
	return out.String(), errs.String(), code
}

// executeTo runs the plugin with an output that can be watched.
func executeTo(ctx context.Context, out io.Writer, args ...string) int {
	return execute(ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: io.Discard})
}

// notifying keeps what is written, and closes reached after so many lines.
type notifying struct {
	want    int
	reached chan struct{}

	mu   sync.Mutex
	text bytes.Buffer
	done bool
}

func (n *notifying) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.text.Write(p)
	if !n.done && bytes.Count(n.text.Bytes(), []byte("\n")) >= n.want {
		n.done = true
		close(n.reached)
	}
	return len(p), nil
}

func (n *notifying) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.text.String()
}
