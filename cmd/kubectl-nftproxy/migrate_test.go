package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/cmd/kubectl-nftproxy/migration"
)

// migrate runs a migration, and ends it after a write as if it was killed; 0 for never.
func (f *fakeProxies) migrate(t testing.TB, killAfter int, o migration.Options) (string, error) {
	t.Helper()
	ctx, killed := context.WithCancel(t.Context())
	defer killed()
	server := httptest.NewServer(f.server(killAfter, killed))
	defer server.Close()
	of, err := cluster.New(&rest.Config{Host: server.URL}, cluster.DefaultNamespace)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.lease = nil // That of a killed run has expired.
	f.mu.Unlock()
	var out bytes.Buffer
	o.Out, o.Period, o.AtOnce = &out, time.Millisecond, 2
	if o.Patience == 0 {
		o.Patience = 20 * time.Second
	}
	ended := make(chan error, 1)
	go func() { ended <- migration.Run(ctx, of, o) }()
	select {
	case err = <-ended:
	case <-ctx.Done(): // The API server hears no more of it.
		err = context.Cause(ctx)
	}
	f.mu.Lock()
	f.settle()
	f.mu.Unlock()
	if ctx.Err() != nil {
		return "", err
	}
	return out.String(), err
}

func (f *fakeProxies) check(t testing.TB, name string) {
	t.Helper()
	if len(f.wrong) > 0 {
		t.Errorf("%s: %s", name, strings.Join(f.wrong[:min(3, len(f.wrong))], "\n"))
	}
}

// both runs there, and back from there.
func (f *fakeProxies) both(t testing.TB) (there, back string) {
	t.Helper()
	for _, to := range []string{migration.Nftproxy, migration.KubeProxy} {
		if out, err := f.migrate(t, 0, migration.Options{To: to}); err != nil {
			t.Fatalf("to %s: %v\n%s", to, err, out)
		}
		if to == migration.Nftproxy {
			there = f.state()
		}
	}
	return there, f.state()
}

// TestMigrate: the cluster goes to nftproxy and back, and is then as it was, installed for labelled nodes or for all.
func TestMigrate(t *testing.T) {
	t.Parallel()
	for _, trial := range []bool{true, false} {
		f := newFakeProxies(trial, "a", "b", "c", "d")
		before := f.state()
		there, back := f.both(t)
		f.check(t, "migrate")
		if f.lease != nil {
			t.Errorf("trial %t: a Lease is left", trial)
		}
		if n := f.replaced[migration.Nftproxy]; n > 0 {
			t.Errorf("trial %t: %d pods of nftproxy were replaced", trial, n)
		}
		if n := strings.Count(there, "map[kube-proxy:{false false} nftproxy:{true true}]"); n != 4 {
			t.Errorf("trial %t: %d of 4 nodes have nftproxy alone:\n%s", trial, n, there)
		}
		if trial == strings.Contains(there, "non-existing") {
			t.Errorf("trial %t: new nodes:\n%s", trial, there)
		}
		if trial {
			if diff := cmp.Diff(before, back); diff != "" {
				t.Errorf("there and back (-before +after):\n%s", diff)
			}
		}
		if n := strings.Count(back, "map[kube-proxy:{true true} nftproxy:{false false}]"); n != 4 {
			t.Errorf("trial %t: %d of 4 nodes have kube-proxy alone:\n%s", trial, n, back)
		}
		// And again: all that was left in the cluster must not matter.
		again, _ := f.both(t)
		f.check(t, "again")
		if diff := cmp.Diff(there, again); diff != "" {
			t.Errorf("the second time (-first +second):\n%s", diff)
		}
	}
}

