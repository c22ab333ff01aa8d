package health_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"nftproxy/daemon/health"
	"nftproxy/daemon/proxy"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
	"nftproxy/nft"
	"nftproxy/test/gen"
)

// answer is the answer that a client gets.
type answer struct {
	Code int
	Body string
}

func get(h http.Handler, path string) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return answer{w.Code, strings.TrimSpace(w.Body.String())}
}

// codes are the answers of /healthz, /livez and /readyz.
type codes struct{ Healthz, Livez, Readyz int }

func ask(h *health.Health) codes {
	handler := h.Handler()
	return codes{get(handler, "/healthz").Code, get(handler, "/livez").Code, get(handler, "/readyz").Code}
}

func wantCodes(t *testing.T, when string, h *health.Health, want codes) {
	t.Helper()
	if diff := cmp.Diff(want, ask(h)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

func synced() proxy.Sync { return proxy.Sync{Since: time.Now(), Start: time.Now()} }

// failed is a sync with an error and a Service of each family.
func failed(since time.Time, err error) proxy.Sync {
	b := snapshots.NewBuilder(gen.PlainNode())
	b.Set(&service.Service{Name: "default/web", ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"),
		netip.MustParseAddr("fd00:96::1")}})
	return proxy.Sync{Snapshot: b.Snapshot(), Since: since, Start: time.Now(), Err: err}
}

var errNo = errors.New("no")

// newHealth fills in what a test does not ask for.
func newHealth(c health.Config) *health.Health {
	if c.Busy == nil {
		c.Busy = func() time.Time { return time.Time{} }
	}
	if c.Awaiting == nil {
		c.Awaiting = func() []string { return nil }
	}
	if c.Note == nil {
		c.Note = func() string { return "" }
	}
	if c.Answered == nil {
		c.Answered = func(string, int) {}
	}
	return health.New(c)
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(health.Config{})
		wantCodes(t, "at the start", h, codes{200, 200, 503})
		time.Sleep(time.Hour)
		wantCodes(t, "with nothing to do", h, codes{200, 200, 503})
		h.Observe(synced())
		wantCodes(t, "after a sync", h, codes{200, 200, 200})
		time.Sleep(time.Hour)
		wantCodes(t, "after a rest", h, codes{200, 200, 200})

		since := time.Now()
		h.Observe(failed(since, errNo))
		wantCodes(t, "after a failure", h, codes{200, 200, 200})
		time.Sleep(health.Limit - time.Second)
		// Neither later changes nor retries start the clock again.
		h.Observe(failed(time.Now(), errNo))
		wantCodes(t, "just below the limit", h, codes{200, 200, 200})
		time.Sleep(time.Second)
		wantCodes(t, "at the limit", h, codes{503, 503, 200})
		h.Observe(failed(since, errNo))
		wantCodes(t, "after one more failure", h, codes{503, 503, 200})
		h.Observe(synced())
		wantCodes(t, "after a repair", h, codes{200, 200, 200})
	})
}

// TestFirstSyncNeverSucceeds: the proxy is not healthy then; kube-proxy would stay so
// for ever.
func TestFirstSyncNeverSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(health.Config{})
		since := time.Now()
		for range 10 {
			h.Observe(failed(since, errNo))
			wantCodes(t, "below the limit", h, codes{200, 200, 503})
			time.Sleep(health.Limit / 10)
		}
		wantCodes(t, "at the limit", h, codes{503, 503, 503})
	})
}

// TestHang: a sync that does not end is never observed, but the proxy is not healthy.
func TestHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy time.Time
		h := newHealth(health.Config{Busy: func() time.Time { return busy }})
		busy = time.Now()
		time.Sleep(health.Limit - time.Nanosecond)
		wantCodes(t, "below the limit", h, codes{200, 200, 503})
		time.Sleep(time.Nanosecond)
		wantCodes(t, "at the limit", h, codes{503, 503, 503})
		busy = time.Time{}
		wantCodes(t, "when it has ended", h, codes{200, 200, 503})
	})
}

