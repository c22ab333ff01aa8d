package daemon

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	apiversion "k8s.io/apimachinery/pkg/version"

	"nftproxy/daemon/metrics"
	"nftproxy/watch"
)

// TestServerOutside: /readyz has a note of an API server that is too old, and the log one warning.
func TestServerOutside(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(apiversion.Info{Major: "1", Minor: "27", GitVersion: "v1.27.9"})
	}))
	defer server.Close()
	from := watch.Source{Master: server.URL}
	source, err := from.Connect()
	if err != nil {
		t.Fatal(err)
	}
	log := make(lines, 10)
	s := &serverVersion{reporter: reporter{log: slog.New(slog.NewTextHandler(log, nil))}, client: source.Client,
		counts: metrics.New(prometheus.NewRegistry())}
	go func() { _ = s.follow(t.Context()) }()
	if line := <-log; !strings.Contains(line, "level=WARN") || !strings.Contains(line, "v1.27.9") {
		t.Errorf("the log has %q", line)
	}
	if got := s.note(); !strings.Contains(got, "v1.27.9") {
		t.Errorf("the note is %q", got)
	}
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}