// TestMigrateKilled: a run that is killed after any of its changes, and started again, ends like one that was not,
// and so does one in the other direction. No node is without a proxy meanwhile.
func TestMigrateKilled(t *testing.T) {
	t.Parallel()
	between := 1
	if testing.Short() {
		between = 5
	}
	for _, trial := range []bool{true, false} {
		reference := newFakeProxies(trial, "a", "b", "c")
		there, back := reference.both(t)
		for _, to := range []string{migration.Nftproxy, migration.KubeProxy} {
			for kill := 1; ; kill += between {
				name := fmt.Sprintf("trial %t, to %s, killed after write %d", trial, to, kill)
				f := newFakeProxies(trial, "a", "b", "c")
				want := there
				if to == migration.KubeProxy {
					want = back
					if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
						t.Fatal(name, err, out)
					}
				}
				if _, err := f.migrate(t, kill, migration.Options{To: to}); err == nil {
					if kill < 10 {
						t.Errorf("%s: a run has less changes than expected", name)
					}
					break
				}
				turned := f.copy()
				out, err := f.migrate(t, 0, migration.Options{To: to})
				if err != nil {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
				f.check(t, name)
				if diff := cmp.Diff(want, f.state()); diff != "" {
					t.Errorf("%s (-never killed +killed):\n%s\n%s", name, diff, out)
				}
				other := map[string]string{migration.Nftproxy: migration.KubeProxy, migration.KubeProxy: migration.Nftproxy}[to]
				if out, err := turned.migrate(t, 0, migration.Options{To: other}); err != nil {
					t.Errorf("%s, then turned: %v\n%s", name, err, out)
				}
				turned.check(t, name+", then turned")
				if text := turned.state(); strings.Count(text, "{true true}") != 3 || strings.Count(text, "{false false}") != 3 ||
					strings.Contains(text, "nftproxy-migrate") || other == migration.KubeProxy && strings.Contains(text, "stopped") {
					t.Errorf("%s, then turned:\n%s", name, text)
				}
			}
		}
	}
}

// TestMigrateSleepingController: a pod that serves, and that its DaemonSet is about to remove, is not relied on.
func TestMigrateSleepingController(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a")
	f.nodes["a"].Labels["nftproxy.io/trial"] = "true"
	f.settle()
	f.asleep = true
	delete(f.nodes["a"].Labels, "nftproxy.io/trial")
	f.onWrite = func(int) { f.asleep = f.asleep && f.nodes["a"].Labels["nftproxy.io/kube-proxy"] == "" }
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Patience: 2 * time.Second}); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	f.check(t, "asleep")
}

// TestMigrateUnfit: nftproxy's DaemonSet stops being for the nodes in the middle. The migration stops and says so.
func TestMigrateUnfit(t *testing.T) {
	t.Parallel()
	for at := 1; at < 12; at += 2 {
		f := newFakeProxies(true, "a", "b")
		f.onWrite = func(n int) {
			if n == at {
				f.sets[migration.Nftproxy].Spec.Template.Spec.NodeSelector["own"] = "selector"
				f.sets[migration.Nftproxy].ResourceVersion = f.version()
			}
		}
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Patience: 300 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), "nftproxy's DaemonSet is not for the node any more") {
			t.Errorf("at write %d: %v\n%s", at, err, out)
		}
	}
}

// TestMigrateOldRules: rules of an earlier kube-proxy are not taken for those of the new one, which has none yet, where
// nftproxy does not serve.
func TestMigrateOldRules(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b")
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
		t.Fatal(err, out)
	}
	n := f.nodes["a"]
	n.rules[migration.KubeProxy] = fakeRules{there: true}
	n.ill = migration.Nftproxy
	delete(f.pods, "nftproxy-a")
	f.settle()
	n.ill = "" // The pod does not become ready any more.
	out, err := f.migrate(t, 0, migration.Options{To: migration.KubeProxy})
	if err != nil || !strings.Contains(out, "a: start kube-proxy: what an earlier kube-proxy left is removed") {
		t.Errorf("%v\n%s", err, out)
	}
	f.check(t, "old rules")
}

// TestMigrateHandOverFails: the other nodes of the batch are cleaned before the migration stops.
func TestMigrateHandOverFails(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b", "c")
	f.kept = "b"
	out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Patience: 2 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "b: hand over: kube-proxy's pod kube-proxy-b is still there") ||
		f.nodes["c"].rules[migration.KubeProxy].there || !f.nodes["c"].rules[migration.Nftproxy].fresh {
		t.Errorf("%v\n%s%s", err, out, f.state())
	}
	f.check(t, "hand over")
}

