package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// factory makes metrics and registers them. Those in the plural have labels.
type factory struct{ promauto.Factory }

func newFactory(r prometheus.Registerer) factory { return factory{promauto.With(r)} }

func (f factory) counter(name, help string) prometheus.Counter {
	return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func (f factory) counters(name string, labels []string, help string) *prometheus.CounterVec {
	return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

func (f factory) gauge(name, help string) prometheus.Gauge {
	return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func (f factory) gauges(name string, labels []string, help string) *prometheus.GaugeVec {
	return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func (f factory) gaugeFunc(name, help string, value func() float64) {
	f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
}

func (f factory) counterFunc(name, help string, value func() float64) {
	f.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value)
}

func (f factory) histogram(name string, buckets []float64, help string) prometheus.Histogram {
	return f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}

func (f factory) histograms(name string, labels []string, buckets []float64, help string) *prometheus.HistogramVec {
	return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

// collector collects metrics when Prometheus asks.
type collector struct {
	descs   []*prometheus.Desc
	collect func(out chan<- prometheus.Metric)
}

// Describe is part of prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		out <- d
	}
}

// Collect is part of prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) { c.collect(out) }
