package metrics

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// FollowRequests counts the requests to the API server in the registry. client-go calls
// one listener in a process: a second call has no effect.
func FollowRequests(r prometheus.Registerer) { clientmetrics.Register(requestListeners(r)) }

// requestListeners makes the metrics of client-go, with the names that every component of
// Kubernetes gives them (k8s.io/component-base/metrics/prometheus/restclient, which is
// not used because it registers in a registry of the package).
func requestListeners(r prometheus.Registerer) clientmetrics.RegisterOpts {
	f := newFactory(r)
	minute := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	sizes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	expiry := new(certificateExpiry)
	f.gaugeFunc("rest_client_exec_plugin_ttl_seconds",
		"[ALPHA] Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec plugin. "+
			"The value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are unused "+
			"or manage no TLS certificates, the value will be +INF.",
		expiry.secondsLeft)
	return clientmetrics.RegisterOpts{
		ClientCertExpiry: expiry,
		ClientCertRotationAge: ageObserver{f.histogram("rest_client_exec_plugin_certificate_rotation_age",
			[]float64{600, 1800, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000},
			"[ALPHA] Histogram of the number of seconds the last auth exec plugin client certificate lived before being "+
				"rotated. If auth exec plugin client certificates are unused, histogram will contain no data.")},
		RequestLatency: latencyObserver{f.histograms("rest_client_request_duration_seconds", []string{"verb", "host"}, minute,
			"[ALPHA] Request latency in seconds. Broken down by verb, and host.")},
		RequestSize: sizeObserver{f.histograms("rest_client_request_size_bytes", []string{"verb", "host"}, sizes,
			"[ALPHA] Request size in bytes. Broken down by verb and host.")},
		ResponseSize: sizeObserver{f.histograms("rest_client_response_size_bytes", []string{"verb", "host"}, sizes,
			"[ALPHA] Response size in bytes. Broken down by verb and host.")},
		RateLimiterLatency: latencyObserver{f.histograms("rest_client_rate_limiter_duration_seconds",
			[]string{"verb", "host"}, minute,
			"[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.")},
		RequestResult: requestCounter{f.counters("rest_client_requests_total", []string{"code", "method", "host"},
			"[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.")},
		RequestRetry: requestCounter{f.counters("rest_client_request_retries_total", []string{"code", "verb", "host"},
			"[ALPHA] Number of request retries, partitioned by status code, verb, and host.")},
		ExecPluginCalls: pluginCounter{f.counters("rest_client_exec_plugin_call_total", []string{"code", "call_status"},
			"[ALPHA] Number of calls to an exec plugin, partitioned by the type of event encountered (no_error, "+
				"plugin_execution_error, plugin_not_found_error, client_internal_error) and an optional exit code. The exit code "+
				"will be set to 0 if and only if the plugin call was successful.")},
		TransportCacheEntries: entriesSetter{f.gauge("rest_client_transport_cache_entries", "[ALPHA] Number of transport "+
			"entries in the internal cache.")},
		TransportCreateCalls: wordCounter{f.counters("rest_client_transport_create_calls_total", []string{"result"},
			"[ALPHA] Number of calls to get a new transport, partitioned by the result of the operation hit: obtained from "+
				"the cache, miss: created and added to the cache, miss-gc: recreated and added back to the cache after being "+
				"garbage collected, uncacheable: created and not cached")},
		TransportCAReloads: reloadCounter{f.counters("rest_client_transport_ca_reload_total", []string{"result", "reason"},
			"[ALPHA] Number of times a CA reload is attempted, partitioned by the result and reason for the reload attempt")},
		TransportCertRotationGCCalls: rotationCounter{f.counter("rest_client_transport_cert_rotation_gc_calls_total",
			"[ALPHA] Number of times a cert rotation goroutine cancel func is called via GC cleanup of the associated "+
				"transport")},
		TransportCacheGCCalls: wordCounter{f.counters("rest_client_transport_cache_gc_calls_total", []string{"result"},
			"[ALPHA] Number of times a GC cleanup attempts to delete a transport cache entry, partitioned by the result: "+
				"deleted, skipped")},
	}
}

// The types below are client-go's listeners.

// certificateExpiry is when the certificate of an exec plugin ends, nil for never.
type certificateExpiry struct{ at atomic.Pointer[time.Time] }

func (e *certificateExpiry) Set(at *time.Time) { e.at.Store(at) }

func (e *certificateExpiry) secondsLeft() float64 {
	if at := e.at.Load(); at != nil {
		return time.Until(*at).Seconds()
	}
	return math.Inf(1)
}

type ageObserver struct{ m prometheus.Histogram }

func (o ageObserver) Observe(d time.Duration) { o.m.Observe(d.Seconds()) }

type latencyObserver struct{ m *prometheus.HistogramVec }

func (o latencyObserver) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	o.m.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}

type sizeObserver struct{ m *prometheus.HistogramVec }

func (o sizeObserver) Observe(_ context.Context, verb, host string, size float64) {
	o.m.WithLabelValues(verb, host).Observe(size)
}

type requestCounter struct{ m *prometheus.CounterVec }

func (c requestCounter) Increment(_ context.Context, code, method, host string) {
	c.m.WithLabelValues(code, method, host).Inc()
}

func (c requestCounter) IncrementRetry(ctx context.Context, code, method, host string) {
	c.Increment(ctx, code, method, host)
}

type pluginCounter struct{ m *prometheus.CounterVec }

func (c pluginCounter) Increment(code int, status string) {
	c.m.WithLabelValues(strconv.Itoa(code), status).Inc()
}

type entriesSetter struct{ m prometheus.Gauge }

func (s entriesSetter) Observe(n int) { s.m.Set(float64(n)) }

type wordCounter struct{ m *prometheus.CounterVec }

func (c wordCounter) Increment(result string) { c.m.WithLabelValues(result).Inc() }

type reloadCounter struct{ m *prometheus.CounterVec }

func (c reloadCounter) Increment(result, reason string) { c.m.WithLabelValues(result, reason).Inc() }

type rotationCounter struct{ m prometheus.Counter }

func (c rotationCounter) Increment() { c.m.Inc() }
