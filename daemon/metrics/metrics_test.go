package metrics_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/metrics"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
)

var start = time.Unix(1_800_000_000, 0)

// aSync is a sync that took 1.5 ms in all and wrote 3 objects.
func aSync(s service.Snapshot) proxy.Sync {
	return proxy.Sync{
		Snapshot: s, Since: start.Add(-8500 * time.Microsecond), Start: start,
		Compile: 100 * time.Microsecond, Plan: 400 * time.Microsecond, Apply: time.Millisecond,
		Program: ruleset.Compile(ruleset.Config{Table: "test"}, s), Written: 3,
	}
}

// conflicting has two Services with a conflict. The younger has lost all its claims.
func conflicting() service.Snapshot {
	b := snapshots.NewBuilder(gen.PlainNode())
	older := gen.UniformService(1, 3)
	younger := *older
	younger.Name, younger.Created = "ns-9/younger", older.Created.Add(time.Hour)
	younger.Options.ExternalFailover = service.FailoverPass
	b.Set(older)
	b.Set(&younger)
	return b.Snapshot()
}

func wantMetrics(t *testing.T, r *prometheus.Registry, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(r, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestObserve(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	s := aSync(conflicting())
	m.Observe(s)
	size := s.Program.Counts()
	wantMetrics(t, r, fmt.Sprintf(`
# HELP kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds [ALPHA] The last time a sync of proxy rules was queued
# TYPE kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv4"} 1.8e+09
kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family="IPv6"} 1.8e+09
# HELP kubeproxy_sync_proxy_rules_last_timestamp_seconds [ALPHA] The last time proxy rules were successfully synced
# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.8000000000015e+09
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv6"} 1.8000000000015e+09
# HELP kubeproxy_sync_proxy_rules_nftables_sync_failures_total [ALPHA] Cumulative proxy nftables sync failures
# TYPE kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0
# HELP nftproxy_conflicting_services Services without an address, port or node port that they claim, because another Service has it or the node needs it.
# TYPE nftproxy_conflicting_services gauge
nftproxy_conflicting_services 1
# HELP nftproxy_program_chains Chains of the latest rules, both families together.
# TYPE nftproxy_program_chains gauge
nftproxy_program_chains %d
# HELP nftproxy_program_elements Map and set elements of the latest rules, both families together.
# TYPE nftproxy_program_elements gauge
nftproxy_program_elements %d
# HELP nftproxy_program_rules The latest rules, both families together.
# TYPE nftproxy_program_rules gauge
nftproxy_program_rules %d
# HELP nftproxy_quarantined_parts Services and other parts of the rules that are left out `+
		`because the kernel refused them.
# TYPE nftproxy_quarantined_parts gauge
nftproxy_quarantined_parts 0
# HELP nftproxy_services Services in the latest snapshot.
# TYPE nftproxy_services gauge
nftproxy_services 2
# HELP nftproxy_written_objects_total Elements, rules, chains and other objects that were added to the kernel's tables or removed.
# TYPE nftproxy_written_objects_total counter
nftproxy_written_objects_total 3
`, size.Chains, size.Elements, size.Rules), "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
		"kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "nftproxy_conflicting_services", "nftproxy_program_chains",
		"nftproxy_program_elements", "nftproxy_program_rules", "nftproxy_quarantined_parts", "nftproxy_services",
		"nftproxy_written_objects_total")
	if diff := cmp.Diff(map[string]observed{
		`kubeproxy_sync_proxy_rules_duration_seconds IPv4`:         {1, 0.0015},
		`kubeproxy_sync_proxy_rules_duration_seconds IPv6`:         {1, 0.0015},
		`kubeproxy_sync_partial_proxy_rules_duration_seconds IPv4`: {1, 0.0015},
		`kubeproxy_sync_partial_proxy_rules_duration_seconds IPv6`: {1, 0.0015},
		`nftproxy_sync_stage_duration_seconds compile`:             {1, 0.0001},
		`nftproxy_sync_stage_duration_seconds plan`:                {1, 0.0004},
		`nftproxy_sync_stage_duration_seconds apply`:               {1, 0.001},
		`nftproxy_change_latency_seconds`:                          {1, 0.01},
	}, histograms(t, r)); diff != "" {
		t.Errorf("histograms (-want +got):\n%s", diff)
	}
}

// observed is the count and the sum of a histogram.
type observed struct {
	Count uint64
	Sum   float64
}

// histograms returns the histograms with a count above zero, by name and label values.
func histograms(t *testing.T, r *prometheus.Registry) map[string]observed {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]observed{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			h := m.GetHistogram()
			if h.GetSampleCount() == 0 {
				continue
			}
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			all[name] = observed{h.GetSampleCount(), h.GetSampleSum()}
		}
	}
	return all
}

