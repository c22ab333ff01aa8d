package metrics_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apiversion "k8s.io/apimachinery/pkg/version"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/eject"
	"nftproxy/daemon/listen"
	"nftproxy/daemon/metrics"
	"nftproxy/look/traffic"
	"nftproxy/model/flows"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/check"
)

func init() { flag.Bool("update", false, "write docs/metrics.md") }

// all is every metric of the proxy, each with a series, and those of /metrics/slis.
func all(t *testing.T) (served, slis []check.Metric) {
	t.Helper()
	registry := metrics.NewRegistry()
	r := &describer{Registerer: registry}
	listeners := metrics.RequestListeners(r)
	m := metrics.New(r)
	m.CountChanges(seen{})
	m.CountRetained(func() int { return 0 })
	m.CountBehind(func() time.Time { return time.Time{} })
	s := aSync(conflicting())
	s.Read = time.Second
	s.Triggers = service.Triggers{PerFamily: ip.PerFamily[[]time.Time]{{start}}}
	m.Observe(s)
	s.Read = 0
	m.Observe(s)
	m.ObserveConntrack(conntrack.Run{Removed: map[conntrack.Reason]int{conntrack.NodePort: 1}, Lag: 1})
	m.ObserveAffinity(affinity.Run{Name: ruleset.AffinityName{Family: nft.IPv4}})
	m.CountHealth("/healthz", 200)
	m.CountHealth("/livez", 200)
	m.CountProblems("Service", 1)
	m.ObserveEjections(eject.Report{})
	m.ObserveRefusals(traffic.Refusals{Services: []traffic.Refused{{Total: 1}}})
	metrics.CountConnections(r, func() ([]traffic.PortTraffic, uint64) {
		return []traffic.PortTraffic{{Connections: traffic.Connections{Total: 1}}}, 1
	})
	metrics.CountInvalidDropped(r, func() uint64 { return 0 })
	metrics.NewConfigFile(r)
	followed, answered := metrics.NewFlows(r), 0.001
	followed.Observe(flows.Change{Flow: flows.Flow{Service: "a/b", Result: flows.Answered,
		AnswerSeconds: &answered}, Settled: true})
	followed.Count(func() flows.Counts { return flows.Counts{} })
	metrics.FollowLocalPorts(r, func() listen.LocalCounts { return listen.LocalCounts{} })
	m.SetKubernetesVersion(apiversion.Info{Major: "1"})
	request(listeners)
	checks := metrics.NewSLIs()
	checks.Observe("ping", "healthz", true)
	served = gather(t, registry)
	for name := range r.names() {
		if !slices.ContainsFunc(served, func(m check.Metric) bool { return m.Name == name }) {
			t.Errorf("%s has no series here, so docs/metrics.md lacks it", name)
		}
	}
	return served, gather(t, checks.Gatherer())
}

// describer is a registerer that knows what it has registered. A metric with labels is served once it has a series.
type describer struct {
	prometheus.Registerer
	registered []prometheus.Collector
}

func (d *describer) Register(c prometheus.Collector) error {
	d.registered = append(d.registered, c)
	return d.Registerer.Register(c)
}

func (d *describer) MustRegister(all ...prometheus.Collector) {
	d.registered = append(d.registered, all...)
	d.Registerer.MustRegister(all...)
}

// names are those of all metrics that the collectors describe.
func (d *describer) names() map[string]bool {
	names := map[string]bool{}
	descriptions := make(chan *prometheus.Desc)
	go func() {
		for _, c := range d.registered {
			c.Describe(descriptions)
		}
		close(descriptions)
	}()
	named := regexp.MustCompile(`fqName: "([^"]*)"`)
	for one := range descriptions {
		names[named.FindStringSubmatch(one.String())[1]] = true
	}
	return names
}

