package main

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"nftproxy/cmd/kubectl-nftproxy/servicetest"
)

// TestNodesToTry: two ready nodes that take any pod come first, and names are those of different nodes.
func TestNodesToTry(t *testing.T) {
	node := func(name string, change func(*corev1.Node)) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		if change != nil {
			change(&n)
		}
		return n
	}
	nodes := []corev1.Node{
		node("control-plane", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "control-plane"}} }),
		node("away", func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }),
		node("cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true }),
		node("windows", func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "windows" }),
		node("worker-1", nil), node("worker-2", nil), node("worker-3", nil),
	}
	many := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"}
	for _, c := range []struct {
		nodes []corev1.Node
		names []string
		want  string
	}{
		{nodes, nil, "worker-1 worker-2"},
		{nodes[:5], nil, "worker-1 control-plane"},
		{nodes[:1], nil, "control-plane"},
		{nodes[1:4], nil, "the cluster has no node that is ready and schedulable"},
		{nodes, []string{"worker-3", "control-plane"}, "worker-3 control-plane"},
		{nodes, []string{"worker-3", "worker-3"}, `no other node "worker-3"`},
		{nodes, []string{"nobody"}, `no other node "nobody"`},
		{nodes, many, "at most 10"},
	} {
		chosen, err := nodesToTry(c.nodes, c.names)
		var got []string
		for _, n := range chosen {
			got = append(got, n.Name)
		}
		if err != nil {
			got = []string{err.Error()}
		}
		if text := strings.Join(got, " "); text != c.want && (err == nil || !strings.Contains(text, c.want)) {
			t.Errorf("%v of %d nodes: %q, want %q", c.names, len(c.nodes), text, c.want)
		}
	}
}

// TestInside: a computer that is a node, one in a pod, and one that does not reach the nodes are no clients outside.
func TestInside(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	at := func(address string) []corev1.Node {
		return []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}}}}
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if got := inside(t.Context(), at("127.0.0.1"), nil); got != "this computer is the node node-1" {
		t.Error(got)
	}
	// Nobody listens on the kubelet's port of this address of the loopback interface.
	if got := inside(t.Context(), nil, at("127.0.0.77")); got != "" {
		t.Error(got)
	}
	if got := inside(t.Context(), nil, at("not-an-address.invalid")); !strings.Contains(got, "does not reach") {
		t.Error(got)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
	if got := inside(t.Context(), nil, nil); !strings.Contains(got, "pod") {
		t.Error(got)
	}
}

// TestTestOutput: a row for each kind of check, the failures with what explains them, and nothing that a name or an
// answer could do to a terminal.
func TestTestOutput(t *testing.T) {
	results := []servicetest.Result{
		{Test: "cluster IP", From: "pod client-1 on node-1", To: "svc/all", State: servicetest.Passed},
		{Test: "cluster IP", From: "pod client-2 on node-2", To: "svc/all", State: servicetest.Failed,
			Detail: "answer \x1b[2J", Explanation: []string{"because of \x1b]0;x\a"}},
		{Test: "cluster IP", From: "pod client-2 on node-2", To: "svc/other", State: servicetest.Failed, Detail: "no answer"},
		{Test: "load balancer", State: servicetest.NotTried, Detail: "asked for by --load-balancer"},
	}
	for format, wants := range map[string][]string{
		"":     {"cluster IP", "1/3", "FAIL", "not tried", "because of", "1 more of its connections failed"},
		"wide": {"pod client-1 on node-1", "svc/other", "because of"},
		"json": {`"kind": "ServiceTestResult"`, `"explanation"`}, "name": {"servicetestresult.nftproxy.io/cluster IP"},
	} {
		var out bytes.Buffer
		c := &testCommand{plugin: &plugin{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &out}}}
		c.addFlags(&cobra.Command{})
		*c.flags.OutputFormat = format
		if err := c.write(slices.Clone(results)); err != nil {
			t.Errorf("-o %s: %v", format, err)
		}
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("-o %s lacks %q:\n%s", format, want, out.String())
			}
		}
		if strings.ContainsAny(out.String(), "\x1b\a") {
			t.Errorf("-o %s: %q", format, out.String())
		}
	}
}

// TestTestRefuses: what cannot be tried is said before anything is made, with exit status 2.
func TestTestRefuses(t *testing.T) {
	f := newFakeCluster("node-1")
	made := false
	f.broken = func(path string) bool {
		made = made || strings.HasSuffix(path, "/namespaces")
		return false
	}
	for args, want := range map[string]string{
		"test --outside=perhaps":            "want auto, yes or no",
		"test -o nothing":                   "output format",
		"test --node nobody":                `no other node "nobody"`,
		"test --node node-1 --outside=no x": "unknown command",
		"test --outside=no":                 "no node that is ready",
	} {
		_, stderr, code := f.runPlugin(t, strings.Fields(args)...)
		if code != int(statusFailed) || !strings.Contains(stderr, want) {
			t.Errorf("%s: %d, %s", args, code, stderr)
		}
	}
	if made {
		t.Error("a namespace was asked for")
	}
}