// TestObserveFailure: one family fails and a part is refused. The metrics count no
// success for them.
func TestObserveFailure(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	s := aSync(conflicting())
	s.Err = proxy.FamilyErrors{nft.IPv6: errors.New("no")}
	s.Quarantined = map[string]error{"ns/bad": errors.New("no")}
	m.Observe(s)
	wantMetrics(t, r, `
# HELP kubeproxy_sync_proxy_rules_last_timestamp_seconds [ALPHA] The last time proxy rules were successfully synced
# TYPE kubeproxy_sync_proxy_rules_last_timestamp_seconds gauge
kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 1.8000000000015e+09
# HELP kubeproxy_sync_proxy_rules_nftables_sync_failures_total [ALPHA] Cumulative proxy nftables sync failures
# TYPE kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 1
# HELP nftproxy_quarantined_parts Services and other parts of the rules that are left out `+
		`because the kernel refused them.
# TYPE nftproxy_quarantined_parts gauge
nftproxy_quarantined_parts 1
`, "kubeproxy_sync_proxy_rules_last_timestamp_seconds", "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", "nftproxy_quarantined_parts")
	if h, ok := histograms(t, r)["nftproxy_change_latency_seconds"]; ok {
		t.Errorf("a change that is not in force has a latency: %v", h)
	}
}

func TestObserveConntrack(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	m.ObserveConntrack(conntrack.Run{Scanned: 100, Removed: map[conntrack.Reason]int{conntrack.NodePort: 2,
		conntrack.ClusterIP: 3}, RemovedIPv6: 1, Duration: time.Second, CPU: time.Second / 2, Lag: 2 * time.Second})
	m.ObserveConntrack(conntrack.Run{Scanned: 5, Walks: 2, CPU: time.Second, Err: errors.New("interrupted")})
	wantMetrics(t, r, `
# HELP kubeproxy_conntrack_reconciler_deleted_entries_total [ALPHA] Cumulative conntrack flows deleted by conntrack reconciler
# TYPE kubeproxy_conntrack_reconciler_deleted_entries_total counter
kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv4"} 4
kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family="IPv6"} 1
# HELP nftproxy_conntrack_cpu_seconds_total CPU time of passes over the conntrack table, in this process and in the kernel.
# TYPE nftproxy_conntrack_cpu_seconds_total counter
nftproxy_conntrack_cpu_seconds_total 1.5
# HELP nftproxy_conntrack_failures_total Passes over the conntrack table that were incomplete.
# TYPE nftproxy_conntrack_failures_total counter
nftproxy_conntrack_failures_total 1
# HELP nftproxy_conntrack_passes_total Passes over the conntrack table: a whole one asks the kernel for all entries, a filtered one for some.
# TYPE nftproxy_conntrack_passes_total counter
nftproxy_conntrack_passes_total{kind="filtered"} 1
nftproxy_conntrack_passes_total{kind="whole"} 1
# HELP nftproxy_conntrack_removed_entries_total Stale conntrack entries that were removed, by the reason why they were stale.
# TYPE nftproxy_conntrack_removed_entries_total counter
nftproxy_conntrack_removed_entries_total{reason="node port"} 2
nftproxy_conntrack_removed_entries_total{reason="unknown port of a cluster IP"} 3
# HELP nftproxy_conntrack_scanned_entries_total Conntrack entries that were read.
# TYPE nftproxy_conntrack_scanned_entries_total counter
nftproxy_conntrack_scanned_entries_total 105
`, "kubeproxy_conntrack_reconciler_deleted_entries_total", "nftproxy_conntrack_failures_total",
		"nftproxy_conntrack_removed_entries_total", "nftproxy_conntrack_scanned_entries_total",
		"nftproxy_conntrack_passes_total", "nftproxy_conntrack_cpu_seconds_total")
	if diff := cmp.Diff(map[string]observed{
		"kubeproxy_conntrack_reconciler_sync_duration_seconds IPv4": {2, 1},
		"kubeproxy_conntrack_reconciler_sync_duration_seconds IPv6": {2, 1},
		"nftproxy_conntrack_lag_seconds":                            {1, 2},
	}, histograms(t, r)); diff != "" {
		t.Errorf("histograms (-want +got):\n%s", diff)
	}
}

