package e2e

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/model/ip"
	"nftproxy/test/check"
	"nftproxy/test/lib/controlplane"
	"nftproxy/test/lib/netfilter"
)

func init() {
	flag.Bool("update", false, "write what kube-proxy serves into testdata of daemon/metrics")
}

// metricsAddress is that of the metrics server in these tests.
const metricsAddress = "127.0.0.1:10249"

// healthAddress is that of the health server.
const healthAddress = "127.0.0.1:10256"

// page returns the body of a page of the node that answers with 200.
func (n *node) page(address, path string, header ...string) (string, error) {
	answer, err := n.request(http.MethodGet, netip.MustParseAddrPort(address), path, header...)
	switch {
	case err != nil:
		return "", err
	case answer.code != http.StatusOK:
		return "", fmt.Errorf("%s: %d %s", path, answer.code, answer.body)
	}
	return answer.body, nil
}

// scrape returns the metrics of a page by name.
func (n *node) scrape(path string) (map[string]*dto.MetricFamily, error) {
	text, err := n.page(metricsAddress, path)
	if err != nil {
		return nil, err
	}
	return check.ParseMetrics(strings.NewReader(text))
}

// exercise has a proxy do its work until each of its metrics can have data: it probes its
// servers, and changes the endpoints of a Service, until there is data for the time of
// changes and for the other metrics, in both families.
func (n *node) exercise(others ...string) {
	n.t.Helper()
	n.soon("the servers answer", func() error {
		var errs []error
		for _, at := range [][2]string{{healthAddress, "/healthz"}, {healthAddress, "/livez"}, {metricsAddress, "/healthz"}} {
			_, err := n.page(at[0], at[1])
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	web := n.create(service("web", "web"))
	var pods []string
	measured := func() error {
		var errs []error
		for _, metric := range append(others, "kubeproxy_network_programming_duration_seconds") {
			for _, family := range []string{"IPv4", "IPv6"} {
				errs = append(errs, n.has(series{metric, map[string]string{"ip_family": family}}))
			}
		}
		return errors.Join(errs...)
	}
	// Pods become ready in a whole second. A change counts only if that is after the
	// proxy's start.
	for began := time.Now(); len(pods) == 0 || measured() != nil; {
		if time.Since(began) > patience {
			n.t.Fatalf("%d pods later: %v", len(pods), measured())
		}
		name := fmt.Sprint("web-", len(pods))
		n.runPod(name, "web")
		pods = append(pods, name)
		n.soon("the pod serves", func() error {
			return everywhere(func(protocol string, family ip.Family) error {
				return n.reaches(n.Node, protocol, address(web, protocol, family), pods...)
			})
		})
	}
}

// TestKubeProxyMetrics records what the real kube-proxy serves. The record is what
// package daemon/metrics compares with at any time.
func TestKubeProxyMetrics(t *testing.T) {
	if os.Getenv("NFTPROXY_CONFORMANCE") == "" {
		t.Skip("make conformance runs this")
	}
	n := newNode(t)
	netfilter.NFTForTest(t) // kube-proxy needs it
	binary, err := controlplane.Tool(n.ctx, "kube-proxy")
	n.must(err)
	n.run(exec.Command(binary, "--proxy-mode=nftables", "--hostname-override="+n.name, "--cluster-cidr="+n.clusterCIDR(),
		"--kubeconfig="+n.plane.cluster.AdminKubeconfig(), "--conntrack-max-per-core=0", "-v=2",
		"--healthz-bind-address="+healthAddress, "--metrics-bind-address="+metricsAddress, "--profiling"))
	// kube-proxy shows this one from its first partial sync on, and not each change makes one.
	n.exercise("kubeproxy_sync_partial_proxy_rules_duration_seconds")
	version, err := exec.Command(binary, "--version").Output()
	n.must(err)
	text := fmt.Sprintf("# What %skube-proxy serves in its mode nftables. Written by: NFTPROXY_CONFORMANCE=1 go test "+
		"./test/e2e -run TestKubeProxyMetrics -update\n",
		strings.Replace(string(version), "\n", "'s ", 1))
	for _, path := range []string{"/metrics", "/metrics/slis"} {
		families, err := n.scrape(path)
		n.must(err)
		text += "\n# " + path + "\n\n"
		for _, m := range check.DescribeMetrics(slices.Collect(maps.Values(families))) {
			text += m.String()
		}
	}
	const golden = "../../daemon/metrics/testdata/kube-proxy.txt"
	if flag.Lookup("update").Value.String() == "true" {
		n.must(os.WriteFile(golden, []byte(text), 0o644))
	}
	recorded, err := os.ReadFile(golden)
	n.must(err)
	if diff := cmp.Diff(string(recorded), text); diff != "" {
		t.Errorf("kube-proxy serves other metrics than %s says: run with -update (-recorded +served):\n%s", golden, diff)
	}
}

// series selects series of a metric by labels, each with a regular expression.
type series struct {
	metric string
	labels map[string]string
}

// has says why the page has no data for the series: a histogram or a summary needs an
// observation.
func (n *node) has(s series) error {
	families, err := n.scrape("/metrics")
	if err != nil {
		return err
	}
	if !s.in(families) {
		return fmt.Errorf("no data for %s%v", s.metric, s.labels)
	}
	return nil
}

func (s series) in(families map[string]*dto.MetricFamily) bool {
	f := families[s.metric]
	return f != nil && slices.ContainsFunc(f.GetMetric(), func(m *dto.Metric) bool {
		have := map[string]string{}
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		for name, pattern := range s.labels {
			if !regexp.MustCompile("^(?:" + pattern + ")$").MatchString(have[name]) {
				return false
			}
		}
		return m.GetHistogram() == nil || m.GetHistogram().GetSampleCount() > 0
	})
}

// TestMixin: each series that the dashboard "Proxy" of kubernetes-mixin charts, and its
// rules about kube-proxy and about clients of the API server read, has data. The classes
// 3xx, 4xx and 5xx of answers have none until the API server gives such an answer, as
// with kube-proxy.
func TestMixin(t *testing.T) {
	n := newNode(t)
	p := n.startProxy("--metrics-bind-address="+metricsAddress, "--healthz-bind-address="+healthAddress)
	n.exercise()
	all := []series{
		{"kubeproxy_sync_proxy_rules_duration_seconds", nil},
		{"kubeproxy_network_programming_duration_seconds", nil},
		{"rest_client_requests_total", map[string]string{"code": "2.."}},
		{"rest_client_request_duration_seconds", map[string]string{"verb": "POST"}},
		{"rest_client_request_duration_seconds", map[string]string{"verb": "GET"}},
		{"process_resident_memory_bytes", nil},
		{"process_cpu_seconds_total", nil},
		{"go_goroutines", nil},
		{"kubernetes_build_info", map[string]string{"git_version": `v1\.\d+\..*`}},
	}
	for _, s := range all {
		n.soon("the dashboard has its data", func() error { return n.has(s) })
	}
	n.must(n.plane.client.CoreV1().Services(n.namespace).Delete(n.ctx, "web", metav1.DeleteOptions{}))
	p.stop()
}
