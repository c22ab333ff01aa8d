package cluster

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNodesOfDaemonSet: which nodes a DaemonSet is for, by its selector, its affinity and the taints of nodes.
func TestNodesOfDaemonSet(t *testing.T) {
	set := func(change func(*corev1.PodSpec)) *appsv1.DaemonSet {
		s := &appsv1.DaemonSet{}
		change(&s.Spec.Template.Spec)
		return s
	}
	linux := set(func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"kubernetes.io/os": "linux"} })
	affine := set(func(s *corev1.PodSpec) {
		s.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "trial", Operator: corev1.NodeSelectorOpExists}}}}}}}
	})
	tolerant := set(func(s *corev1.PodSpec) { s.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
	node := func(labels map[string]string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	tainted := node(map[string]string{"kubernetes.io/os": "linux"}, corev1.Taint{Key: "gpu",
		Effect: corev1.TaintEffectNoSchedule})
	unreachable := node(map[string]string{"kubernetes.io/os": "linux"}, corev1.Taint{Key: "node.kubernetes.io/unreachable",
		Effect: corev1.TaintEffectNoExecute})
	for name, c := range map[string]struct {
		set  *appsv1.DaemonSet
		node *corev1.Node
		want bool
	}{
		"selector": {linux, node(map[string]string{"kubernetes.io/os": "linux"}), true},
		"windows":  {linux, node(map[string]string{"kubernetes.io/os": "windows"}), false},
		"affinity": {affine, node(map[string]string{"trial": "yes"}), true}, "without affinity": {affine, node(nil), false},
		"taint": {linux, tainted, false}, "toleration": {tolerant, tainted, true}, "unreachable": {linux, unreachable, true},
	} {
		if got := IsFor(c.set, c.node); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// TestBounded: what is beyond the bound ends the command, once, and is not kept.
func TestBounded(t *testing.T) {
	full := 0
	b := &bounded{most: 10, full: func() { full++ }}
	for range 5 {
		if n, err := b.Write([]byte("1234")); n != 4 || err != nil {
			t.Fatal(n, err)
		}
	}
	if got := string(b.text()); got != "12341234" || full != 1 {
		t.Errorf("%q is kept, full %d times", got, full)
	}
}

// TestEach: the results are in the order of the nodes, no more nodes are asked at a time than may be, and the end of
// the context is an error.
func TestEach(t *testing.T) {
	nodes := make([]Node, 100)
	for i := range nodes {
		nodes[i].Name = string(rune('A' + i))
	}
	var now, most atomic.Int32
	r := DefaultRound(nil)
	r.AtOnce = 7
	got, err := Each(t.Context(), nodes, r, func(_ context.Context, n *Node) string {
		for n := now.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		defer now.Add(-1)
		return n.Name
	})
	if err != nil || len(got) != len(nodes) || most.Load() > 7 {
		t.Fatalf("%d results, %d at a time, %v", len(got), most.Load(), err)
	}
	for i := range nodes {
		if got[i] != nodes[i].Name {
			t.Errorf("result %d is %q", i, got[i])
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("interrupted")
	if _, err := Each(ctx, nodes, r, func(context.Context, *Node) int {
		cancel(ended)
		return 1
	}); !errors.Is(err, ended) {
		t.Errorf("after the end of the context: %v", err)
	}
}

// TestFlag: the flags of a pod's nftproxy, in both ways to write them.
func TestFlag(t *testing.T) {
	n := &Node{Pod: &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "side", Args: []string{"--nftproxy-table=other"}},
		{Name: Container, Args: []string{"run", "--nftproxy-table=mine", "--config", "file"}},
	}}}}
	if n.Flag("nftproxy-table") != "mine" || n.Flag("config") != "file" || n.Flag("v") != "" || (&Node{}).Tables() != nil {
		t.Error(n.Flag("nftproxy-table"), n.Flag("config"), n.Flag("v"))
	}
}