func TestObserveOccupancy(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	for _, c := range []struct {
		occupancy      conntrack.Occupancy
		entries, limit string
		invalid        int
	}{
		{conntrack.Occupancy{Entries: 7, Limit: 262144, Invalid: 5}, "7", "262144", 5},
		{conntrack.Occupancy{Err: errors.New("missing")}, "NaN", "NaN", 5},
		{conntrack.Occupancy{Entries: 9, Invalid: 6}, "9", "0", 6},
	} {
		m.ObserveOccupancy(c.occupancy)
		wantMetrics(t, r, fmt.Sprintf(`
# HELP nftproxy_conntrack_entries Entries of the conntrack table, stale or not.
# TYPE nftproxy_conntrack_entries gauge
nftproxy_conntrack_entries %s
# HELP nftproxy_conntrack_invalid_packets_total Packets that connection tracking could assign to no connection since the network namespace began, such as TCP segments out of the window (docs/migrate.md).
# TYPE nftproxy_conntrack_invalid_packets_total counter
nftproxy_conntrack_invalid_packets_total %d
# HELP nftproxy_conntrack_limit Entries that the conntrack table can have before new connections are dropped; 0 if there is no limit.
# TYPE nftproxy_conntrack_limit gauge
nftproxy_conntrack_limit %s
`, c.entries, c.invalid, c.limit), "nftproxy_conntrack_entries", "nftproxy_conntrack_invalid_packets_total", "nftproxy_conntrack_limit")
	}
}

func TestObserveAffinity(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	name := func(f nft.Family) ruleset.AffinityName { return ruleset.AffinityName{Family: f} }
	m.ObserveAffinity(affinity.Run{Name: name(nft.IPv4), Swept: 3, Duration: time.Second, Clients: 10})
	m.ObserveAffinity(affinity.Run{Name: name(nft.IPv6), Clients: 65_535, Limit: 65_535})
	m.ObserveAffinity(affinity.Run{Name: name(nft.IPv4), Clients: 65_534, Swept: 4, Duration: time.Second,
		Err: errors.New("no"), Repeated: true})
	wantMetrics(t, r, `
# HELP nftproxy_affinity_entries Remembered clients of a Service port (session affinity) after each sweep: at the start, and after endpoints were removed. A Service port above the last limit is full and serves other clients without affinity.
# TYPE nftproxy_affinity_entries histogram
nftproxy_affinity_entries_bucket{ip_family="IPv4",le="0"} 0
nftproxy_affinity_entries_bucket{ip_family="IPv4",le="10"} 1
nftproxy_affinity_entries_bucket{ip_family="IPv4",le="100"} 1
nftproxy_affinity_entries_bucket{ip_family="IPv4",le="1000"} 1
nftproxy_affinity_entries_bucket{ip_family="IPv4",le="10000"} 1
nftproxy_affinity_entries_bucket{ip_family="IPv4",le="65534"} 2
nftproxy_affinity_entries_bucket{ip_family="IPv4",le="+Inf"} 2
nftproxy_affinity_entries_sum{ip_family="IPv4"} 65544
nftproxy_affinity_entries_count{ip_family="IPv4"} 2
nftproxy_affinity_entries_bucket{ip_family="IPv6",le="0"} 0
nftproxy_affinity_entries_bucket{ip_family="IPv6",le="10"} 0
nftproxy_affinity_entries_bucket{ip_family="IPv6",le="100"} 0
nftproxy_affinity_entries_bucket{ip_family="IPv6",le="1000"} 0
nftproxy_affinity_entries_bucket{ip_family="IPv6",le="10000"} 0
nftproxy_affinity_entries_bucket{ip_family="IPv6",le="65534"} 0
nftproxy_affinity_entries_bucket{ip_family="IPv6",le="+Inf"} 1
nftproxy_affinity_entries_sum{ip_family="IPv6"} 65535
nftproxy_affinity_entries_count{ip_family="IPv6"} 1
# HELP nftproxy_affinity_sweep_failures_total Sweeps of a Service port's remembered clients (session affinity) that were incomplete.
# TYPE nftproxy_affinity_sweep_failures_total counter
nftproxy_affinity_sweep_failures_total 1
# HELP nftproxy_affinity_swept_entries_total Remembered clients (session affinity) that sweeps removed because their endpoint is gone.
# TYPE nftproxy_affinity_swept_entries_total counter
nftproxy_affinity_swept_entries_total 7
`, "nftproxy_affinity_entries", "nftproxy_affinity_sweep_failures_total", "nftproxy_affinity_swept_entries_total")
	if diff := cmp.Diff(map[string]observed{"nftproxy_affinity_sweep_duration_seconds": {3, 2},
		"nftproxy_affinity_entries IPv4": {2, 65_544}, "nftproxy_affinity_entries IPv6": {1, 65_535}}, histograms(t,
		r)); diff != "" {
		t.Errorf("histograms (-want +got):\n%s", diff)
	}
}

