package e2e

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/test/lib/controlplane"
)

// TestSkew runs the proxy with older API servers: a list, changes by a watch, a restart of the proxy, an outage of the
// API server with changes right after it, and one of which the proxy knows nothing until its start. Services are
// served, and the log has no error and no warning twice. The accounts are those of kube-proxy and of our manifests.
func TestSkew(t *testing.T) {
	controlplane.Require(t)
	releases := controlplane.Skew()
	if len(releases) == 0 {
		t.Skip("run by make test-skew: NFTPROXY_SKEW is not set")
	}
	for _, release := range releases {
		t.Run(release, func(t *testing.T) { testSkew(t, release) })
	}
}

func testSkew(t *testing.T, release string) {
	plane := startForTest(t, planeConfig().Release(release))
	t.Cleanup(plane.stop)
	version, is, err := plane.IsRelease(release)
	if t.Logf("the API server is %s", version); err != nil || !is {
		t.Fatalf("the API server is %s, want %s; error %v", version, release, err)
	}
	n := newNodeOf(t, plane, "skew")
	client := n.addClient()
	// First the account that kubeadm's kube-proxy has, whose rights are those of the API server's release.
	builtIn, err := plane.cluster.UserKubeconfig("kube-proxy", "system:kube-proxy")
	n.must(err)
	n.applyDeploy()
	ours, err := plane.cluster.ServiceAccountKubeconfig(n.ctx, "kube-system", deployed)
	n.must(err)

	web := n.create(service("web", ""))
	headless := service("headless", "")
	headless.Spec.ClusterIP = "None"
	n.create(headless)
	publish := func(pod string) {
		for _, a := range n.addServer(pod).Addrs {
			n.publish(slice(sliceName(pod, a), web, a))
		}
	}
	reached := func(want ...string) func() error {
		return func() error {
			return everywhere(func(protocol string, family ip.Family) error {
				return n.reaches(client, protocol, address(web, protocol, family), want...)
			})
		}
	}
	publish("web-1")
	p := n.startProxy("--kubeconfig=" + builtIn)
	p.until("the list", reached("web-1"))
	publish("web-2")
	p.until("a change", reached("web-1", "web-2"))
	n.must(n.plane.client.CoreV1().Services(n.namespace).Delete(n.ctx, "headless", metav1.DeleteOptions{}))
	p.stop()
	n.quiet(p)

	n.must(reached("web-1", "web-2")())
	p = n.startProxy("--kubeconfig=" + ours)
	publish("web-3")
	p.until("a change after the restart", reached("web-1", "web-2", "web-3"))

	at := p.Mark()
	n.plane.cluster.StopAPIServer()
	n.startAPIServerAtEnd()
	p.awaitText(at, "a request to the API server failed", "trying again")
	n.must(reached("web-1", "web-2", "web-3")())
	n.must(n.plane.cluster.StartAPIServer(n.ctx))
	publish("web-4")
	p.until("a change after the outage", reached("web-1", "web-2", "web-3", "web-4"))
	p.awaitText(at, "the API server answers again; all objects are up to date")
	p.stop()
	n.quiet(p)
}

// quiet checks that the log has no error, and no warning twice. An outage is one warning for each list.
func (n *node) quiet(p *process) {
	n.t.Helper()
	warned := map[string]bool{}
	lines, _ := p.Logged(0)
	for _, l := range lines {
		if l.Level == "ERROR" {
			n.t.Errorf("the log has an error: %s", l.Text)
		}
		if text := l.Msg + l.Err; l.Level == "WARN" {
			if warned[text] {
				n.t.Errorf("the log has a warning again: %s", l.Text)
			}
			warned[text] = true
		}
	}
}