// TestMigrateStops: at a node that is not right the migration stops with a reason, all nodes are served, and once the
// node is right, the next run goes on.
func TestMigrateStops(t *testing.T) {
	t.Parallel()
	notReady := func(f *fakeProxies) {
		f.nodes["b"].Status.Conditions[0].Status = "Unknown"
		f.nodes["b"].Status.Conditions[0].Message = "no word of the kubelet"
	}
	for name, c := range map[string]struct {
		harm, mend func(*fakeProxies)
		want       string
		// changed says that nodes may have been changed before.
		changed bool
	}{
		"red": {harm: func(f *fakeProxies) { f.nodes["b"].red = true },
			mend: func(f *fakeProxies) { f.nodes["b"].red = false },
			want: "b: check: red: kernel: it is too old -> update it"},
		"marks": {harm: func(f *fakeProxies) { f.nodes["b"].marks = true },
			mend: func(f *fakeProxies) { f.nodes["b"].marks = false },
			want: "b: check: yellow: marks: ip nat AWS: it marks (--accept-marks goes on"},
		"red, and nftproxy everywhere": {harm: func(f *fakeProxies) {
			delete(f.sets[migration.Nftproxy].Spec.Template.Spec.NodeSelector, "nftproxy.io/trial")
			f.nodes["b"].red = true
			f.settle()
		}, mend: func(f *fakeProxies) { f.nodes["b"].red = false }, want: "b: check: red: kernel: it is too old"},
		"no logs": {harm: func(f *fakeProxies) { f.noLogs = true }, mend: func(f *fakeProxies) { f.noLogs = false },
			want: ": no answer within 2s"},
		"not ready": {harm: notReady, mend: func(f *fakeProxies) { f.nodes["b"].Status.Conditions[0].Status = "True" },
			changed: true,
			want:    "b: check: the node is not Ready: no word of the kubelet"},
		"lacking": {harm: func(f *fakeProxies) { f.nodes["b"].lacking = true },
			mend: func(f *fakeProxies) { f.nodes["b"].lacking = false }, changed: true,
			want: "b: verify: nftproxy lacks 1 of the 3 frontends of kube-proxy"},
		"ill": {harm: func(f *fakeProxies) { f.nodes["b"].ill = migration.Nftproxy },
			mend:    func(f *fakeProxies) { f.nodes["b"].ill = "" },
			changed: true, want: "b: serve: the pod nftproxy-b is not ready: Pending"},
	} {
		f := newFakeProxies(true, "a", "b", "c")
		c.harm(f)
		before := f.state()
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Patience: 2 * time.Second})
		stopped := (*migration.StoppedError)(nil)
		if !errors.As(err, &stopped) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q\n%s", name, err, c.want, out)
		}
		if now := f.state(); !c.changed && now != before {
			t.Errorf("%s: changed (-before +after):\n%s", name, cmp.Diff(before, now))
		} else if strings.Contains(now, "nftproxy-migrate") {
			t.Errorf("%s: a pod is left:\n%s", name, now)
		} else if f.nodes["b"].Labels["nftproxy.io/kube-proxy"] != "" {
			t.Errorf("%s: kube-proxy was ended on the node", name)
		}
		c.mend(f)
		f.pods = withoutStuck(f.pods)
		if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
			t.Errorf("%s, mended: %v\n%s", name, err, out)
		}
		f.check(t, name)
	}
}

// TestMigrateAcceptsMarks: with --accept-marks, marks of another program are shown and do not stop the migration.
func TestMigrateAcceptsMarks(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a")
	f.nodes["a"].marks = true
	out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, AcceptMarks: true})
	if err != nil || !strings.Contains(out, "a: check: nothing is red; yellow: marks: ip nat AWS: it marks") {
		t.Errorf("%v\n%s", err, out)
	}
}

// withoutStuck leaves pods of the proxies that did not become ready out, as if somebody had deleted them.
func withoutStuck(pods map[string]*corev1.Pod) map[string]*corev1.Pod {
	kept := map[string]*corev1.Pod{}
	for name, p := range pods {
		if len(p.Status.Conditions) > 0 || strings.HasPrefix(name, "nftproxy-migrate") {
			kept[name] = p
		}
	}
	return kept
}

