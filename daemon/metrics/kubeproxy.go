package metrics

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/version"

	"nftproxy/conntrack"
	"nftproxy/daemon/proxy"
	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// kubeProxys are the metrics of kube-proxy 1.37 in its mode nftables, with its names, labels, help texts and buckets
// (pkg/proxy/metrics/metrics.go there). Where the meaning differs, docs/metrics.md says so.
type kubeProxys struct {
	duration, full, partial byFamily[prometheus.Observer]
	networkProgramming      byFamily[prometheus.Observer]
	lastSync, lastQueued    byFamily[prometheus.Gauge]
	failures, cleanup       byFamily[prometheus.Counter]
	noLocal                 noLocal
	conntrackDuration       *prometheus.HistogramVec
	conntrackDeleted        *prometheus.CounterVec
	healthz, livez          *prometheus.CounterVec
	inForce                 atomic.Pointer[service.Changes] // the changes of objects, in both families
	buildInfo               *prometheus.GaugeVec
}

// kubeProxyBuckets go from a millisecond to 16 seconds.
func kubeProxyBuckets() []float64 { return prometheus.ExponentialBuckets(0.001, 2, 15) }

// programmingBuckets go from a quarter of a second to five minutes. kube-proxy's list begins with 0.
func programmingBuckets() []float64 {
	return slices.Concat(
		[]float64{0},
		prometheus.LinearBuckets(0.25, 0.25, 2), prometheus.LinearBuckets(1, 1, 59),
		prometheus.LinearBuckets(60, 5, 12), prometheus.LinearBuckets(120, 30, 7),
	)
}

func (k *kubeProxys) register(f factory) {
	family := []string{"ip_family"}
	k.duration = of(f.histograms("kubeproxy_sync_proxy_rules_duration_seconds", family, kubeProxyBuckets(),
		"[ALPHA] SyncProxyRules latency in seconds").WithLabelValues)
	k.full = of(f.histograms("kubeproxy_sync_full_proxy_rules_duration_seconds", family, kubeProxyBuckets(),
		"[ALPHA] SyncProxyRules latency in seconds for full resyncs").WithLabelValues)
	k.partial = of(f.histograms("kubeproxy_sync_partial_proxy_rules_duration_seconds", family, kubeProxyBuckets(),
		"[ALPHA] SyncProxyRules latency in seconds for partial resyncs").WithLabelValues)
	k.networkProgramming = of(f.histograms("kubeproxy_network_programming_duration_seconds", family, programmingBuckets(),
		"[ALPHA] In Cluster Network Programming Latency in seconds").WithLabelValues)
	k.lastSync = of(f.gauges("kubeproxy_sync_proxy_rules_last_timestamp_seconds", family,
		"[ALPHA] The last time proxy rules were successfully synced").WithLabelValues)
	k.lastQueued = of(f.gauges("kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", family,
		"[ALPHA] The last time a sync of proxy rules was queued").WithLabelValues)
	k.failures = of(f.counters("kubeproxy_sync_proxy_rules_nftables_sync_failures_total", family,
		"[ALPHA] Cumulative proxy nftables sync failures").WithLabelValues)
	k.cleanup = of(f.counters("kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total", family,
		"[ALPHA] Cumulative proxy nftables cleanup failures").WithLabelValues)
	noLocal := f.gauges("kubeproxy_sync_proxy_rules_no_local_endpoints_total", []string{"traffic_policy", "ip_family"},
		"[ALPHA] Number of services with a Local traffic policy and no endpoints")
	k.noLocal.internal = of(noLocal.MustCurryWith(prometheus.Labels{"traffic_policy": "internal"}).WithLabelValues)
	k.noLocal.external = of(noLocal.MustCurryWith(prometheus.Labels{"traffic_policy": "external"}).WithLabelValues)
	k.conntrackDuration = f.histograms("kubeproxy_conntrack_reconciler_sync_duration_seconds", family, kubeProxyBuckets(),
		"[ALPHA] ReconcileConntrackFlowsLatency latency in seconds")
	k.conntrackDeleted = f.counters("kubeproxy_conntrack_reconciler_deleted_entries_total", family,
		"[ALPHA] Cumulative conntrack flows deleted by conntrack reconciler")
	k.healthz = f.counters("kubeproxy_proxy_healthz_total", []string{"code"},
		"[ALPHA] Cumulative proxy healthz HTTP status")
	k.livez = f.counters("kubeproxy_proxy_livez_total", []string{"code"}, "[ALPHA] Cumulative proxy livez HTTP status")
	k.buildInfo = f.gauges("kubernetes_build_info", []string{"major", "minor", "git_version", "git_commit",
		"git_tree_state", "build_date", "go_version", "compiler", "platform"},
		"[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build "+
			"date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.")
	for i, family := range families() {
		// These are then 0 and not missing, and the histogram has buckets: a dashboard
		// finds the instances by them before anything has changed.
		k.failures[i]()
		k.cleanup[i]()
		k.conntrackDeleted.WithLabelValues(family)
		k.networkProgramming[i]()
	}
}

