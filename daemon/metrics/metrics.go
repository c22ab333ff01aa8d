// Package metrics provides the proxy's metrics for Prometheus. A metric that kube-proxy has too has its name and labels
// (kubeproxy_...), so that dashboards and alerts go on working. All others begin with nftproxy_.
//
// The package only counts. It serves no HTTP (package health does) and decides nothing.
package metrics

import (
	"math"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"nftproxy/conntrack"
	"nftproxy/daemon/affinity"
	"nftproxy/daemon/balance"
	"nftproxy/daemon/eject"
	"nftproxy/daemon/proxy"
	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// Metrics are all metrics of one proxy. Its methods are safe for concurrent use.
type Metrics struct {
	factory factory
	kubeProxys

	// Our own metrics.
	stages              stages
	latency             prometheus.Histogram
	written             prometheus.Counter
	quarantined         prometheus.Gauge
	services, conflicts prometheus.Gauge
	problems            *prometheus.CounterVec
	conntrackRemoved    *prometheus.CounterVec
	conntrackScanned    prometheus.Counter
	conntrackFailures   prometheus.Counter
	conntrackPasses     *prometheus.CounterVec
	conntrackCPU        prometheus.Counter
	conntrackLag        prometheus.Histogram
	conntrackEntries    prometheus.Gauge
	conntrackLimit      prometheus.Gauge
	conntrackInvalid    atomic.Uint64 // packets, as of the latest count
	healthListeners     *prometheus.GaugeVec
	ejected             *prometheus.GaugeVec
	ejectionCPU         prometheus.Counter
	ejectionFailures    prometheus.Counter
	balanceCPU          prometheus.Counter
	affinityDuration    prometheus.Histogram
	affinitySwept       prometheus.Counter
	affinityFailures    prometheus.Counter
	affinityEntries     *prometheus.HistogramVec
	program             atomic.Pointer[nft.Program] // the latest
	options             options
	otherProxies        otherProxies
	refused             atomic.Pointer[traffic.Refusals] // of the latest look
}

// NewRegistry makes a registry with the metrics of the Go runtime and of the process, as in kube-proxy.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewBuildInfoCollector(),
	)
	return r
}

// New makes the metrics and registers them. It panics if the registerer has one of the
// names already: a registry can have one Metrics only.
func New(r prometheus.Registerer) *Metrics {
	m := &Metrics{factory: newFactory(r)}
	m.kubeProxys.register(m.factory)
	m.registerOwn(m.factory)
	m.otherProxies.register(m.factory)
	r.MustRegister(collectProgramSize(&m.program), collectRefusals(&m.refused, &m.program))
	return m
}

// buckets go from 50 microseconds to 26 seconds. Those of kube-proxy's metrics begin with
// a millisecond, but a small change takes a fraction of that.
func buckets() []float64 { return prometheus.ExponentialBuckets(50e-6, 2, 20) }