// request does what client-go does for requests of all kinds.
func request(l clientmetrics.RegisterOpts) {
	ctx, u := context.Background(), url.URL{Host: "h"}
	l.RequestLatency.Observe(ctx, "GET", u, 1)
	l.RateLimiterLatency.Observe(ctx, "GET", u, 1)
	l.RequestSize.Observe(ctx, "GET", "h", 1)
	l.ResponseSize.Observe(ctx, "GET", "h", 1)
	l.RequestResult.Increment(ctx, "200", "GET", "h")
	l.RequestRetry.IncrementRetry(ctx, "500", "GET", "h")
	l.ExecPluginCalls.Increment(0, "no_error")
	l.ClientCertRotationAge.Observe(1)
	l.ClientCertExpiry.Set(nil)
	l.TransportCacheEntries.Observe(1)
	l.TransportCreateCalls.Increment("miss")
	l.TransportCAReloads.Increment("success", "x")
	l.TransportCertRotationGCCalls.Increment()
	l.TransportCacheGCCalls.Increment("deleted")
}

func gather(t *testing.T, g prometheus.Gatherer) []check.Metric {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return check.DescribeMetrics(families)
}

// absent are kube-proxy's metrics that nftproxy does not have, as patterns of path.Match,
// each with the reason.
func absent() [][2]string {
	const server = "about code of the API server that is linked into kube-proxy and counts nothing there"
	const registry = "about the registry of k8s.io/component-base, which nftproxy does not use"
	return [][2]string{
		{"aggregator_discovery_aggregation_count_total", server},
		{"apiserver_*", server},
		{"cardinality_enforcement_unexpected_categorizations_total", registry},
		{"disabled_metrics_total", registry},
		{"hidden_metrics_total", registry},
		{"registered_metrics_total", registry},
		{"kubernetes_feature_enabled", "`/flagz` has all settings, `--feature-gates` included"},
	}
}

// TestLikeKubeProxy: each metric that the real kube-proxy serves is here too, with its
// type, labels, help text and buckets, or the page says why not. TestKubeProxyMetrics in
// test/e2e keeps the record.
func TestLikeKubeProxy(t *testing.T) {
	text, err := os.ReadFile("testdata/kube-proxy.txt")
	if err != nil {
		t.Fatal(err)
	}
	first, second, ok := strings.Cut(string(text), "# /metrics/slis\n")
	if !ok {
		t.Fatal("the record has no /metrics/slis")
	}
	served, slis := all(t)
	used := map[string]bool{}
	compared := 0
	for page, ours := range map[string][]check.Metric{first: served, second: slis} {
		theirs, err := check.ReadMetrics(strings.NewReader(page))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range theirs {
			compared++
			at := slices.IndexFunc(ours, func(m check.Metric) bool { return m.Name == want.Name })
			why := slices.IndexFunc(absent(), func(a [2]string) bool { match, _ := path.Match(a[0], want.Name); return match })
			switch {
			case at < 0 && why < 0:
				t.Errorf("there is no %s, and no reason why", want.Name)
			case at < 0:
				used[absent()[why][0]] = true
			case why >= 0:
				t.Errorf("%s is there, but has a reason why not: %s", want.Name, absent()[why][1])
			default:
				if diff := gocmp.Diff(want, ours[at]); diff != "" {
					t.Errorf("%s (-kube-proxy +nftproxy):\n%s", want.Name, diff)
				}
			}
		}
	}
	if compared < 100 || len(used) != len(absent()) {
		t.Errorf("%d metrics compared, reasons used: %v", compared, used)
	}
}

