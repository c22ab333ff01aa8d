package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"nftproxy/model/ip"
)

// TestHealth asks the health and metrics servers before the API server is there
// and afterwards.
func TestHealth(t *testing.T) {
	n := newNodeOf(t, ownControlPlane(t), "health")
	web := n.create(service("web", "web"))
	n.runPod("web-1", "web")
	n.plane.cluster.StopAPIServer()
	n.startAPIServerAtEnd()
	health, metrics := netip.AddrPortFrom(n.NodeAddrs.V4(), 10256), netip.MustParseAddrPort("127.0.0.1:10249")
	p := n.run(n.proxyCommand("--healthz-bind-address=0.0.0.0:10256", "--metrics-bind-address=127.0.0.1:10249"))
	p.awaitText(0, "trying again")
	n.soon("the metrics server answers", func() error { return n.answers(metrics, "/healthz", http.StatusOK, "ok") })
	n.soon("the health server answers", func() error { return n.answers(health, "/livez", http.StatusOK, "") })
	n.must(
		n.answers(health, "/readyz", http.StatusServiceUnavailable, "not in the kernel yet"),
		n.answers(health, "/livez", http.StatusOK, ""),
		n.answers(health, "/healthz", http.StatusServiceUnavailable, `"nodeEligible":false,"healthy":true`), // no Node seen
		n.answers(metrics, "/proxyMode", http.StatusOK, "nftables"),
	)

	n.must(n.plane.cluster.StartAPIServer(n.ctx))
	p.awaitSync(0)
	n.soon("ready", func() error { return n.answers(health, "/readyz", http.StatusOK, "ok") })
	p.until("the pod serves", func() error {
		return everywhere(func(protocol string, family ip.Family) error {
			return n.reaches(n.Node, protocol, address(web, protocol, family), "web-1")
		})
	})
	n.must(
		n.answers(health, "/livez", http.StatusOK, ""),
		n.answers(health, "/healthz", http.StatusOK, `"nodeEligible":true,"healthy":true`),
		n.answers(metrics, "/metrics", http.StatusOK, "\nnftproxy_services 2\n"), // with default/kubernetes
		n.answers(metrics, "/metrics", http.StatusOK, "\nnftproxy_quarantined_parts 0\n"),
		n.answers(metrics, "/metrics/slis", http.StatusOK, "kubernetes_healthcheck{name=\"proxy\",type=\"readyz\"} 1\n"),
		n.answers(metrics, "/configz", http.StatusOK, "\"clusterCIDR\":\""+n.clusterCIDR()+"\""),
		n.answers(metrics, "/flagz", http.StatusOK, "\nhostname-override="+n.name+"\n"),
		n.answers(metrics, "/statusz", http.StatusOK, "Binary version: "),
		n.answers(metrics, "/debug/pprof/", http.StatusNotFound, ""),
		n.answers(metrics, "/metrics", http.StatusOK, `kubeproxy_proxy_livez_total{code="200"}`),
		n.answers(metrics, "/metrics", http.StatusOK, `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"}`),
	)
	n.testEligible(health)
	p.stop()
}

// testEligible: load balancers choose other nodes while the cluster autoscaler is about
// to remove the node, and once its Node is being deleted. Neither is a reason to restart
// the proxy (KEP-3836).
func (n *node) testEligible(health netip.AddrPort) {
	n.t.Helper()
	nodes := n.plane.client.CoreV1().Nodes()
	edit := func(edit func(*corev1.Node)) {
		n.t.Helper()
		n.must(retry.RetryOnConflict(retry.DefaultRetry, func() error { // controllers write it, too
			object, err := nodes.Get(n.ctx, n.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			edit(object)
			_, err = nodes.Update(n.ctx, object, metav1.UpdateOptions{})
			return err
		}))
	}
	expect := func(what string, code int, has string) {
		n.t.Helper()
		n.soon(what, func() error { return n.answers(health, "/healthz", code, has) })
		n.must(n.answers(health, "/livez", http.StatusOK, `"healthy":true`), n.answers(health, "/readyz", http.StatusOK,
			"ok"))
	}
	const leaving = `"nodeEligible":false,"healthy":true`
	edit(func(o *corev1.Node) {
		o.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	})
	expect("the machine is about to go", http.StatusServiceUnavailable, leaving)
	edit(func(o *corev1.Node) {
		o.Spec.Taints = []corev1.Taint{{Key: "other", Effect: corev1.TaintEffectNoSchedule}}
		o.Finalizers = []string{"nftproxy.test/stay"}
	})
	expect("it is not", http.StatusOK, `"nodeEligible":true`)
	n.must(nodes.Delete(n.ctx, n.name, metav1.DeleteOptions{}))
	expect("the Node is being deleted", http.StatusServiceUnavailable, leaving)
	edit(func(o *corev1.Node) { o.Finalizers = nil })
	n.must(n.answers(health, "/healthz", http.StatusServiceUnavailable, leaving)) // what is gone does not come back
	n.register()
	expect("there is a new one", http.StatusOK, `"nodeEligible":true`)
}

// answers returns an error unless a page is as wanted.
func (n *node) answers(at netip.AddrPort, path string, code int, has string) error {
	answer, err := n.request(http.MethodGet, at, path)
	if err != nil {
		return err
	}
	if answer.code != code || !strings.Contains(answer.body, has) {
		return fmt.Errorf("%s: %d with %q, want %d with %q", path, answer.code, answer.body, code, has)
	}
	return nil
}

// answer is that of an HTTP server.
type answer struct {
	code   int
	header http.Header
	body   string
}

// request asks a server from the node. The headers are names and values in turn.
func (n *node) request(method string, at netip.AddrPort, path string, header ...string) (answer, error) {
	client := http.Client{Transport: &http.Transport{DialContext: n.Node.Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(n.ctx, method, fmt.Sprintf("http://%v%s", at, path), nil)
	if err != nil {
		return answer{}, err
	}
	for pair := range slices.Chunk(header, 2) {
		request.Header.Set(pair[0], pair[1])
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

// probe asks what the kubelet would, of a container of the host's network.
func (n *node) probe(p *corev1.Probe) error {
	host, err := netip.ParseAddr(p.HTTPGet.Host)
	if err != nil {
		return err
	}
	return n.answers(netip.AddrPortFrom(host, uint16(p.HTTPGet.Port.IntValue())), p.HTTPGet.Path, http.StatusOK, "")
}