func (m *Metrics) registerOwn(f factory) {
	m.stages.register(f.histograms("nftproxy_sync_stage_duration_seconds", []string{"stage"}, buckets(),
		"Time that the stages of a sync took: compile, read (only after a start or an error), plan and apply (only if "+
			"something was written)."))
	m.latency = f.histogram("nftproxy_change_latency_seconds", buckets(),
		"Time from the arrival of a change in this process until it was in the kernel.")
	m.written = f.counter("nftproxy_written_objects_total",
		"Elements, rules, chains and other objects that were added to the kernel's tables or removed.")
	m.quarantined = f.gauge("nftproxy_quarantined_parts",
		"Services and other parts of the rules that are left out because the kernel refused them.")
	m.services = f.gauge("nftproxy_services",
		"Services in the latest snapshot.")
	m.options.with = f.gauges("nftproxy_services_with_option", []string{"option"},
		"Services in the latest snapshot that ask for this option by an annotation (docs/choices.md), or have it by "+
			"--nftproxy-balance. The option weight counts Services with an endpoint of another weight than 100, such as a "+
			"growing one.")
	m.options.growing = f.gauge("nftproxy_growing_endpoints",
		"Endpoints of Service ports that have a part of their weight since they are new (nftproxy.io/slow-start).")
	m.ejected = f.gauges("nftproxy_ejected_endpoints", []string{"mode"},
		"Endpoints of Service ports that do not answer the node, by the mode of --nftproxy-eject or of the Service: on, "+
			"they are left out; report, they would be.")
	m.ejectionCPU = f.counter("nftproxy_ejection_look_cpu_seconds_total",
		"CPU time spent on finding endpoints that do not answer.")
	m.ejectionFailures = f.counter("nftproxy_ejection_look_failures_total",
		"Failed searches for connections without an answer.")
	m.balanceCPU = f.counter("nftproxy_balance_cpu_seconds_total",
		"CPU time of counts for least connections.")
	m.conflicts = f.gauge("nftproxy_conflicting_services",
		"Services without an address, port or node port that they claim, "+
			"because another Service has it or the node needs it.")
	m.problems = f.counters("nftproxy_object_problems_total", []string{"kind"},
		"Fields of API objects or manifests that could not be used, by the kind of the object.")
	m.conntrackRemoved = f.counters("nftproxy_conntrack_removed_entries_total", []string{"reason"},
		"Stale conntrack entries that were removed, by the reason why they were stale.")
	m.conntrackScanned = f.counter("nftproxy_conntrack_scanned_entries_total",
		"Conntrack entries that were read.")
	m.conntrackPasses = f.counters("nftproxy_conntrack_passes_total", []string{"kind"},
		"Passes over the conntrack table: a whole one asks the kernel for all entries, a filtered one for some.")
	m.conntrackCPU = f.counter("nftproxy_conntrack_cpu_seconds_total",
		"CPU time of passes over the conntrack table, in this process and in the kernel.")
	m.conntrackLag = f.histogram("nftproxy_conntrack_lag_seconds", buckets(),
		"Time from the end of a sync that can have made entries stale to the end of the first pass that looked for them.")
	m.conntrackFailures = f.counter("nftproxy_conntrack_failures_total",
		"Passes over the conntrack table that were incomplete.")
	m.conntrackEntries = f.gauge("nftproxy_conntrack_entries",
		"Entries of the conntrack table, stale or not.")
	m.conntrackLimit = f.gauge("nftproxy_conntrack_limit",
		"Entries that the conntrack table can have before new connections are dropped; 0 if there is no limit.")
	f.counterFunc("nftproxy_conntrack_invalid_packets_total",
		"Packets that connection tracking could assign to no connection since the network namespace began, such as TCP "+
			"segments out of the window (docs/migrate.md).",
		func() float64 { return float64(m.conntrackInvalid.Load()) })
	m.healthListeners = f.gauges("nftproxy_health_check_listeners", []string{"state"},
		"Listeners for the health check node ports of Services, one for each port and address. The failed ones could not "+
			"be opened and are tried again.")
	m.ObserveHealthPorts(0, 0)
	m.affinityDuration = f.histogram("nftproxy_affinity_sweep_duration_seconds", buckets(),
		"Time that a sweep of a Service port's remembered clients (session affinity) took.")
	m.affinitySwept = f.counter("nftproxy_affinity_swept_entries_total",
		"Remembered clients (session affinity) that sweeps removed because their endpoint is gone.")
	m.affinityFailures = f.counter("nftproxy_affinity_sweep_failures_total",
		"Sweeps of a Service port's remembered clients (session affinity) that were incomplete.")
	// The last limit is one less than a map has room for.
	m.affinityEntries = f.histograms("nftproxy_affinity_entries", []string{"ip_family"},
		[]float64{0, 10, 100, 1000, 10_000, nft.DynamicLimit - 1},
		"Remembered clients of a Service port (session affinity) after each sweep: at the start, and after endpoints were "+
			"removed. A Service port above the last limit is full and serves other clients without affinity.")
}

// Observe counts one sync.
func (m *Metrics) Observe(s proxy.Sync) {
	m.kubeProxys.observe(&s)
	m.stages.observe(&s)
	if s.Err == nil && !s.Since.IsZero() {
		m.latency.Observe(s.Latency().Seconds())
	}
	m.written.Add(float64(s.Written))
	m.quarantined.Set(float64(len(s.Quarantined)))
	m.services.Set(float64(s.Snapshot.Services.Len()))
	m.options.observe(s.Snapshot)
	m.conflicts.Set(float64(s.Snapshot.Conflicts.Len()))
	m.program.Store(s.Program)
}

// stages are the durations of a sync's stages, each looked up once.
type stages struct{ compile, read, plan, apply func() prometheus.Observer }

func (g *stages) register(v *prometheus.HistogramVec) {
	of := func(stage string) func() prometheus.Observer {
		return sync.OnceValue(func() prometheus.Observer { return v.WithLabelValues(stage) })
	}
	g.compile, g.read, g.plan, g.apply = of("compile"), of("read"), of("plan"), of("apply")
}

func (g *stages) observe(s *proxy.Sync) {
	g.compile().Observe(s.Compile.Seconds())
	if s.Read > 0 {
		g.read().Observe(s.Read.Seconds())
	}
	g.plan().Observe(s.Plan.Seconds())
	if s.Apply > 0 {
		g.apply().Observe(s.Apply.Seconds())
	}
}

