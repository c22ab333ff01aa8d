package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// SLIs are the results of health checks, as the components of Kubernetes serve them under
// /metrics/slis (KEP-3466). They have a registry of their own, as there.
type SLIs struct {
	registry *prometheus.Registry
	last     *prometheus.GaugeVec
	total    *prometheus.CounterVec
}

// NewSLIs makes them for a process that starts now.
func NewSLIs() *SLIs {
	s := &SLIs{registry: prometheus.NewRegistry()}
	f := newFactory(s.registry)
	s.last = f.gauges("kubernetes_healthcheck", []string{"name", "type"}, "[STABLE] This metric records the result of a "+
		"single healthcheck.")
	s.total = f.counters("kubernetes_healthchecks_total", []string{"name", "type", "status"},
		"[STABLE] This metric records the results of all healthcheck.")
	start := f.gauge("process_start_time_seconds", "[ALPHA] Start time of the process since unix epoch in seconds.")
	start.Set(seconds(time.Now()))
	return s
}

// Observe counts the result of a check. The kind is healthz, livez or readyz.
func (s *SLIs) Observe(name, kind string, passed bool) {
	status := "error"
	if passed {
		status = "success"
	}
	s.last.WithLabelValues(name, kind).Set(one(passed))
	s.total.WithLabelValues(name, kind, status).Inc()
}

// Gatherer returns the registry.
func (s *SLIs) Gatherer() prometheus.Gatherer { return s.registry }

// Reset forgets all results.
func (s *SLIs) Reset() {
	s.last.Reset()
	s.total.Reset()
}