// meanings say of kube-proxy's metrics what they mean here: its help texts are short, and
// some things are otherwise.
func meanings() map[string]string {
	return map[string]string{
		"kubeproxy_sync_proxy_rules_duration_seconds": "Time that a sync took, from the " +
			"snapshot to the kernel's answer. One sync is for both families and counts in each.",
		"kubeproxy_sync_full_proxy_rules_duration_seconds": "As kubeproxy_sync_proxy_rules_duration_seconds, for " +
			"syncs that read the kernel's tables: after a start, an error, or a change by another program.",
		"kubeproxy_sync_partial_proxy_rules_duration_seconds": "The same for all other syncs.",
		"kubeproxy_network_programming_duration_seconds": "Time from the cause of a change of endpoints until the " +
			"change was in the kernel. The cause's time is the EndpointSlice's annotation " +
			"`endpoints.kubernetes.io/last-change-trigger-time`, mostly in whole seconds. A change that waits for a " +
			"failed sync counts when it is in the kernel; kube-proxy never counts it. Times before the start of the proxy do " +
			"not count.",
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds": "When the family's rules were last known " +
			"to be in the kernel, in seconds since 1970.",
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": "When the last sync began that had a " +
			"change, in seconds since 1970.",
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total": "Syncs after which the family's rules were not in the " +
			"kernel.",
		"kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total": "Failed syncs that only remove " +
			"idle chains.",
		"kubeproxy_sync_proxy_rules_no_local_endpoints_total": "Service ports with traffic policy Local " +
			"that have endpoints, but none on this node.",
		"kubeproxy_sync_proxy_rules_endpoint_changes_total": "Changes of EndpointSlices that arrived. " +
			"kube-proxy counts each object again every 15 minutes.",
		"kubeproxy_sync_proxy_rules_endpoint_changes_pending": "Changes of EndpointSlices that are not in the kernel.",
		"kubeproxy_sync_proxy_rules_service_changes_total": "Changes of Services that arrived. " +
			"kube-proxy counts each in both families, so twice.",
		"kubeproxy_sync_proxy_rules_service_changes_pending": "Changes of Services that are not in the kernel.",
		"kubeproxy_conntrack_reconciler_sync_duration_seconds": "Time that a pass over the conntrack " +
			"table took. One pass is for both families and counts in each.",
		"kubeproxy_conntrack_reconciler_deleted_entries_total": "Stale conntrack entries that were removed.",
		"kubeproxy_iptables_ct_state_invalid_dropped_packets_total": "Forwarded packets that the rule of " +
			"`--nftproxy-drop-invalid` has dropped, as of the last ten seconds; served with that flag only.",
		"kubeproxy_proxy_healthz_total": "Answers of `/healthz` on the health " +
			"port, by HTTP status code.",
		"kubeproxy_proxy_livez_total": "Answers of `/livez` on the health port, " +
			"by HTTP status code.",
		"kubeproxy_nftables_localhost_nodeport_listeners": "Node ports that nftproxy serves on 127.0.0.1 and ::1, one " +
			"for each protocol and address. kube-proxy has TCP only, with the feature gate " +
			"`KubeProxyNFTablesLocalhostNodePorts`.",
		"kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total": "Failed attempts to serve a node " +
			"port on localhost, for example because another process has the port. nftproxy tries again every 5 seconds.",
		"kubernetes_build_info": "The version of the API server, so that the alert `KubeVersionMismatch` of " +
			"kubernetes-mixin does not fire; kube-proxy's has its own version. Missing with `--nftproxy-manifests`.",
		"kubernetes_healthcheck": "On `/metrics/slis`: 1 if the check passed the last time, else 0. `ping` is " +
			"`/healthz` of the metrics port; `proxy` is the health port's `/healthz`, `/livez` or `/readyz`, by `type`.",
		"kubernetes_healthchecks_total": "On `/metrics/slis`: the results of these checks since the start.",
	}
}

// TestPage: docs/metrics.md lists all metrics. With -update the page is written.
func TestPage(t *testing.T) {
	const file = "../../docs/metrics.md"
	served, slis := all(t)
	slis = slices.DeleteFunc(slis, func(m check.Metric) bool { return strings.HasPrefix(m.Name, "process_") })
	page := writePage(t, append(served, slis...))
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(have), page); diff != "" {
		t.Errorf("%s is stale: run go test ./daemon/metrics -run TestPage -update (-have +want):\n%s", file, diff)
	}
}