// TestFailureWithoutChange: no change waits for a sync that only removes idle chains.
// Its failure counts from its start.
func TestFailureWithoutChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(health.Config{})
		h.Observe(synced())
		h.Observe(failed(time.Time{}, errNo))
		wantCodes(t, "after the failure", h, codes{200, 200, 200})
		time.Sleep(health.Limit)
		wantCodes(t, "at the limit", h, codes{503, 503, 200})
	})
}

// TestFamilies: one family can fail alone, and the body says which.
func TestFamilies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(health.Config{})
		first := time.Now().UTC()
		h.Observe(failed(first, proxy.FamilyErrors{nft.IPv6: errNo}))
		wantCodes(t, "after the failure", h, codes{200, 200, 503})
		time.Sleep(health.Limit)
		second := time.Now().UTC()
		h.Observe(failed(first, proxy.FamilyErrors{nft.IPv6: errNo}))
		time.Sleep(time.Second)
		now := time.Now().UTC()
		want := health.Status{
			LastUpdated: second, CurrentTime: now,
			Status: map[string]health.FamilyStatus{"IPv4": {second, true}, "IPv6": {time.Time{}, false}},
		}
		for _, path := range []string{"/healthz", "/livez"} {
			a := get(h.Handler(), path)
			var got health.Status
			if err := json.Unmarshal([]byte(a.Body), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" || a.Code != 503 {
				t.Errorf("%s is %d (-want +got):\n%s", path, a.Code, diff)
			}
		}
	})
}

// TestReadySaysWhy: /readyz names the families in which no program has been in force
// yet, with the reason.
func TestReadySaysWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(health.Config{})
		handler := h.Handler()
		want := func(when string, want answer) {
			t.Helper()
			if diff := cmp.Diff(want, get(handler, "/readyz")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		const notYet = ": the first complete rules are not in the kernel yet"
		want("before the first sync", answer{503, "IPv4" + notYet + "\nIPv6" + notYet})
		h.Observe(failed(time.Now(), errNo))
		want("after a failure", answer{503, "IPv4" + notYet + ": no\nIPv6" + notYet + ": no"})
		h.Observe(failed(time.Now(), proxy.FamilyErrors{nft.IPv6: errNo}))
		want("with IPv4", answer{503, "IPv6" + notYet + ": no"})
		h.Observe(failed(time.Now(), proxy.FamilyErrors{nft.IPv4: errNo}))
		want("when each has been in force", answer{200, "ok"})
	})
}

// TestReadySaysWhatIsAwaited: before the first program, /readyz says what the proxy
// waits for.
func TestReadySaysWhatIsAwaited(t *testing.T) {
	h := newHealth(health.Config{Awaiting: func() []string { return []string{"EndpointSlices", "Node node-1"} }})
	const line = ": the first complete rules are not in the kernel yet: waiting for EndpointSlices, Node node-1"
	if diff := cmp.Diff(answer{503, "IPv4" + line + "\nIPv6" + line}, get(h.Handler(), "/readyz")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNeedlessFamily: a family without Services may fail; one with Services may not.
func TestNeedlessFamily(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth(health.Config{})
		s := failed(time.Now(), proxy.FamilyErrors{nft.IPv6: errNo})
		b := snapshots.NewBuilder(gen.PlainNode())
		b.Set(gen.UniformService(0, 1))
		s.Snapshot = b.Snapshot()
		h.Observe(s)
		wantCodes(t, "at the start", h, codes{200, 200, 200})
		time.Sleep(time.Hour)
		h.Observe(s)
		wantCodes(t, "for long", h, codes{200, 200, 200})
		h.Observe(failed(time.Now(), s.Err))
		wantCodes(t, "with a service of the family", h, codes{200, 200, 503})
		time.Sleep(health.Limit)
		wantCodes(t, "a while later", h, codes{503, 503, 503})
	})
}