// ObserveConntrack counts one pass over the conntrack table.
func (m *Metrics) ObserveConntrack(r conntrack.Run) {
	m.kubeProxys.observeConntrack(&r)
	m.conntrackScanned.Add(float64(r.Scanned))
	kind := "whole"
	if r.Walks > 0 {
		kind = "filtered"
	}
	m.conntrackPasses.WithLabelValues(kind).Inc()
	m.conntrackCPU.Add(r.CPU.Seconds())
	if r.Lag > 0 {
		m.conntrackLag.Observe(r.Lag.Seconds())
	}
	for reason, n := range r.Removed {
		m.conntrackRemoved.WithLabelValues(string(reason)).Add(float64(n))
	}
	if r.Err != nil {
		m.conntrackFailures.Inc()
	}
}

// ObserveOccupancy takes note of how full the conntrack table is. If that is not known,
// both numbers are NaN, and the number of invalid packets stays.
func (m *Metrics) ObserveOccupancy(o conntrack.Occupancy) {
	entries, limit := float64(o.Entries), float64(o.Limit)
	if o.Err != nil {
		entries, limit = math.NaN(), math.NaN()
	} else {
		m.conntrackInvalid.Store(o.Invalid)
	}
	m.conntrackEntries.Set(entries)
	m.conntrackLimit.Set(limit)
}

// ObserveAffinity counts one sweep of a Service port's remembered clients.
func (m *Metrics) ObserveAffinity(r affinity.Run) {
	m.affinityDuration.Observe(r.Duration.Seconds())
	m.affinitySwept.Add(float64(r.Swept))
	if r.Err != nil {
		m.affinityFailures.Inc()
	}
	m.affinityEntries.WithLabelValues(r.Name.Family.Name()).Observe(float64(r.Clients))
}

// ObserveEjections takes note of a look for connections without an answer, and of what is left out.
func (m *Metrics) ObserveEjections(r eject.Report) {
	m.ejectionCPU.Add(r.CPU.Seconds())
	if r.Err != nil {
		m.ejectionFailures.Inc()
	}
	n := map[service.Eject]int{}
	for _, l := range r.Left {
		n[l.Mode]++
	}
	for _, mode := range []service.Eject{service.EjectReport, service.EjectOn} {
		m.ejected.WithLabelValues(mode.String()).Set(float64(n[mode]))
	}
}

// ObserveBalance takes note of a count of connections for least connections.
func (m *Metrics) ObserveBalance(r balance.Report) {
	m.balanceCPU.Add(r.CPU.Seconds())
}

// ObserveHealthPorts takes note of the number of open listeners for health check node ports, and of the failed ones.
func (m *Metrics) ObserveHealthPorts(open, failed int) {
	m.healthListeners.WithLabelValues("open").Set(float64(open))
	m.healthListeners.WithLabelValues("failed").Set(float64(failed))
}

// CountRetained adds the number of retained Services. The function must be safe for concurrent use.
func (m *Metrics) CountRetained(count func() int) {
	m.factory.gaugeFunc("nftproxy_retained_services",
		"Services that are served although the last list lacks them or their EndpointSlices, because it lacked most "+
			"Services at once.",
		func() float64 { return float64(count()) })
}

// CountBehind adds the time since which the source is not up to date, the zero time if it is. The function must be safe
// for concurrent use.
func (m *Metrics) CountBehind(since func() time.Time) {
	m.factory.gaugeFunc("nftproxy_behind_seconds",
		"Time since the API server stopped reporting changes, because it is away or refuses: a bad token, an expired "+
			"certificate, missing rights. 0 if everything is up to date.",
		func() float64 {
			if t := since(); !t.IsZero() {
				return time.Since(t).Seconds()
			}
			return 0
		})
}

// CountProblems counts n problems in objects of the kind. There must be few kinds: only those that the proxy reads.
func (m *Metrics) CountProblems(kind string, n int) { m.problems.WithLabelValues(kind).Add(float64(n)) }

// CountHealth counts an answer of /healthz or /livez. It does not count other paths.
func (m *Metrics) CountHealth(path string, code int) {
	switch path {
	case "/healthz":
		m.healthz.WithLabelValues(strconv.Itoa(code)).Inc()
	case "/livez":
		m.livez.WithLabelValues(strconv.Itoa(code)).Inc()
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// collectProgramSize collects the size of the latest program, and nothing before the first sync. It counts when
// Prometheus asks, since a sync must not cost a walk over the whole program.
func collectProgramSize(latest *atomic.Pointer[nft.Program]) *collector {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	elements := desc("nftproxy_program_elements", "Map and set elements of the latest rules, both families together.")
	chains := desc("nftproxy_program_chains", "Chains of the latest rules, both families together.")
	rules := desc("nftproxy_program_rules", "The latest rules, both families together.")
	return &collector{[]*prometheus.Desc{elements, chains, rules}, func(out chan<- prometheus.Metric) {
		program := latest.Load()
		if program == nil {
			return
		}
		c := program.Counts()
		for desc, n := range map[*prometheus.Desc]int{elements: c.Elements, chains: c.Chains, rules: c.Rules} {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(n))
		}
	}}
}