// byFamily has the metrics of a vector with the label ip_family, in the order of families. Each is looked up, and comes
// into being, when it is first asked for: to look for it in the vector at each sync takes longer than to count.
type byFamily[T any] ip.PerFamily[func() T]

// of is byFamily for a vector's method WithLabelValues.
func of[T any](with func(...string) T) (b byFamily[T]) {
	for i, family := range families() {
		b[i] = sync.OnceValue(func() T { return with(family) })
	}
	return b
}

// families lists the values of the label ip_family.
func families() []string { return []string{nft.IPv4.Name(), nft.IPv6.Name()} }

func (k *kubeProxys) observe(s *proxy.Sync) {
	took := s.End().Sub(s.Start).Seconds()
	kind := k.partial
	if s.Read > 0 {
		kind = k.full
	}
	for i, f := range nft.Families() {
		k.duration[i]().Observe(took)
		kind[i]().Observe(took)
		if !s.Since.IsZero() {
			k.lastQueued[i]().Set(seconds(s.Start))
		}
		if s.InForce(f) {
			k.lastSync[i]().Set(seconds(s.End()))
			for _, t := range *s.Triggers.Of(f) {
				// The clock of the control plane may be ahead, or the writer of the slice
				// may lie: a negative delay would take away from the sum.
				k.networkProgramming[i]().Observe(max(0, s.End().Sub(t).Seconds()))
			}
			continue
		}
		k.failures[i]().Inc()
		if s.Since.IsZero() && !s.Check {
			k.cleanup[i]().Inc() // The sync was for idle chains.
		}
	}
	k.noLocal.observe(s)
	if s.Err == nil {
		changes := s.Changes // a pointer into the sync would keep all of it in memory
		k.inForce.Store(&changes)
	}
}

func (k *kubeProxys) observeConntrack(r *conntrack.Run) {
	removed := 0
	for _, n := range r.Removed {
		removed += n
	}
	for _, c := range []struct {
		family  nft.Family
		removed int
	}{{nft.IPv4, removed - r.RemovedIPv6}, {nft.IPv6, r.RemovedIPv6}} {
		k.conntrackDuration.WithLabelValues(c.family.Name()).Observe(r.Duration.Seconds())
		k.conntrackDeleted.WithLabelValues(c.family.Name()).Add(float64(c.removed))
	}
}

// SetKubernetesVersion sets the version of the API server. The proxy has no version of
// Kubernetes itself, and alerts fire when one component has another version than the rest.
func (m *Metrics) SetKubernetesVersion(v version.Info) {
	m.buildInfo.Reset()
	m.buildInfo.WithLabelValues(v.Major, v.Minor, v.GitVersion, v.GitCommit, v.GitTreeState, v.BuildDate, v.GoVersion,
		v.Compiler, v.Platform).Set(1)
}

// Source counts the changes of objects.
type Source interface {
	// Changes returns how many there were since the start.
	Changes() service.Changes
	// Pending returns how many are not in force, if inForce has those of the last snapshot in force.
	Pending(inForce service.Changes) service.Changes
}

// CountChanges adds the changes of the source, which is asked at each scrape.
func (m *Metrics) CountChanges(source Source) {
	total := func(name, help string, value func(service.Changes) uint64) {
		m.factory.counterFunc(name, help, func() float64 { return float64(value(source.Changes())) })
	}
	pending := func(name, help string, value func(service.Changes) uint64) {
		m.factory.gaugeFunc(name, help, func() float64 {
			inForce := m.inForce.Load()
			if inForce == nil {
				inForce = &service.Changes{}
			}
			return float64(value(source.Pending(*inForce)))
		})
	}
	slices := func(c service.Changes) uint64 { return c.EndpointSlices }
	services := func(c service.Changes) uint64 { return c.Services }
	pending("kubeproxy_sync_proxy_rules_endpoint_changes_pending", "[ALPHA] Pending proxy rules Endpoint changes", slices)
	total("kubeproxy_sync_proxy_rules_endpoint_changes_total", "[ALPHA] Cumulative proxy rules Endpoint changes", slices)
	pending("kubeproxy_sync_proxy_rules_service_changes_pending", "[ALPHA] Pending proxy rules Service changes", services)
	total("kubeproxy_sync_proxy_rules_service_changes_total", "[ALPHA] Cumulative proxy rules Service changes", services)
}

// CountInvalidDropped registers kube-proxy's metric of dropped packets, where the rule that drops them is wanted. read
// must be safe for concurrent use.
func CountInvalidDropped(r prometheus.Registerer, read func() uint64) {
	newFactory(r).counterFunc("kubeproxy_iptables_ct_state_invalid_dropped_packets_total",
		"[ALPHA] packets dropped by iptables to work around conntrack problems",
		func() float64 { return float64(read()) })
}
