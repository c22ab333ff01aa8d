package metrics

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	clientmetrics "k8s.io/client-go/tools/metrics"
)

// restClient are the metrics of client-go, with the names that every component of
// Kubernetes gives them (k8s.io/component-base/metrics/prometheus/restclient, which is
// not used because it registers in a registry of the package).
type restClient struct {
	duration, limiter               *prometheus.HistogramVec
	requestSize, responseSize       *prometheus.HistogramVec
	requests, retries, pluginCalls  *prometheus.CounterVec
	rotationAge                     prometheus.Histogram
	cacheEntries                    prometheus.Gauge
	cacheCalls, caReloads, cacheGCs *prometheus.CounterVec
	rotationGCs                     prometheus.Counter

	mu     sync.Mutex
	expiry *time.Time
}

// FollowRequests counts the requests to the API server in the registry. client-go calls
// one listener in a process: a second call has no effect.
func FollowRequests(r prometheus.Registerer) {
	clientmetrics.Register(newRestClient(r).listeners())
}

func (c *restClient) listeners() clientmetrics.RegisterOpts {
	return clientmetrics.RegisterOpts{
		ClientCertExpiry: expirySetter{c}, ClientCertRotationAge: ageObserver{c},
		RequestLatency: latencyObserver{c.duration}, RateLimiterLatency: latencyObserver{c.limiter},
		RequestSize: sizeObserver{c.requestSize}, ResponseSize: sizeObserver{c.responseSize},
		RequestResult: resultCounter{c}, RequestRetry: retryCounter{c}, ExecPluginCalls: pluginCounter{c},
		TransportCacheEntries: entriesSetter{c}, TransportCreateCalls: wordCounter{c.cacheCalls},
		TransportCAReloads: reloadCounter{c}, TransportCertRotationGCCalls: rotationCounter{c}, TransportCacheGCCalls: wordCounter{c.cacheGCs},
	}
}

func newRestClient(r prometheus.Registerer) *restClient {
	f, c := promauto.With(r), &restClient{}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	minute := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	sizes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	c.duration = histogram("rest_client_request_duration_seconds", "[ALPHA] Request latency in seconds. Broken down by verb, and host.", minute, "verb", "host")
	c.requestSize = histogram("rest_client_request_size_bytes", "[ALPHA] Request size in bytes. Broken down by verb and host.", sizes, "verb", "host")
	c.responseSize = histogram("rest_client_response_size_bytes", "[ALPHA] Response size in bytes. Broken down by verb and host.", sizes, "verb", "host")
	c.limiter = histogram("rest_client_rate_limiter_duration_seconds", "[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.", minute, "verb", "host")
	c.requests = counter("rest_client_requests_total", "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.", "code", "method", "host")
	c.retries = counter("rest_client_request_retries_total", "[ALPHA] Number of request retries, partitioned by status code, verb, and host.", "code", "verb", "host")
	c.pluginCalls = counter("rest_client_exec_plugin_call_total", "[ALPHA] Number of calls to an exec plugin, partitioned by the type of event encountered (no_error, plugin_execution_error, plugin_not_found_error, client_internal_error) and an optional exit code. The exit code will be set to 0 if and only if the plugin call was successful.", "code", "call_status")
	c.rotationAge = f.NewHistogram(prometheus.HistogramOpts{
		Name:    "rest_client_exec_plugin_certificate_rotation_age",
		Help:    "[ALPHA] Histogram of the number of seconds the last auth exec plugin client certificate lived before being rotated. If auth exec plugin client certificates are unused, histogram will contain no data.",
		Buckets: []float64{600, 1800, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000},
	})
	f.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "rest_client_exec_plugin_ttl_seconds",
		Help: "[ALPHA] Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec plugin. The value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are unused or manage no TLS certificates, the value will be +INF.",
	}, c.secondsLeft)
	c.cacheEntries = f.NewGauge(prometheus.GaugeOpts{Name: "rest_client_transport_cache_entries", Help: "[ALPHA] Number of transport entries in the internal cache."})
	c.cacheCalls = counter("rest_client_transport_create_calls_total", "[ALPHA] Number of calls to get a new transport, partitioned by the result of the operation hit: obtained from the cache, miss: created and added to the cache, miss-gc: recreated and added back to the cache after being garbage collected, uncacheable: created and not cached", "result")
	c.caReloads = counter("rest_client_transport_ca_reload_total", "[ALPHA] Number of times a CA reload is attempted, partitioned by the result and reason for the reload attempt", "result", "reason")
	c.rotationGCs = f.NewCounter(prometheus.CounterOpts{Name: "rest_client_transport_cert_rotation_gc_calls_total", Help: "[ALPHA] Number of times a cert rotation goroutine cancel func is called via GC cleanup of the associated transport"})
	c.cacheGCs = counter("rest_client_transport_cache_gc_calls_total", "[ALPHA] Number of times a GC cleanup attempts to delete a transport cache entry, partitioned by the result: deleted, skipped", "result")
	return c
}

// secondsLeft is the life of the certificate of an exec plugin, or infinite.
func (c *restClient) secondsLeft() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.expiry == nil {
		return math.Inf(1)
	}
	return time.Until(*c.expiry).Seconds()
}

// The types below are client-go's listeners.

type expirySetter struct{ c *restClient }

func (s expirySetter) Set(expiry *time.Time) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.expiry = expiry
}

type ageObserver struct{ c *restClient }

func (o ageObserver) Observe(d time.Duration) { o.c.rotationAge.Observe(d.Seconds()) }

type latencyObserver struct{ m *prometheus.HistogramVec }

func (o latencyObserver) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	o.m.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}

type sizeObserver struct{ m *prometheus.HistogramVec }

func (o sizeObserver) Observe(_ context.Context, verb, host string, size float64) {
	o.m.WithLabelValues(verb, host).Observe(size)
}

type resultCounter struct{ c *restClient }

func (r resultCounter) Increment(_ context.Context, code, method, host string) {
	r.c.requests.WithLabelValues(code, method, host).Inc()
}

type retryCounter struct{ c *restClient }

func (r retryCounter) IncrementRetry(_ context.Context, code, method, host string) {
	r.c.retries.WithLabelValues(code, method, host).Inc()
}

type pluginCounter struct{ c *restClient }

func (p pluginCounter) Increment(code int, status string) {
	p.c.pluginCalls.WithLabelValues(strconv.Itoa(code), status).Inc()
}

type entriesSetter struct{ c *restClient }

func (e entriesSetter) Observe(n int) { e.c.cacheEntries.Set(float64(n)) }

type wordCounter struct{ m *prometheus.CounterVec }

func (w wordCounter) Increment(result string) { w.m.WithLabelValues(result).Inc() }

type reloadCounter struct{ c *restClient }

func (r reloadCounter) Increment(result, reason string) {
	r.c.caReloads.WithLabelValues(result, reason).Inc()
}

type rotationCounter struct{ c *restClient }

func (r rotationCounter) Increment() { r.c.rotationGCs.Inc() }