// TestMigrateIll: nodes that are not Ready, migrated or not, do not hold up the others. The migration stops at them
// last.
func TestMigrateIll(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b", "c", "d")
	first, err := labels.Parse("kubernetes.io/hostname=b")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Nodes: first}); err != nil {
		t.Fatal(err, out)
	}
	f.pods["nftproxy-b"].Status.Conditions = nil
	for _, name := range []string{"b", "c"} {
		f.nodes[name].Status.Conditions[0].Status = "Unknown"
	}
	for range 2 {
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
		if stopped := (*migration.StoppedError)(nil); !errors.As(err, &stopped) || stopped.Node != "b, c" {
			t.Errorf("%v\n%s", err, out)
		}
		for name, want := range map[string]bool{"a": true, "c": false, "d": true} {
			if f.nodes[name].rules[migration.Nftproxy].fresh != want {
				t.Errorf("%s: nftproxy serves: %t\n%s", name, !want, out)
			}
		}
	}
	f.check(t, "ill")
}

// TestMigrateLeftPod: a pod that an earlier run left is waited for on its node only, where it may change rules.
func TestMigrateLeftPod(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b")
	f.stuck = "nftproxy-migrate-x"
	f.pods["nftproxy-migrate-x"] = &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Name: "nftproxy-migrate-x", Namespace: "kube-system",
			Labels: map[string]string{"app.kubernetes.io/name": "nftproxy-migrate"}},
		Spec: corev1.PodSpec{NodeName: "b"}}
	const hint = "if the node is down for good, kubectl --namespace kube-system delete pod nftproxy-migrate-x --force"
	for _, said := range []bool{false, true} {
		out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Patience: time.Second})
		if stopped := (*migration.StoppedError)(nil); !errors.As(err, &stopped) || stopped.Node != "b" ||
			!strings.Contains(err.Error(), hint) || strings.Contains(out, hint) != said ||
			f.nodes["a"].rules[migration.KubeProxy].there || f.nodes["b"].Labels["nftproxy.io/trial"] != "" {
			t.Errorf("%v\n%s", err, out)
		}
	}
	f.stuck = ""
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	f.check(t, "left pod")
}

// TestMigrateRulesStay: rules that have to stay do not stop the migration, which says so at the end, until they are
// gone.
func TestMigrateRulesStay(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(false, "a", "b")
	f.nodes["a"].stays = true
	out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
	const want = "a: clean up: some of kube-proxy's rules stay: nftproxy: rules of a firewall stay"
	if !strings.Contains(out, want) || !strings.Contains(out, "new nodes: finish: ") {
		t.Errorf("%v\n%s", err, out)
	}
	for range 2 {
		if stopped := (*migration.StoppedError)(nil); !errors.As(err, &stopped) || stopped.Node != "a" ||
			!strings.Contains(err.Error(), "a: clean up: some of kube-proxy's rules stay: do what") {
			t.Errorf("%v\n%s", err, out)
		}
		out, err = f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
	}
	f.old = true
	out, err = f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
	if err == nil || !strings.Contains(err.Error(), "is older than this program, and has no status 3") {
		t.Errorf("old: %v\n%s", err, out)
	}
	f.nodes["a"].stays = false
	out, err = f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
	if err != nil || f.nodes["a"].rules[migration.KubeProxy].there {
		t.Errorf("gone: %v\n%s", err, out)
	}
	f.check(t, "stay")
}

// TestMigrateMeanwhile: the cluster changes while the migration runs.
func TestMigrateMeanwhile(t *testing.T) {
	t.Parallel()
	for _, to := range []string{migration.Nftproxy, migration.KubeProxy} {
		for at := 1; at < 40; at += 3 {
			for name, change := range map[string]func(f *fakeProxies){
				"a node joins": func(f *fakeProxies) { f.addNode("new") },
				"a node joins, and has both proxies": func(f *fakeProxies) {
					f.addNode("new")
					f.settle()
				},
				"a node goes": func(f *fakeProxies) { delete(f.nodes, "b") },
				"a node is made anew": func(f *fakeProxies) {
					f.addNode("b")
					delete(f.pods, "nftproxy-b")
					delete(f.pods, "kube-proxy-b")
				},
			} {
				name := fmt.Sprintf("to %s: %s at write %d", to, name, at)
				f := newFakeProxies(false, "a", "b", "c")
				if to == migration.KubeProxy {
					if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
						t.Fatal(name, err, out)
					}
				}
				first := f.writes
				f.onWrite = func(n int) {
					if n == first+at {
						change(f)
					}
				}
				if out, err := f.migrate(t, 0, migration.Options{To: to}); err != nil {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
				f.check(t, name)
				text := f.state()
				if want := len(f.nodes); strings.Count(text, "{true true}") != want || strings.Contains(text, "stopped") ||
					strings.Contains(text, "{true false}") || strings.Contains(text, "nftproxy-migrate") ||
					strings.Count(text, "map[kube-proxy:{true true}") == want != (to == migration.KubeProxy) {
					t.Errorf("%s:\n%s", name, text)
				}
			}
		}
	}
}

