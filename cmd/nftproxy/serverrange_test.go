package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	apiversion "k8s.io/apimachinery/pkg/version"

	"nftproxy/daemon/metrics"
	"nftproxy/look/preflight"
)

// TestServerRange: what check says of API servers.
func TestServerRange(t *testing.T) {
	for minor, want := range map[string]struct {
		level preflight.Level
		words []string
	}{
		"28":   {preflight.Yellow, []string{"1.29 to 1.37"}},
		"29":   {preflight.Green, []string{"headless", "ServiceCIDRs"}},
		"30+":  {preflight.Green, []string{"headless", "ServiceCIDRs"}},
		"31":   {preflight.Green, []string{"ServiceCIDRs"}},
		"33":   {preflight.Green, nil},
		"38":   {preflight.Green, nil},
		"none": {preflight.Yellow, []string{"1.29 to 1.37"}},
	} {
		f := findingOf(apiversion.Info{Major: "1", Minor: minor, GitVersion: "v1." + minor + ".4"})
		if f.Level != want.level || (f.Do == "") != (f.Level == preflight.Green) || !strings.Contains(f.Found, "v1."+minor+".4") {
			t.Errorf("1.%s: %+v", minor, f)
		}
		for _, word := range want.words {
			if !strings.Contains(f.Found, word) {
				t.Errorf("1.%s: %q does not say %q", minor, f.Found, word)
			}
		}
		if len(want.words) == 0 && f.Found != "v1."+minor+".4" {
			t.Errorf("1.%s: %q", minor, f.Found)
		}
	}
}

// TestServerOutside: /readyz has a note of an API server that is too old, and the log one warning.
func TestServerOutside(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(apiversion.Info{Major: "1", Minor: "27", GitVersion: "v1.27.9"})
	}))
	defer server.Close()
	o := sourceOptions{master: server.URL}
	if f := serverFinding(t.Context(), &o); f.Level != preflight.Yellow || !strings.Contains(f.Found, "v1.27.9") {
		t.Errorf("check says %+v", f)
	}
	_, client, _, err := o.client()
	if err != nil {
		t.Fatal(err)
	}
	log := make(lines, 10)
	d := &daemon{log: slog.New(slog.NewTextHandler(log, nil))}
	var note atomic.Value
	note.Store("")
	go func() { _ = d.followServerVersion(t.Context(), client, metrics.New(prometheus.NewRegistry()), &note) }()
	if line := <-log; !strings.Contains(line, "level=WARN") || !strings.Contains(line, "v1.27.9") {
		t.Errorf("the log has %q", line)
	}
	if got := note.Load().(string); !strings.Contains(got, "v1.27.9") {
		t.Errorf("the note is %q", got)
	}
	server.Close()
	if f := serverFinding(t.Context(), &o); f.Level != preflight.Red {
		t.Errorf("check of an API server that is away says %+v", f)
	}
	if f := serverFinding(t.Context(), &sourceOptions{kubeconfig: os.DevNull}); f.Level != preflight.Red {
		t.Errorf("check of no kubeconfig says %+v", f)
	}
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
