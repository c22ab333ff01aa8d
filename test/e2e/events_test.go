package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"nftproxy/watch"
)

// TestEvents: the proxy writes one event about each fault of an object or of the node, with
// the rights of the deployed service account.
func TestEvents(t *testing.T) {
	n := newNode(t)
	n.applyDeploy()
	kubeconfig, err := n.plane.cluster.ServiceAccountKubeconfig(n.ctx, "kube-system", deployed)
	n.must(err)
	const sysctl = "net.netfilter.nf_conntrack_max"
	limit, err := n.Node.ReadSysctl(sysctl)
	n.must(err)
	current, err := strconv.Atoi(limit)
	n.must(err)
	wanted := fmt.Sprint(current + 1) // The limit is the host's, which is not the node's.
	flags := []string{"--kubeconfig=" + kubeconfig, "--conntrack-max-per-core=1", "--conntrack-min=" + wanted}

	older, younger := simple("older"), simple("younger")
	older.Spec.ExternalIPs, younger.Spec.ExternalIPs = []string{"203.0.113.21"}, []string{"203.0.113.21"}
	older, younger = n.create(older), n.create(younger)
	backend := n.addServer("backend")
	bad := simple("bad")
	bad.Spec.ExternalIPs = []string{"203.0.113.300"}
	bad = n.seed(bad, "10.111.1.1", backend.Addrs.V4())
	typo := simple("typo")
	typo.Annotations = map[string]string{"nftproxy.io/external-failure": "pass"}
	typo = n.create(typo)
	p := n.startProxy(flags...)

	reference := func(s *corev1.Service, field string) corev1.ObjectReference {
		return corev1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: s.Namespace, Name: s.Name, UID: s.UID,
			FieldPath: field}
	}
	for _, want := range []struct {
		about  corev1.ObjectReference
		reason watch.Reason
		says   []string
	}{
		{corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.name, UID: types.UID(n.name)}, watch.ReasonSysctl,
			[]string{sysctl + "=" + wanted, "is " + limit, "can be set in the host's own network namespace only"}},
		{reference(younger, ""), watch.ReasonConflict, []string{"203.0.113.21:80/tcp belongs to Service " + n.namespace +
			"/" + older.Name}},
		{reference(bad, "spec.externalIPs[0]"), watch.ReasonInvalid,
			[]string{`spec.externalIPs[0]: "203.0.113.300": not an IP address`}},
		{reference(typo, "metadata.annotations[nftproxy.io/external-failure]"), watch.ReasonInvalid,
			[]string{`"pass": unknown key; there are nftproxy.io/`, "nftproxy.io/external-failover"}},
	} {
		e := n.awaitEvent(want.about.Kind, want.about.Name, want.reason)
		if diff := cmp.Diff(want.about, e.InvolvedObject); diff != "" {
			t.Errorf("what the event is about (-want +got):\n%s", diff)
		}
		if e.Reason != string(want.reason) || e.Type != corev1.EventTypeWarning || e.Source.Component != "nftproxy" ||
			e.Source.Host != n.name {
			t.Errorf("%s: want a warning of nftproxy on %s, %s", eventText(e), n.name, want.reason)
		}
		for _, words := range want.says {
			if !strings.Contains(e.Message, words) {
				t.Errorf("%s: want %q", eventText(e), words)
			}
		}
	}
	start := n.awaitEvent("Node", n.name, watch.ReasonStarting)
	if start.Type != corev1.EventTypeNormal || start.Message != "" || start.Source.Component != "nftproxy" {
		t.Errorf("%s, of type %s: want a normal event without words", eventText(start), start.Type)
	}
	if l := p.awaitText(0, sysctl, "going on"); l.Level != "WARN" {
		t.Errorf("the log has %s", l.Text)
	}
	p.stop()

	// A restart finds the same problems again. An event of a new problem comes after
	// them, so all others have been written by then.
	p = n.startProxy(flags...)
	third := simple("third")
	third.Spec.ExternalIPs = []string{"203.0.113.21"}
	n.create(third)
	n.awaitEvent("Service", "third", watch.ReasonConflict)
	events, err := n.plane.client.CoreV1().Events(n.namespace).List(n.ctx, metav1.ListOptions{})
	n.must(err)
	count := map[string]int{}
	for _, e := range events.Items {
		if e.Source.Component == "nftproxy" {
			count[e.InvolvedObject.Name]++
		}
	}
	if diff := cmp.Diff(map[string]int{"younger": 1, "bad": 1, "typo": 1, "third": 1}, count); diff != "" {
		t.Errorf("events after a restart (-want +got):\n%s", diff)
	}
	p.stop()

	t.Run("ports in use", func(t *testing.T) {
		held, err := n.Node.Listen(n.ctx, "tcp", "127.0.0.1:10249")
		n.must(err)
		defer held.Close()
		p := n.startProxy(append(flags, "--metrics-bind-address=127.0.0.1:10249",
			"--healthz-bind-address=127.0.0.1:10249")...)
		const why = "listen tcp 127.0.0.1:10249: bind: address already in use"
		for reason, note := range map[watch.Reason]string{watch.ReasonNoMetricsServer: why,
			watch.ReasonNoHealthServer: "healthz server failed: " + why} {
			if e := n.awaitEvent("Node", n.name, reason); e.Message != note || e.Type != corev1.EventTypeWarning {
				t.Errorf("%s: want a warning %q", eventText(e), note)
			}
		}
		p.stop()
	})

	t.Run("without the right", func(t *testing.T) {
		t.Cleanup(n.applyDeploy)
		n.revoke("events", "create")
		p := n.startProxy(flags...)
		p.awaitText(0, "WARN", "cannot write events", "forbidden")
		mark := p.Mark()
		fourth := simple("fourth")
		fourth.Spec.ExternalIPs = []string{"203.0.113.21"}
		n.create(fourth)
		p.awaitText(mark, "/fourth", "belongs to Service") // the proxy runs on
		p.awaitSync(mark)
		p.stop()
	})
}

// awaitEvent waits for nftproxy's first event with the reason about an object of the test.
func (n *node) awaitEvent(kind, name string, reason watch.Reason) *corev1.Event {
	n.t.Helper()
	namespace := n.namespace
	if kind == "Node" {
		namespace = metav1.NamespaceDefault
	}
	about := fields.Set{"involvedObject.kind": kind, "involvedObject.name": name, "source": "nftproxy",
		"reason": string(reason)}.AsSelector()
	list := cache.NewListWatchFromClient(n.plane.client.CoreV1().RESTClient(), "events", namespace, about)
	last, err := watchtools.UntilWithSync(n.ctx, list, &corev1.Event{}, nil,
		func(e apiwatch.Event) (bool, error) { return e.Type == apiwatch.Added, nil })
	if err != nil {
		n.t.Fatalf("no event %s about %s %s: %v", reason, kind, name, err)
	}
	return last.Object.(*corev1.Event)
}

func eventText(e *corev1.Event) string {
	return fmt.Sprintf("event %s about %s from %s on %s: %s", e.Reason, e.InvolvedObject.Name, e.Source.Component,
		e.Source.Host, e.Message)
}
