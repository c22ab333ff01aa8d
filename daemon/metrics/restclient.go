package metrics

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
		TransportCAReloads: reloadCounter{c}, TransportCertRotationGCCalls: rotationCounter{c},
		TransportCacheGCCalls: wordCounter{c.cacheGCs},
	}
}

func newRestClient(r prometheus.Registerer) *restClient {
	f, c := newFactory(r), &restClient{}
	minute := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	sizes := []float64{64, 256, 512, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216}
	c.duration = f.histograms("rest_client_request_duration_seconds", []string{"verb", "host"}, minute,
		"[ALPHA] Request latency in seconds. Broken down by verb, and host.")
	c.requestSize = f.histograms("rest_client_request_size_bytes", []string{"verb", "host"}, sizes,
		"[ALPHA] Request size in bytes. Broken down by verb and host.")
	c.responseSize = f.histograms("rest_client_response_size_bytes", []string{"verb", "host"}, sizes,
		"[ALPHA] Response size in bytes. Broken down by verb and host.")
	c.limiter = f.histograms("rest_client_rate_limiter_duration_seconds", []string{"verb", "host"}, minute,
		"[ALPHA] Client side rate limiter latency in seconds. Broken down by verb, and host.")
	c.requests = f.counters("rest_client_requests_total", []string{"code", "method", "host"},
		"[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.")
	c.retries = f.counters("rest_client_request_retries_total", []string{"code", "verb", "host"},
		"[ALPHA] Number of request retries, partitioned by status code, verb, and host.")
	c.pluginCalls = f.counters("rest_client_exec_plugin_call_total", []string{"code", "call_status"},
		"[ALPHA] Number of calls to an exec plugin, partitioned by the type of event encountered (no_error, "+
			"plugin_execution_error, plugin_not_found_error, client_internal_error) and an optional exit code. The exit code "+
			"will be set to 0 if and only if the plugin call was successful.")
	c.rotationAge = f.histogram("rest_client_exec_plugin_certificate_rotation_age", []float64{600, 1800, 3600, 14400,
		86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000},
		"[ALPHA] Histogram of the number of seconds the last auth exec plugin client certificate lived before being "+
			"rotated. If auth exec plugin client certificates are unused, histogram will contain no data.")
	f.gaugeFunc("rest_client_exec_plugin_ttl_seconds",
		"[ALPHA] Gauge of the shortest TTL (time-to-live) of the client certificate(s) managed by the auth exec plugin. "+
			"The value is in seconds until certificate expiry (negative if already expired). If auth exec plugins are unused "+
			"or manage no TLS certificates, the value will be +INF.",
		c.secondsLeft)
	c.cacheEntries = f.gauge("rest_client_transport_cache_entries", "[ALPHA] Number of transport entries in the "+
		"internal cache.")
	c.cacheCalls = f.counters("rest_client_transport_create_calls_total", []string{"result"}, "[ALPHA] Number of calls "+
		"to get a new transport, partitioned by the result of the operation hit: obtained from the cache, miss: created "+
		"and added to the cache, miss-gc: recreated and added back to the cache after being garbage collected, "+
		"uncacheable: created and not cached")
	c.caReloads = f.counters("rest_client_transport_ca_reload_total", []string{"result", "reason"},
		"[ALPHA] Number of times a CA reload is attempted, partitioned by the result and reason for the reload attempt")
	c.rotationGCs = f.counter("rest_client_transport_cert_rotation_gc_calls_total", "[ALPHA] Number of times a cert "+
		"rotation goroutine cancel func is called via GC cleanup of the associated transport")
	c.cacheGCs = f.counters("rest_client_transport_cache_gc_calls_total", []string{"result"}, "[ALPHA] Number of times "+
		"a GC cleanup attempts to delete a transport cache entry, partitioned by the result: deleted, skipped")
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