// TestMigrateReapplied: somebody applies kube-proxy's DaemonSet again in the middle, as kubeadm upgrade does. The
// migration goes on or stops, every node is served, and the next run ends it.
func TestMigrateReapplied(t *testing.T) {
	t.Parallel()
	for at := 1; at < 50; at += 2 {
		name := fmt.Sprintf("applied again at write %d", at)
		f := newFakeProxies(true, "a", "b", "c")
		plain := f.sets[migration.KubeProxy].Spec.DeepCopy()
		f.onWrite = func(n int) {
			if n == at {
				f.sets[migration.KubeProxy].Spec = *plain
				f.sets[migration.KubeProxy].ResourceVersion = f.version()
			}
		}
		for try := 1; ; try++ {
			out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Patience: 2 * time.Second})
			if err == nil {
				break
			}
			if stopped := (*migration.StoppedError)(nil); !errors.As(err, &stopped) || try > 1 {
				t.Fatalf("%s, try %d: %v\n%s", name, try, err, out)
			}
		}
		f.check(t, name)
		if n := strings.Count(f.state(), "map[kube-proxy:{false false} nftproxy:{true true}]"); n != 3 {
			t.Errorf("%s:\n%s", name, f.state())
		}
	}
}

// TestMigrateChosen: --nodes migrates these and leaves the others, and what new nodes get, as they are.
func TestMigrateChosen(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b")
	chosen, err := labels.Parse("kubernetes.io/hostname=b")
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{migration.Nftproxy, migration.KubeProxy} {
		before := f.state()
		out, err := f.migrate(t, 0, migration.Options{To: to, Nodes: chosen})
		if err != nil || strings.Contains("\n"+out, "\na: ") {
			t.Errorf("to %s: %v\n%s", to, err, out)
		}
		if !f.nodes["a"].rules[migration.KubeProxy].fresh || f.state() == before ||
			f.nodes["b"].rules[migration.Nftproxy].fresh != (to == migration.Nftproxy) {
			t.Errorf("to %s:\n%s", to, f.state())
		}
	}
	f.check(t, "chosen")
}

// TestMigrateOwnLabels: nodes are not chosen by labels that the migration changes, and if the chosen nodes lose their
// label meanwhile, the migration ends well.
func TestMigrateOwnLabels(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b")
	for _, text := range []string{"nftproxy.io/trial=true", "!nftproxy.io/kube-proxy",
		"own,nftproxy.io/trial notin (true)"} {
		chosen, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.migrate(t, 0, migration.Options{To: migration.KubeProxy, Nodes: chosen})
		if obstacle := (*migration.ObstacleError)(nil); !errors.As(err, &obstacle) || f.writes > 0 ||
			!strings.Contains(err.Error(), "choose the nodes by another one") {
			t.Errorf("%s: %v", text, err)
		}
	}
	chosen, err := labels.Parse("own")
	if err != nil {
		t.Fatal(err)
	}
	f.nodes["a"].Labels["own"] = ""
	f.onWrite = func(int) {
		if f.nodes["a"].Labels["nftproxy.io/kube-proxy"] != "" {
			delete(f.nodes["a"].Labels, "own")
		}
	}
	out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy, Nodes: chosen})
	if err != nil || !f.nodes["a"].rules[migration.Nftproxy].fresh || f.nodes["a"].rules[migration.KubeProxy].there {
		t.Errorf("%v\n%s", err, out)
	}
	f.check(t, "own labels")
}