func TestCounts(t *testing.T) {
	r := prometheus.NewRegistry()
	m := metrics.New(r)
	for range 2 {
		m.CountHealth("/healthz", 200)
	}
	m.CountHealth("/livez", 503)
	m.CountHealth("/readyz", 503)
	m.CountProblems("Service", 1)
	m.ObserveHealthPorts(7, 1)
	m.ObserveHealthPorts(6, 2)
	wantMetrics(t, r, `
# HELP kubeproxy_proxy_healthz_total [ALPHA] Cumulative proxy healthz HTTP status
# TYPE kubeproxy_proxy_healthz_total counter
kubeproxy_proxy_healthz_total{code="200"} 2
# HELP kubeproxy_proxy_livez_total [ALPHA] Cumulative proxy livez HTTP status
# TYPE kubeproxy_proxy_livez_total counter
kubeproxy_proxy_livez_total{code="503"} 1
# HELP nftproxy_health_check_listeners Listeners for the health check node ports of Services, one for each port and address. The failed ones could not be opened and are tried again.
# TYPE nftproxy_health_check_listeners gauge
nftproxy_health_check_listeners{state="failed"} 2
nftproxy_health_check_listeners{state="open"} 6
# HELP nftproxy_object_problems_total Fields of API objects or manifests that could not be used, by the kind of the object.
# TYPE nftproxy_object_problems_total counter
nftproxy_object_problems_total{kind="Service"} 1
`, "kubeproxy_proxy_healthz_total", "kubeproxy_proxy_livez_total", "nftproxy_health_check_listeners", "nftproxy_object_problems_total")
}

// TestNames: Prometheus' own linter finds no problem. The metrics of a program are
// missing before the first sync.
func TestNames(t *testing.T) {
	r := metrics.NewRegistry()
	m := metrics.New(r)
	for _, name := range []string{"kubeproxy_sync_proxy_rules_last_timestamp_seconds", "nftproxy_program_elements"} {
		if n, err := testutil.GatherAndCount(r, name); n != 0 || err != nil {
			t.Errorf("%d %s before the first sync, err %v", n, name, err)
		}
	}
	m.Observe(aSync(conflicting()))
	m.ObserveConntrack(conntrack.Run{Removed: map[conntrack.Reason]int{conntrack.NodePort: 1}})
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "go_") {
			continue // A metric of the library.
		}
		if p.Metric == "kubeproxy_sync_proxy_rules_no_local_endpoints_total" {
			continue // A gauge with kube-proxy's name.
		}
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}
