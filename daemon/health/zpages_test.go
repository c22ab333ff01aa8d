package health_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"nftproxy/daemon/health"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

func pages(profiling bool, set func(int)) http.Handler {
	mux := http.NewServeMux()
	process := health.ProcessPages{
		Component: "nftproxy", Version: "v1.2.3", Started: time.Now().Add(-time.Hour - 2*time.Minute),
		Flags:         func() map[string]string { return map[string]string{"v": "2", "config": "/etc/x"} },
		Configuration: func() (any, error) { return map[string]string{"kind": "KubeProxyConfiguration"}, nil },
		Group:         "kubeproxy.config.k8s.io", Profiling: profiling, SetVerbosity: set,
	}
	process.Install(mux, "/metrics", "/metrics/slis", "/healthz")
	return mux
}

func request(h http.Handler, method, path, body string, header ...string) *http.Response {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if len(header) > 0 {
		r.Header.Set(header[0], header[1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

const warning = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility " +
	"guarantees and is for debugging purposes only.\n"

func TestPagesAsText(t *testing.T) {
	h := pages(false, nil)
	for path, want := range map[string]string{
		"/configz": `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"}}`,
		"/flagz":   "\nnftproxy flagz\n" + warning + "config=/etc/x\nv=2\n",
	} {
		if diff := cmp.Diff(want, text(t, request(h, "GET", path, ""))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	got := text(t, request(h, "GET", "/statusz", ""))
	for _, want := range []string{
		"\nnftproxy statusz\n" + warning, "\nUp: 1 hr 02 min 0", "\nGo version: " + runtime.Version() + "\n",
		"\nBinary version: v1.2.3\n", "\nPaths: /configz /flagz /healthz /metrics /statusz\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("/statusz lacks %q:\n%s", want, got)
		}
	}
}

// TestNegotiation: the client's first clause that the page has decides.
func TestNegotiation(t *testing.T) {
	h := pages(false, nil)
	const asFlagz = ";v=v1beta1;g=config.k8s.io;as=Flagz"
	for accept, want := range map[string]string{
		"":                           "text/plain; charset=utf-8",
		"*/*":                        "text/plain; charset=utf-8",
		"text/*":                     "text/plain; charset=utf-8",
		"text/plain":                 "text/plain; charset=utf-8",
		"text/html, */*;q=0.8":       "text/plain; charset=utf-8",
		"application/json":           "406",
		"application/*":              "406",
		"text/html":                  "406",
		"*/plain":                    "406",
		"text/plain" + asFlagz:       "406",
		"application/json" + asFlagz: "application/json",
		"application/yaml" + asFlagz: "application/yaml",
		"*/*" + asFlagz:              "application/json",
		"application/json" + asFlagz + ";q=0.1, application/yaml" + asFlagz: "application/yaml",
		"application/json" + asFlagz + ";stream=watch":                      "406",
		"application/json;v=v1alpha1;g=config.k8s.io;as=Flagz":              "application/json deprecated",
		"application/json;v=v1;g=config.k8s.io;as=Flagz":                    "406",
		"application/json;v=v1beta1;g=config.k8s.io;as=Statusz":             "406",
		"application/json;v=v1beta1;g=apps;as=Flagz":                        "406",
		"application/cbor" + asFlagz:                                        "406",
	} {
		r := request(h, "GET", "/flagz", "", "Accept", accept)
		got := r.Header.Get("Content-Type")
		switch {
		case r.StatusCode != http.StatusOK:
			got = fmt.Sprint(r.StatusCode)
		case strings.Contains(r.Header.Get("Warning"), "This version of the flagz endpoint is deprecated"):
			got += " deprecated"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", accept, got, want)
		}
	}
	var status struct {
		Kind, Message, Reason string
		Code                  int
	}
	if err := json.Unmarshal([]byte(text(t, request(h, "GET", "/statusz", "", "Accept", "application/json"))),
		&status); err != nil {
		t.Fatal(err)
	}
	if status.Kind != "Status" || status.Reason != "NotAcceptable" || status.Code != 406 ||
		!strings.Contains(status.Message, "application/json, application/yaml, text/plain") {
		t.Errorf("%+v", status)
	}
}

func TestObjects(t *testing.T) {
	h := pages(false, nil)
	decode := map[string]func([]byte, any) error{
		"application/json": json.Unmarshal, "application/yaml": func(b []byte, v any) error { return yaml.Unmarshal(b, v) },
	}
	for media, unmarshal := range decode {
		for path, kind := range map[string]string{"/flagz": "Flagz", "/statusz": "Statusz"} {
			var got map[string]any
			body := text(t, request(h, "GET", path, "", "Accept", media+";v=v1beta1;g=config.k8s.io;as="+kind))
			if err := unmarshal([]byte(body), &got); err != nil {
				t.Fatal(err)
			}
			want := map[string]any{"kind": kind, "apiVersion": "config.k8s.io/v1beta1",
				"metadata": map[string]any{"name": "nftproxy"}}
			if kind == "Flagz" {
				want["flags"] = map[string]any{"v": "2", "config": "/etc/x"}
			} else {
				started, err := time.Parse(time.RFC3339, fmt.Sprint(got["startTime"]))
				if up, _ := got["uptimeSeconds"].(float64); err != nil || time.Since(started) < time.Hour || up < 3720 {
					t.Errorf("%s: started %v, up %v s", media, got["startTime"], got["uptimeSeconds"])
				}
				delete(got, "startTime")
				delete(got, "uptimeSeconds")
				want["goVersion"], want["binaryVersion"] = runtime.Version(), "v1.2.3"
				want["paths"] = []any{"/configz", "/flagz", "/healthz", "/metrics", "/statusz"}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s as %s (-want +got):\n%s", path, media, diff)
			}
		}
	}
}

// TestDebug: the pages under /debug are off unless asked for.
func TestDebug(t *testing.T) {
	paths := []string{"/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/symbol", "/debug/flags/v",
		"/debug/flags"}
	for _, path := range paths {
		for _, method := range []string{"GET", "PUT"} {
			if r := request(pages(false, nil), method, path, "4"); r.StatusCode != http.StatusNotFound {
				t.Errorf("%s %s: %d without profiling", method, path, r.StatusCode)
			}
		}
	}
	set := -1
	h := pages(true, func(n int) { set = n })
	for path, code := range map[string]int{"/debug/pprof": 302, "/debug/pprof/": 200, "/debug/pprof/heap?debug=1": 200,
		"/debug/pprof/goroutine": 200} {
		if r := request(h, "GET", path, ""); r.StatusCode != code {
			t.Errorf("%s: %d, want %d", path, r.StatusCode, code)
		}
	}
	for _, c := range []struct {
		method, body string
		code         int
		want         string
		set          int
	}{
		{"GET", "", 406, "unsupported http method\n", -1},
		{"PUT", "x", 400, "the verbosity \"x\" is not a number from 0 on\n", -1},
		{"PUT", "-1", 400, "the verbosity \"-1\" is not a number from 0 on\n", -1},
		{"PUT", strings.Repeat("1", 1<<20), 400, "the verbosity \"1111111111\" is not a number from 0 on\n", -1},
		{"PUT", "4", 200, "successfully set verbosity to 4\n", 4},
	} {
		r := request(h, c.method, "/debug/flags/v", c.body)
		if got := text(t, r); r.StatusCode != c.code || got != c.want || set != c.set {
			t.Errorf("%s %.20q: %d %q, set to %d; want %d %q, %d", c.method, c.body, r.StatusCode, got, set, c.code, c.want,
				c.set)
		}
	}
}

func TestConfigurationFails(t *testing.T) {
	mux := http.NewServeMux()
	process := health.ProcessPages{Configuration: func() (any, error) { return nil, errors.New("no such flag") }}
	process.Install(mux)
	if r := request(mux, "GET", "/configz", ""); r.StatusCode != 500 || text(t, r) != "no such flag\n" {
		t.Errorf("%d", r.StatusCode)
	}
}