// TestMigrateOtherPods: pods that only have the labels of kube-proxy's, and a kube-proxy of nodes that nftproxy is not
// for, do not matter.
func TestMigrateOtherPods(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "windows")
	f.nodes["windows"].Labels["kubernetes.io/os"] = "windows"
	delete(f.sets[migration.KubeProxy].Spec.Template.Spec.NodeSelector, "kubernetes.io/os")
	f.settle()
	for name, node := range map[string]string{"debug": "a", "kube-proxy-windows": "windows"} {
		p := f.pods["kube-proxy-a"].DeepCopy()
		p.Name, p.OwnerReferences, p.Spec.NodeName = name, nil, node
		if name == "debug" {
			p.Spec.Containers[0].Name = name
		}
		f.pods[name] = p
	}
	if out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy}); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	f.check(t, "other pods")
}

// TestMigrateObstacles: what cannot be done is said before anything is changed.
func TestMigrateObstacles(t *testing.T) {
	t.Parallel()
	for want, harm := range map[string]func(f *fakeProxies){
		"you have no right to patch nodes (":        func(f *fakeProxies) { f.denied = []string{"patch nodes"} },
		"install nftproxy for labelled nodes first": func(f *fakeProxies) { delete(f.sets, migration.Nftproxy) },
		"may be part of another program, as in k3s": func(f *fakeProxies) { delete(f.sets, migration.KubeProxy) },
		"is a kube-proxy of DaemonSet other, not of the DaemonSet kube-proxy": func(f *fakeProxies) {
			p := f.pods["kube-proxy-a"].DeepCopy()
			p.Name, p.Labels, p.OwnerReferences[0].UID, p.OwnerReferences[0].Name = "second", nil, "other", "other"
			f.pods[p.Name] = p
		},
		"deploy/cleanup/kube-proxy removes the rules that it left": func(f *fakeProxies) {
			delete(f.sets, migration.KubeProxy)
			delete(f.pods, "kube-proxy-a")
		},
		"static pod of the nodes (kube-proxy-a)": func(f *fakeProxies) {
			delete(f.sets, migration.KubeProxy)
			f.pods["kube-proxy-a"].Annotations[corev1.MirrorPodAnnotationKey] = "hash"
		},
		"has --nftproxy-service-proxy-name and serves labelled Services only": func(f *fakeProxies) {
			c := &f.sets[migration.Nftproxy].Spec.Template.Spec.Containers[0]
			c.Args = append(c.Args, "--nftproxy-service-proxy-name=nftproxy")
		},
		"the addon manager keeps the DaemonSet kube-proxy as it is": func(f *fakeProxies) {
			f.sets[migration.KubeProxy].Labels["addonmanager.kubernetes.io/mode"] = "Reconcile"
		},
		"no node to migrate": func(f *fakeProxies) {
			f.sets[migration.Nftproxy].Spec.Template.Spec.NodeSelector["own"] = "selector"
		},
	} {
		f := newFakeProxies(true, "a")
		harm(f)
		_, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
		if obstacle := (*migration.ObstacleError)(nil); !errors.As(err, &obstacle) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if f.writes > 0 {
			t.Errorf("%s: %d changes", want, f.writes)
		}
		_, err = f.migrate(t, 0, migration.Options{To: migration.KubeProxy})
		if f.sets[migration.KubeProxy] == nil &&
			(err == nil || !strings.Contains(err.Error(), "kubeadm init phase addon kube-proxy")) {
			t.Errorf("%s, back: %v", want, err)
		}
	}
}

// TestMigrateSpares: nodes that nftproxy's DaemonSet is not for keep kube-proxy, and so do new ones.
func TestMigrateSpares(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(false, "a", "b")
	f.nodes["b"].Labels["kubernetes.io/os"] = "windows"
	delete(f.sets[migration.KubeProxy].Spec.Template.Spec.NodeSelector, "kubernetes.io/os")
	f.settle()
	out, err := f.migrate(t, 0, migration.Options{To: migration.Nftproxy})
	if err != nil || !strings.Contains(out, "b: has kube-proxy: keeps it") ||
		!f.nodes["b"].rules[migration.KubeProxy].fresh || f.nodes["a"].rules[migration.KubeProxy].there {
		t.Errorf("%v\n%s%s", err, out, f.state())
	}
	f.check(t, "spares")
}

