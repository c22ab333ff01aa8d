package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"nftproxy/cmd/kubectl-nftproxy/migration"
)

// TestMigrateCloses: once nftproxy's DaemonSet is for all nodes, the same command has new nodes get nftproxy alone.
func TestMigrateCloses(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b")
	plain := f.sets[migration.KubeProxy].Spec.Template.Spec.DeepCopy()
	for _, want := range []bool{false, true} {
		if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
			t.Fatal(err, out)
		}
		f.addNode("late" + f.version())
		f.settle()
		if text := f.state(); strings.Contains(text, "nftproxy-late") != want ||
			strings.Contains(text, "kube-proxy-late") == want {
			t.Errorf("for all nodes %t:\n%s", want, text)
		}
		for name := range f.nodes {
			if strings.HasPrefix(name, "late") {
				delete(f.nodes, name)
			}
		}
		delete(f.sets[migration.Nftproxy].Spec.Template.Spec.NodeSelector, "nftproxy.io/trial") // by an overlay
		f.settle()
	}
	if out, err := f.migrate(t, 0, migration.Options{To: migration.KubeProxy}); err != nil {
		t.Fatal(err, out)
	}
	if diff := cmp.Diff(plain, &f.sets[migration.KubeProxy].Spec.Template.Spec); diff != "" {
		t.Errorf("kube-proxy's DaemonSet (-before +after): %s", diff)
	}
	f.check(t, "closes")
}