const introduction = `<!-- Written by: go test ./daemon/metrics -run TestPage -update -->

# Metrics

nftproxy serves metrics at ` + "`/metrics`" + ` and ` + "`/metrics/slis`" + ` of ` + "`--metrics-bind-address`" + `,
by default ` + "`127.0.0.1:10249`" + `, without authorization. [TLS](install.md#tls-for-metrics-and-health) is optional.
A Prometheus in a pod cannot reach a loopback address: run it on the node's network, or bind the server to an address of
the node, such as ` + "`0.0.0.0:10249`" + `, and restrict the access by a network policy or the node's firewall,
since the pages also show the settings of the process.

[deploy/grafana/nftproxy.json](../deploy/grafana/nftproxy.json) is a dashboard, and
[deploy/alerts/nftproxy.yaml](../deploy/alerts/nftproxy.yaml) has alerts
([what to do about each](troubleshooting.md#alerts)). Metrics that kube-proxy 1.37 also has keep their names, types,
labels, help texts and buckets: its dashboards and alerts work if they select nftproxy's job.

A *snapshot* has the Services as this node should serve them, and a *sync* brings the kernel's rules up to date
with it. A *pass* searches the conntrack table for stale entries, and a *sweep* the remembered clients of a Service
port. A *look* searches connections without an answer ([eject.md](eject.md)).
`

func writePage(t *testing.T, list []check.Metric) string {
	t.Helper()
	known := meanings()
	sections := map[string][]check.Metric{}
	for _, m := range list {
		prefix, _, _ := strings.Cut(m.Name, "_")
		sections[prefix] = append(sections[prefix], m)
	}
	var b strings.Builder
	b.WriteString(introduction)
	for _, s := range []struct {
		heading, text string
		prefixes      []string
	}{
		{"nftproxy's own", "", []string{"nftproxy"}},
		{"kube-proxy's", "The last column describes nftproxy's metric, and says where kube-proxy's differs.\n\n",
			[]string{"kubeproxy", "kubernetes"}},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n", s.heading, s.text)
		for _, prefix := range s.prefixes {
			slices.SortFunc(sections[prefix], func(a, b check.Metric) int { return cmp.Compare(a.Name, b.Name) })
			for _, m := range sections[prefix] {
				meaning := cmp.Or(known[m.Name], strings.TrimPrefix(m.Help, "[ALPHA] "))
				if known[m.Name] == "" && strings.HasPrefix(m.Name, "kube") {
					t.Errorf("%s has no meaning", m.Name)
				}
				delete(known, m.Name)
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, code(m.Labels), strings.ReplaceAll(meaning, "|",
					"\\|"))
			}
			delete(sections, prefix)
		}
	}
	for name := range known {
		t.Errorf("%s has a meaning, but there is none", name)
	}
	b.WriteString("\n## client-go's\n\nEach component of Kubernetes has them, about its requests to the API server.\n\n" +
		"| Metric | Type | Labels |\n|---|---|---|\n")
	slices.SortFunc(sections["rest"], func(a, b check.Metric) int { return cmp.Compare(a.Name, b.Name) })
	for _, m := range sections["rest"] {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Name, m.Type, code(m.Labels))
	}
	delete(sections, "rest")
	b.WriteString("\n## The process and the Go runtime\n\n`process_*` and `go_*` are those of the Prometheus client for " +
		"Go, as in kube-proxy.\n")
	delete(sections, "process")
	delete(sections, "go")
	for _, prefix := range slices.Sorted(maps.Keys(sections)) {
		t.Errorf("no section has %s_*", prefix)
	}
	b.WriteString("\n## What kube-proxy has and nftproxy does not\n\n| Metric | Why |\n|---|---|\n")
	var names []string
	for i, a := range absent() {
		names = append(names, a[0])
		if all := absent(); i+1 == len(all) || all[i+1][1] != a[1] {
			fmt.Fprintf(&b, "| %s | %s |\n", code(names), a[1])
			names = nil
		}
	}
	return b.String()
}

func code(words []string) string {
	var list []string
	for _, w := range words {
		list = append(list, "`"+w+"`")
	}
	return strings.Join(list, ", ")
}
