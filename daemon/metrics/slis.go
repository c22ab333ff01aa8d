package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
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
	f := promauto.With(s.registry)
	s.last = f.NewGaugeVec(prometheus.GaugeOpts{Name: "kubernetes_healthcheck", Help: "[STABLE] This metric records the result of a single healthcheck."}, []string{"name", "type"})
	s.total = f.NewCounterVec(prometheus.CounterOpts{Name: "kubernetes_healthchecks_total", Help: "[STABLE] This metric records the results of all healthcheck."}, []string{"name", "type", "status"})
	start := f.NewGauge(prometheus.GaugeOpts{Name: "process_start_time_seconds", Help: "[ALPHA] Start time of the process since unix epoch in seconds."})
	start.Set(seconds(time.Now()))
	return s
}

// Observe counts the result of a check. The kind is healthz, livez or readyz.
func (s *SLIs) Observe(name, kind string, passed bool) {
	status, value := "error", 0.0
	if passed {
		status, value = "success", 1
	}
	s.last.WithLabelValues(name, kind).Set(value)
	s.total.WithLabelValues(name, kind, status).Inc()
}

// Gatherer returns the registry.
func (s *SLIs) Gatherer() prometheus.Gatherer { return s.registry }

// Reset forgets all results.
func (s *SLIs) Reset() {
	s.last.Reset()
	s.total.Reset()
}