// TestMigrateAwaitsRestart: each change of kube-proxy's DaemonSet restarts its pods. The migration goes on when they
// are ready, stops with the reason of one that fails, and does not wait for nodes that are not Ready.
func TestMigrateAwaitsRestart(t *testing.T) {
	t.Parallel()
	// d is not migrated, and its kube-proxy does not start again.
	f := newFakeProxies(true, "a", "b", "d")
	chosen, err := labels.Parse("kubernetes.io/hostname!=d")
	if err != nil {
		t.Fatal(err)
	}
	f.nodes["d"].ill = migration.KubeProxy
	o := migration.Options{To: migration.Nftproxy, Nodes: chosen, Patience: 2 * time.Second}
	out, err := f.migrate(t, 0, o)
	stopped := (*migration.StoppedError)(nil)
	if !errors.As(err, &stopped) || stopped.Error() != "d: restart: the pod kube-proxy-d is not ready: Pending" {
		t.Errorf("%v\n%s", err, out)
	}
	if text := f.state(); strings.Contains(text, `kube-proxy="stopped"`) {
		t.Errorf("kube-proxy was ended on a node:\n%s", text)
	}
	f.nodes["d"].Status.Conditions[0].Status = "Unknown"
	if out, err := f.migrate(t, 0, o); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	// On the way back, kube-proxy serves all nodes before they are said to have it.
	f = newFakeProxies(true, "a", "b")
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
		t.Fatal(err, out)
	}
	gated := f.sets[migration.KubeProxy].Spec.Template.DeepCopy()
	f.onWrite = func(int) {
		if !cmp.Equal(gated, &f.sets[migration.KubeProxy].Spec.Template) {
			f.nodes["b"].ill = migration.KubeProxy
		}
	}
	out, err = f.migrate(t, 0, migration.Options{To: migration.KubeProxy, Patience: 2 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "b: restart: the pod kube-proxy-b is not ready: Pending") ||
		strings.Contains(out, "they have kube-proxy") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMigrateUninstalled: where nftproxy's DaemonSet was removed before the way back, the way back has kube-proxy run
// again, from wherever the way there ended.
func TestMigrateUninstalled(t *testing.T) {
	t.Parallel()
	for _, trial := range []bool{true, false} {
		for _, kill := range []int{0, 20, 26} {
			f := newFakeProxies(trial, "a", "b")
			before := f.sets[migration.KubeProxy].Spec.Template.Spec.DeepCopy()
			if out, err := f.migrate(t, kill, migration.Options{To: migration.Nftproxy}); err != nil && kill == 0 {
				t.Fatal(err, out)
			}
			delete(f.sets, migration.Nftproxy)
			for name := range f.pods {
				if !strings.HasPrefix(name, migration.KubeProxy) {
					delete(f.pods, name)
				}
			}
			out, err := f.migrate(t, 0, migration.Options{To: migration.KubeProxy})
			if err != nil || !strings.Contains(out, "deploy/cleanup/nftproxy") {
				t.Errorf("trial %t, killed %d: %v\n%s", trial, kill, err, out)
			}
			if diff := cmp.Diff(before, &f.sets[migration.KubeProxy].Spec.Template.Spec); diff != "" {
				t.Errorf("trial %t, killed %d: kube-proxy's DaemonSet (-before +after): %s", trial, kill, diff)
			}
			for _, n := range f.nodes {
				if !n.rules[migration.KubeProxy].fresh || len(n.Labels) != 2 {
					t.Errorf("trial %t, killed %d: node %s: %v %v", trial, kill, n.Name, n.rules, n.Labels)
				}
			}
			if _, err := f.migrate(t, 0, migration.Options{To: migration.KubeProxy}); err == nil ||
				!strings.Contains(err.Error(), "there is nothing to go back from") {
				t.Errorf("trial %t, killed %d, again: %v", trial, kill, err)
			}
		}
	}
}

// TestMigrateBackNowhere: a node with nftproxy that kube-proxy's DaemonSet is not for is named before anything is
// changed, and so is one whose pod of nftproxy would be uninstalled.
func TestMigrateBackNowhere(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(false, "a", "b")
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
		t.Fatal(err, out)
	}
	// Somebody applied it with a narrower selector.
	theirs := f.sets[migration.KubeProxy].Spec.Template.Spec.NodeSelector
	theirs["kubernetes.io/hostname"] = "a"
	first := f.writes
	out, err := f.migrate(t, 0, migration.Options{To: migration.KubeProxy})
	const want = "b: start kube-proxy: the node has nftproxy, and kube-proxy's DaemonSet is not for it"
	if err == nil || !strings.HasPrefix(err.Error(), want) || f.writes > first {
		t.Errorf("%d changes, %v\n%s", f.writes-first, err, out)
	}
	// A pod that does not end, on a node that nftproxy's DaemonSet is not for.
	f = newFakeProxies(false, "a", "b")
	delete(f.sets[migration.KubeProxy].Spec.Template.Spec.NodeSelector, "kubernetes.io/os")
	f.nodes["b"].Labels["kubernetes.io/os"] = "other"
	f.settle()
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
		t.Fatal(err, out)
	}
	f.onWrite = func(int) {
		spec := &f.sets[migration.KubeProxy].Spec.Template.Spec
		if spec.Affinity == nil && f.pods["stuck"] == nil {
			p := f.pods["kube-proxy-b"].DeepCopy()
			p.Name, p.Labels["app.kubernetes.io/name"] = "stuck", migration.Nftproxy
			p.OwnerReferences[0].UID = f.sets[migration.Nftproxy].UID
			f.pods[p.Name] = p
		}
	}
	out, err = f.migrate(t, 0, migration.Options{To: migration.KubeProxy, Patience: 2 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "b: finish: nftproxy still has the pod stuck") ||
		strings.Contains(out, "uninstall") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMigrateForeign: nodes that kube-proxy is not for, and that have no pod of either proxy, are named and left.
func TestMigrateForeign(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a")
	spec := &f.sets[migration.KubeProxy].Spec.Template.Spec
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual"}}}}}}}}
	f.settle()
	f.addNode("virtual")
	f.nodes["virtual"].Labels["type"] = "virtual"
	f.nodes["virtual"].red = true
	out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
	if err != nil || !strings.Contains(out, "virtual: has no proxy: is left as it is") ||
		len(f.nodes["virtual"].Labels) != 3 || f.pods["nftproxy-virtual"] != nil {
		t.Errorf("%v\n%s%s", err, out, f.state())
	}
	if out, err := f.migrate(t, 0, migration.Options{To: migration.KubeProxy}); err != nil {
		t.Errorf("back: %v\n%s", err, out)
	}
	f.check(t, "foreign")
}

// TestMigrateTainted: a taint that came after nftproxy's pod, and that its DaemonSet does not tolerate, does not end
// the pod. The way back does not either, before kube-proxy serves.
func TestMigrateTainted(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(false, "a", "b", "c")
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
		t.Fatal(err, out)
	}
	f.sets[migration.Nftproxy].Spec.Template.Spec.Tolerations = nil
	f.settle()
	f.nodes["c"].Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	f.settle()
	if out, err := f.migrate(t, 0, migration.Options{To: migration.KubeProxy}); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	f.check(t, "tainted")
	if n := strings.Count(f.state(), "map[kube-proxy:{true true} nftproxy:{false false}]"); n != 3 {
		t.Errorf("%d of 3 nodes have kube-proxy alone:\n%s", n, f.state())
	}
}

