package promql

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"
)

type rule struct {
	Alert, Expr         string
	For                 string
	Labels, Annotations map[string]string
}

func readRules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile("../../deploy/alerts/nftproxy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Spec struct {
			Groups []struct{ Rules []rule }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, g := range file.Spec.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// firing has for each alert series with which it fires, in Prometheus' notation for
// tests: a value every minute.
func firing() map[string]string {
	return map[string]string{
		"NftproxyDown":         `up 0x60`,
		"NftproxyInstanceDown": `up 0x60`,
		"NftproxySyncFails":    `kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0+1x60`,
		"NftproxyChangesWait":  `kubeproxy_sync_proxy_rules_service_changes_pending 1x60`,
		"NftproxySlow": `nftproxy_change_latency_seconds_bucket{le="0.1"} 0x60
			nftproxy_change_latency_seconds_bucket{le="12.8"} 0+2x60
			nftproxy_change_latency_seconds_bucket{le="+Inf"} 0+2x60`,
		"NftproxyServiceRefused":        `nftproxy_quarantined_parts 1x60`,
		"NftproxyServicesInConflict":    `nftproxy_conflicting_services 2x60`,
		"NftproxyEndpointsDoNotAnswer":  `nftproxy_ejected_endpoints{mode="report"} 1x60`,
		"NftproxyConntrackAlmostFull":   "nftproxy_conntrack_entries 950x60\nnftproxy_conntrack_limit 1000x60",
		"NftproxyConntrackCleanupFails": `nftproxy_conntrack_failures_total 0+1x60`,
		"NftproxyPacketsOfNoConnection": `nftproxy_conntrack_invalid_packets_total 0+90x60`,
		"NftproxyHealthCheckPortFails":  `nftproxy_health_check_listeners{state="failed"} 1x60`,
		"NftproxyBehind":                `nftproxy_behind_seconds 0+60x60`,
		"NftproxyAPIServerAway": `rest_client_requests_total{code="<error>",method="GET"} 0+1x60
			rest_client_requests_total{code="200",method="GET"} 5x60`,
	}
}

// quiet has series with which an alert must not fire although one like it does.
func quiet() map[string]string {
	return map[string]string{
		"NftproxyBehind":              `nftproxy_behind_seconds 0 60 120 300 600 0x60`, // a long restart
		"NftproxyDown":                "up 1x60\nup{instance=\"node-2\"} 0x60",
		"NftproxyConntrackAlmostFull": "nftproxy_conntrack_entries 950x60\nnftproxy_conntrack_limit 0x60", // no limit
		"NftproxyPacketsOfNoConnection": "nftproxy_conntrack_invalid_packets_total 0+90x60\n" + // they are dropped
			"kubeproxy_iptables_ct_state_invalid_dropped_packets_total 0+90x60",
		"NftproxyChangesWait": `kubeproxy_sync_proxy_rules_service_changes_pending 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 ` +
			`1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1 0 1`,
		"NftproxyAPIServerAway": `rest_client_requests_total{code="503",method="GET"} 0+1x60
			rest_client_requests_total{code="200",method="GET"} 0+5x60`,
	}
}

// load reads series in Prometheus' notation.
func load(t *testing.T, text string) samples {
	t.Helper()
	var d samples
	for line := range strings.Lines(text) {
		l, values, err := parser.ParseSeriesDesc(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		s := series{labels: target(t, l.String())}
		for i, v := range values {
			s.samples = append(s.samples, sample{int64(i) * 60_000, v.Value})
		}
		d.series = append(d.series, s)
	}
	return d
}

// at returns how many series an expression has at a time.
func (d samples) at(t *testing.T, expr string, at time.Time) int {
	t.Helper()
	query, err := engine().NewInstantQuery(context.Background(), d, nil, expr, at)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	vector, err := query.Exec(context.Background()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return len(vector)
}

// TestAlerts: each alert reads what nftproxy exports, fires when it should, and not with
// the record of a healthy daemon.
func TestAlerts(t *testing.T) {
	exported, healthy := readListing(t), readScrapes(t)
	rules, hour := readRules(t), time.UnixMilli(60*60_000)
	if len(rules) != len(firing()) {
		t.Errorf("%d alerts, %d of them tried", len(rules), len(firing()))
	}
	for _, r := range rules {
		t.Run(r.Alert, func(t *testing.T) {
			exported.check(t, r.Alert, r.Expr)
			if _, err := model.ParseDuration(r.For); err != nil {
				t.Error(err)
			}
			if r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Error("severity, summary or description is missing")
			}
			if load(t, firing()[r.Alert]).at(t, r.Expr, hour) == 0 {
				t.Error("it does not fire")
			}
			if text := quiet()[r.Alert]; text != "" && load(t, text).at(t, r.Expr, hour) > 0 {
				t.Error("it fires where it should not")
			}
			if n := healthy.at(t, r.Expr, healthy.times[len(healthy.times)-1]); n > 0 {
				t.Errorf("it fires %d times for a healthy daemon", n)
			}
		})
	}
}
