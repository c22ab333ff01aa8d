package metrics_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// TestNetworkProgramming: a change counts from its cause to the end of the sync that put
// it in force in its family, and in no other.
func TestNetworkProgramming(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	s := aSync(conflicting()) // It ends 1.5 ms after the start.
	s.Triggers = service.Triggers{PerFamily: ip.PerFamily[[]time.Time]{
		{start.Add(-time.Second), start.Add(time.Hour)}, // the second by a clock that is ahead
		{start.Add(-2 * time.Second)},
	}}
	s.Err = proxy.FamilyErrors{nft.IPv6: errors.New("no")}
	m.Observe(s)
	want := map[string]observed{"IPv4": {2, 1.0015}}
	check := func() {
		t.Helper()
		got := map[string]observed{}
		for _, family := range []string{"IPv4", "IPv6"} {
			if h, ok := histograms(t, r)["kubeproxy_network_programming_duration_seconds "+family]; ok {
				got[family] = h
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	check()
	s.Err, *s.Triggers.Of(ip.V4) = nil, nil
	m.Observe(s)
	want["IPv6"] = observed{1, 2.0015}
	check()
}

// TestFullAndPartial: a sync that read the tables is a full one, and a failed sync
// without a change was a failed clean-up.
func TestFullAndPartial(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	s := aSync(conflicting())
	m.Observe(s)
	s.Read = time.Second
	m.Observe(s)
	m.Observe(s)
	all := histograms(t, r)
	for name, want := range map[string]uint64{"sync_proxy_rules": 3, "sync_full_proxy_rules": 2,
		"sync_partial_proxy_rules": 1} {
		for _, family := range []string{"IPv4", "IPv6"} {
			if got := all["kubeproxy_"+name+"_duration_seconds "+family].Count; got != want {
				t.Errorf("%s: %d of %s, want %d", family, got, name, want)
			}
		}
	}
	s.Err = proxy.FamilyErrors{nft.IPv4: errors.New("no")}
	m.Observe(s)
	s.Since = time.Time{}
	m.Observe(s)
	s.Check = true // a repair
	m.Observe(s)
	wantMetrics(t, r, `
# HELP kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total [ALPHA] Cumulative proxy nftables cleanup failures
# TYPE kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv4"} 1
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv6"} 0
# HELP kubeproxy_sync_proxy_rules_nftables_sync_failures_total [ALPHA] Cumulative proxy nftables sync failures
# TYPE kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 3
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0
`, "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", "kubeproxy_sync_proxy_rules_nftables_sync_failures_total")
}

// seen is a source of changes.
type seen service.Changes

func (s seen) Changes() service.Changes { return service.Changes(s) }

func (s seen) Pending(inForce service.Changes) service.Changes {
	return service.Changes{Services: s.Services - inForce.Services,
		EndpointSlices: s.EndpointSlices - inForce.EndpointSlices}
}

// TestChanges: what a failed sync had stays pending.
func TestChanges(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	want := func(text string) {
		t.Helper()
		wantMetrics(t, r, text, "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
			"kubeproxy_sync_proxy_rules_endpoint_changes_total",
			"kubeproxy_sync_proxy_rules_service_changes_pending", "kubeproxy_sync_proxy_rules_service_changes_total")
	}
	const format = `
# HELP kubeproxy_sync_proxy_rules_endpoint_changes_pending [ALPHA] Pending proxy rules Endpoint changes
# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_pending gauge
kubeproxy_sync_proxy_rules_endpoint_changes_pending %d
# HELP kubeproxy_sync_proxy_rules_endpoint_changes_total [ALPHA] Cumulative proxy rules Endpoint changes
# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_total counter
kubeproxy_sync_proxy_rules_endpoint_changes_total %d
# HELP kubeproxy_sync_proxy_rules_service_changes_pending [ALPHA] Pending proxy rules Service changes
# TYPE kubeproxy_sync_proxy_rules_service_changes_pending gauge
kubeproxy_sync_proxy_rules_service_changes_pending %d
# HELP kubeproxy_sync_proxy_rules_service_changes_total [ALPHA] Cumulative proxy rules Service changes
# TYPE kubeproxy_sync_proxy_rules_service_changes_total counter
kubeproxy_sync_proxy_rules_service_changes_total %d
`
	m.CountChanges(seen{Services: 3, EndpointSlices: 7})
	want(fmt.Sprintf(format, 7, 7, 3, 3))
	s := aSync(conflicting())
	s.Changes = service.Changes{Services: 2, EndpointSlices: 7}
	s.Err = proxy.FamilyErrors{nft.IPv4: errors.New("no")}
	m.Observe(s)
	want(fmt.Sprintf(format, 7, 7, 3, 3))
	s.Err = nil
	m.Observe(s)
	want(fmt.Sprintf(format, 0, 7, 1, 3))
}
