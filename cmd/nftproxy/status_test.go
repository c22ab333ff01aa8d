package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"nftproxy/look/nodestatus"
	"nftproxy/test/lib/testnet"
)

// TestStatus: status says of a running nftproxy what it serves, whose objects have mistakes, and that all is well;
// it finds the server by the flags of the process; without one it cannot tell.
func TestStatus(t *testing.T) {
	ns := testnet.NamespaceForTest(t, "status")
	const address = "127.0.0.1:10249"
	r := start(t, ns, "--nftproxy-manifests", manifest(t, mistakenManifest), "--metrics-bind-address", address)
	r.awaitSyncAndServer(address)
	like := []string{"--like", strconv.Itoa(r.cmd.Process.Pid)}
	stdout, stderr, code := runIn(t, ns, append([]string{"status"}, like...)...)
	for _, want := range []string{"node-1", "in force, last written or confirmed", "2 Services with 1 endpoints",
		"default/web: problems"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q", want)
		}
	}
	if code != 0 || t.Failed() {
		t.Errorf("exit status %d: %s\n%s", code, stderr, stdout)
	}
	stdout, stderr, code = runIn(t, ns, "status", "-o", "json", "--address", address)
	var s nodestatus.Status
	if err := json.Unmarshal([]byte(stdout), &s); err != nil || code != 0 || s.Services != 2 || !s.Ready ||
		s.TroubledCount != 1 || len(s.Configuration) == 0 || s.LastSync.Written == 0 {
		t.Errorf("exit status %d, %v: %s\n%s", code, err, stderr, stdout)
	}
	if stdout, stderr, code := runIn(t, ns, append([]string{"status", "--raw", "/metrics"}, like...)...); code != 0 ||
		!strings.Contains(stdout, "nftproxy_build_info") && !strings.Contains(stdout, "# TYPE nftproxy_") {
		t.Errorf("--raw: exit status %d: %s\n%.200s", code, stderr, stdout)
	}
	args := append([]string{"explain", "10.96.0.10:80", "--from", "203.0.113.1"}, like...)
	if stdout, stderr, code := runIn(t, ns, args...); code != 0 ||
		!strings.Contains(stdout, "did you mean nftproxy.io/balance?") {
		t.Errorf("explain --like: exit status %d: %s\n%s", code, stderr, stdout)
	}
	r.end()
	if _, stderr, code := runIn(t, ns, "status", "--address", address); code != 2 ||
		!strings.Contains(stderr, "nftproxy does not answer") {
		t.Errorf("without a process: exit status %d: %s", code, stderr)
	}
}

// TestStatusServers: what servers answer that do not give a status at once.
func TestStatusServers(t *testing.T) {
	for name, c := range map[string]struct {
		answer func(n int, w http.ResponseWriter)
		want   string
		code   int
	}{
		"busy at first": {func(n int, w http.ResponseWriter) {
			if n == 1 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			fmt.Fprint(w, `{"node":"node-7","ready":true,"healthy":true}`)
		}, "node-7", 0},
		"a fault": {func(_ int, w http.ResponseWriter) {
			fmt.Fprint(w, `{"node":"node-7","ready":true,"healthy":true,"faults":["kube-proxy runs beside nftproxy"]}`)
		}, "Wrong", 1},
		"nothing":          {func(_ int, w http.ResponseWriter) { fmt.Fprint(w, "null") }, "has no status", 2},
		"an older version": {func(_ int, w http.ResponseWriter) { fmt.Fprint(w, "<!DOCTYPE html>") }, "has no status", 2},
		"a refusal": {func(_ int, w http.ResponseWriter) {
			w.WriteHeader(http.StatusMisdirectedRequest)
			fmt.Fprint(w, `{"error":"Unknown host name"}`)
		}, "Unknown host name", 2},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked++
				c.answer(asked, w)
			}))
			defer server.Close()
			var out, errs strings.Builder
			code := execute(t.Context(), []string{"status", "--address", server.Listener.Addr().String()}, &out, &errs)
			if code != c.code || !strings.Contains(out.String()+errs.String(), c.want) {
				t.Errorf("exit status %d: %s%s", code, out.String(), errs.String())
			}
		})
	}
}