// TestBody has the exact text, since load balancers and scripts read it.
func TestBody(t *testing.T) {
	const families = `"status":{"IPv4":{"lastUpdated":"2000-01-01T00:00:00Z","healthy":true},` +
		`"IPv6":{"lastUpdated":"2000-01-01T00:00:00Z","healthy":true}}}`
	eligible := func(is bool) health.Config { return health.Config{NodeEligible: func() bool { return is }} }
	for name, c := range map[string]struct {
		config health.Config
		path   string
		want   answer
	}{
		"node unknown": {
			health.Config{}, "/healthz",
			answer{200, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","healthy":true,` + families},
		},
		"eligible": {
			eligible(true), "/healthz",
			answer{200,
				`{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","nodeEligible":true,"healthy":true,` +
					families},
		},
		"not eligible": {
			eligible(false), "/healthz",
			answer{503,
				`{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:01:00Z","nodeEligible":false,"healthy":true,` +
					families},
		},
		"not eligible, but alive": {
			eligible(false), "/livez",
			answer{200, `{"lastUpdated":"2000-01-01T00:01:00Z","currentTime":"2000-01-01T00:01:00Z","healthy":true,` + families},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // The clock of the bubble starts in 2000.
				h := newHealth(c.config)
				h.Observe(synced())
				time.Sleep(time.Minute)
				if diff := cmp.Diff(c.want, get(h.Handler(), c.path)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestHeaders(t *testing.T) {
	h := newHealth(health.Config{}).Handler()
	for path, want := range map[string]string{
		"/healthz": "application/json", "/livez": "application/json", "/readyz": "text/plain; charset=utf-8",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		if got := w.Header().Get("Content-Type"); got != want {
			t.Errorf("%s: Content-Type %q, want %q", path, got, want)
		}
		if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
			t.Errorf("%s: X-Content-Type-Options %q", path, got)
		}
		// Without it `cleanup --kube-proxy` takes the server for one of kube-proxy's.
		if got := w.Header().Get("Server"); got != "nftproxy" {
			t.Errorf("%s: Server %q", path, got)
		}
	}
}

func TestAnswered(t *testing.T) {
	var got []answer
	h := newHealth(health.Config{Answered: func(path string, code int) {
		got = append(got, answer{code, path})
	}}).Handler()
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/other"} {
		get(h, path)
	}
	want := []answer{{200, "/healthz"}, {200, "/livez"}, {503, "/readyz"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

func TestMetricsHandler(t *testing.T) {
	r := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "things_total", Help: "Things."})
	r.MustRegister(c)
	c.Add(3)
	slis := prometheus.NewRegistry()
	checks := prometheus.NewCounter(prometheus.CounterOpts{Name: "checks_total", Help: "Checks."})
	slis.MustRegister(checks)
	var checked []string
	resets := 0
	h, paths := health.MetricsHandler(health.Pages{
		Metrics: r, SLIs: slis, ResetSLIs: func() { resets++ },
		Checked: func(name, kind string, passed bool) {
			checked = append(checked, fmt.Sprint(name, " ", kind, " ", passed))
		},
	})
	slices.Sort(paths)
	if want := []string{"/healthz", "/healthz/ping", "/metrics", "/metrics/slis", "/proxyMode"}; !slices.Equal(paths,
		want) {
		t.Errorf("paths %v, want %v", paths, want)
	}
	for path, want := range map[string]answer{
		"/metrics/slis":    {200, "# HELP checks_total Checks.\n# TYPE checks_total counter\nchecks_total 0"},
		"/healthz/ping":    {200, "ok"},
		"/healthz?verbose": {200, "[+]ping ok\nhealthz check passed"},
		"/metrics":         {200, "# HELP things_total Things.\n# TYPE things_total counter\nthings_total 3"},
		"/healthz":         {200, "ok"},
		"/proxyMode":       {200, "nftables"},
		"/other":           {404, "404 page not found"},
	} {
		if diff := cmp.Diff(want, get(h, path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if want := []string{"ping healthz true", "ping healthz true"}; !slices.Equal(checked, want) {
		t.Errorf("checked %v, want %v", checked, want)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodDelete, "/metrics/slis", nil))
	if w.Code != 200 || w.Body.String() != "metrics reset\n" || resets != 1 {
		t.Errorf("DELETE: %d %q, %d resets", w.Code, w.Body, resets)
	}
}