// TestMigrateDryRun: --dry-run says what each node has and what would be done, and changes nothing.
func TestMigrateDryRun(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(true, "a", "b")
	f.nodes["b"].Labels["nftproxy.io/trial"] = "true"
	f.settle()
	before := f.state()
	server := httptest.NewServer(f.server(0, nil))
	defer server.Close()
	run := func(args ...string) (string, string, int) {
		return runPlugin(t.Context(), append([]string{"migrate", "--server", server.URL}, args...)...)
	}
	out, errs, code := run("--to", "nftproxy", "--dry-run")
	want := "DaemonSet kube-system/kube-proxy: changes: it is for nodes without the label nftproxy.io/kube-proxy=" +
		"stopped only, by its affinity; its controller restarts the pods of all its nodes, a few at a time\n" +
		"a: has kube-proxy: check, serve, verify, probe, hand over, clean up\n" +
		"b: has nftproxy and kube-proxy: check, verify, probe, hand over, clean up\n"
	if out != want || code != 0 {
		t.Errorf("%d %s\n%s", code, errs, cmp.Diff(want, out))
	}
	out, errs, code = run("--to", "kube-proxy", "--dry-run")
	want = "a: has kube-proxy: await its rules, probe, clean up\n" +
		"b: has nftproxy and kube-proxy: await its rules, probe, hand over, clean up\n"
	if out != want || code != 0 {
		t.Errorf("%d %s\n%s", code, errs, cmp.Diff(want, out))
	}
	f.nodes["b"].deaf = true
	f.sets[migration.KubeProxy].Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "app:apps/DaemonSet:x"}
	f.sets[migration.Nftproxy].Labels["helm.toolkit.fluxcd.io/name"] = "release"
	out, errs, code = run("--to", "nftproxy", "--dry-run", "--probe=false")
	for _, want := range []string{
		"DaemonSet kube-system/kube-proxy: may be undone: Argo CD (application app) applies it",
		"DaemonSet kube-system/nftproxy: may be undone: Flux (flux suspend helmrelease release) applies it",
		"b: has nftproxy and kube-proxy (its rules are not known: nftproxy: it failed): check, verify, hand over, clean up\n",
	} {
		if !strings.Contains(out, want) || code != 0 {
			t.Errorf("%d %s\n%s\nlacks %s", code, errs, out, want)
		}
	}
	if f.writes > 0 || f.state() != before {
		t.Errorf("%d changes", f.writes)
	}
	for _, args := range [][]string{{}, {"--to", "other"}, {"--to", "nftproxy", "--at-once", "0"},
		{"--to", "nftproxy", "--nodes", "=="}} {
		if _, errs, code := run(args...); code != 2 || f.writes > 0 {
			t.Errorf("%v: exit status %d: %s", args, code, errs)
		}
	}
}

// TestMigratePlansChanges: --dry-run says what changes of the DaemonSets, in both directions.
func TestMigratePlansChanges(t *testing.T) {
	t.Parallel()
	f := newFakeProxies(false, "a")
	const gate = "kube-proxy: changes: it is for nodes without the label nftproxy.io/kube-proxy=stopped only"
	for _, c := range []struct {
		to   string
		want []string
	}{
		{migration.Nftproxy, []string{gate,
			"kube-proxy: changes: at the end it is for no node, by the node selector non-existing=true"}},
		{migration.KubeProxy, []string{gate,
			"nftproxy: changes: it is for nodes with the label nftproxy.io/trial only, by its node selector; " +
				"no pod is restarted",
			"kube-proxy: changes: at the end it is as before the migration"}},
	} {
		server := httptest.NewServer(f.server(0, nil))
		out, errs, code := runPlugin(t.Context(), "migrate", "--server", server.URL, "--to", c.to, "--dry-run")
		server.Close()
		for _, want := range c.want {
			if code != 0 || !strings.Contains(out, "DaemonSet kube-system/"+want) ||
				strings.Count(out, "changes: ") != len(c.want) {
				t.Errorf("to %s: %d %s\n%s\nlacks %s", c.to, code, errs, out, want)
			}
		}
		if out, err := f.migrate(t, 0, migration.Options{To: c.to}); err != nil {
			t.Fatal(err, out)
		}
	}
}