// TestMigrateNarrow: where nftproxy's DaemonSet is not for each node that kube-proxy's may be for, though for all of
// today, a new node has kube-proxy.
func TestMigrateNarrow(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(false, "a", "b")
	f.sets[migration.Nftproxy].Spec.Template.Spec.Tolerations = nil
	f.settle()
	narrow := func() {
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
		if err != nil || !strings.Contains(out, "lacks kube-proxy's toleration of the taint") {
			t.Errorf("%v\n%s", err, out)
		}
	}
	narrow()
	// Once it was wider, kube-proxy has been closed.
	f.sets[migration.Nftproxy].Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: "Exists"}}
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil ||
		!strings.Contains(f.state(), "non-existing") {
		t.Errorf("%v\n%s%s", err, out, f.state())
	}
	f.sets[migration.Nftproxy].Spec.Template.Spec.Tolerations = nil
	f.settle()
	narrow()
	f.addNode("late")
	f.nodes["late"].Spec.Taints = []corev1.Taint{{Key: "dedicated", Effect: corev1.TaintEffectNoSchedule}}
	f.settle()
	if !f.nodes["late"].rules[migration.KubeProxy].fresh || f.nodes["a"].rules[migration.KubeProxy].there {
		t.Errorf("%s", f.state())
	}
	f.check(t, "narrow")
}

// TestMigrateJoins: a node joins after the last look before a change of a DaemonSet, and may have both proxies by then.
// It ends with the right one, and without rules of the other.
func TestMigrateJoins(t *testing.T) {
	t.Parallel()
	for _, to := range []string{migration.Nftproxy, migration.KubeProxy} {
		for _, settled := range []bool{true, false} {
			for at := 1; ; at++ {
				name := fmt.Sprintf("to %s, a node joins at change %d, settled %t", to, at, settled)
				f := newFakeProxies(false, "a", "b")
				if to == migration.KubeProxy {
					if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
						t.Fatal(name, err, out)
					}
				}
				f.changes = 0
				f.onChange = func(n int) {
					if n != at {
						return
					}
					f.addNode("new")
					if settled {
						f.settle()
					}
				}
				out, err := f.migrate(t, 0, migration.Options{To: to})
				if err != nil {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
				if f.changes < at {
					break
				}
				f.check(t, name)
				want := "map[kube-proxy:{false false} nftproxy:{true true}]"
				if to == migration.KubeProxy {
					want = "map[kube-proxy:{true true} nftproxy:{false false}]"
				}
				if text := f.state(); strings.Count(text, want) != 3 {
					t.Errorf("%s:\n%s\n%s", name, text, out)
				}
			}
		}
	}
}

// TestMigrateSomeBack: after some nodes have gone back, the last line says what the DaemonSet of nftproxy has until the
// others have, or until these have nftproxy again.
func TestMigrateSomeBack(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(false, "a", "b")
	chosen, err := labels.Parse("kubernetes.io/hostname=b")
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range []migration.Options{{To: migration.Nftproxy}, {To: migration.KubeProxy, Nodes: chosen},
		{To: migration.Nftproxy}} {
		out, err := f.migrate(t, 0, o)
		if err != nil {
			t.Fatal(err, out)
		}
		kept := f.sets[migration.Nftproxy].Spec.UpdateStrategy.Type == "OnDelete"
		said := strings.Contains(out, "the DaemonSet nftproxy has the update strategy OnDelete")
		if kept != said || kept != (i == 1) {
			t.Errorf("run %d: OnDelete %t, said %t\n%s", i, kept, said, out)
		}
	}
	f.check(t, "some back")
}

// TestMigrateLosesLabel: where nftproxy is on trial, a node that loses one of its labels has kube-proxy again.
func TestMigrateLosesLabel(t *testing.T) {
	t.Parallel()
	for _, label := range []string{"nftproxy.io/trial", "nftproxy.io/kube-proxy"} {
		f := newFakeProxies(true, "a", "b")
		if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
			t.Fatal(err, out)
		}
		delete(f.nodes["b"].Labels, label)
		f.settle()
		if !f.nodes["b"].rules[migration.KubeProxy].fresh || f.nodes["a"].rules[migration.KubeProxy].there {
			t.Errorf("without %s:\n%s", label, f.state())
		}
		for _, to := range []string{migration.Nftproxy, migration.KubeProxy} {
			if out, err := f.migrate(t, 0, migration.Options{To: to}); err != nil {
				t.Errorf("without %s, to %s: %v\n%s", label, to, err, out)
			}
		}
	}
}
