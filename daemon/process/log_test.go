package process

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
)

// TestClientLog: the log has client-go's messages, warnings and errors, but no details
// such as its feature gates.
func TestClientLog(t *testing.T) {
	defer klog.ClearLogger()
	var out strings.Builder
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})
	klog.SetSlogLogger(slog.New(clientHandler{handler}).With("from", "client-go"))
	klog.Background().V(1).Info("Feature gate default state", "feature", "WatchListClient")
	klog.Background().WithName("reflector").V(4).Info("Watch closed")
	klog.Background().Info("Waited for long")
	klog.Background().Error(nil, "Cannot watch")
	text := out.String()
	if n := strings.Count(text, "\n"); n != 2 || !strings.Contains(text, "Waited for long") ||
		!strings.Contains(text, `msg="Cannot watch"`) || strings.Count(text, "from=client-go") != 2 {
		t.Errorf("the log has %q, want the message and the error", text)
	}
}

// TestClientLogIsBounded: an API server that refuses each request at once does not fill the
// log with client-go's lines.
func TestClientLogIsBounded(t *testing.T) {
	defer klog.ClearLogger()
	var out strings.Builder
	NewLogger(&out, "", 0)
	for i := range 100 {
		klog.Background().Error(fmt.Errorf("connection refused: timeout=%d", i), "Failed to watch")
	}
	if n := strings.Count(out.String(), "Failed to watch"); n != clientBurst {
		t.Errorf("the log has %d lines of one message, want %d:\n%s", n, clientBurst, out.String())
	}
}

// TestLogFormat: JSON has durations with their unit, as numbers have none. What is no terminal gets JSON, and text
// where it is asked for, with the date and without the terminal's colours.
func TestLogFormat(t *testing.T) {
	defer klog.ClearLogger()
	for format, want := range map[string][]string{
		"":         {`{"time":"`, `"took":"1.5ms"`, `"why":{"lag":"2s"}`, `"from":"3m0s"`},
		FormatJSON: {`{"time":"`, `"took":"1.5ms"`, `"why":{"lag":"2s"}`, `"from":"3m0s"`},
		FormatText: {time.Now().Format("2006-"), "INF", "synced", "took=1.5ms", "why.lag=2s", "from=3m0s"},
	} {
		var out strings.Builder
		log, _ := NewLogger(&out, format, 0)
		log.With("from", 3*time.Minute).Info("synced", "took", 1500*time.Microsecond, slog.Group("why", "lag", 2*time.Second))
		for _, w := range want {
			if !strings.Contains(out.String(), w) {
				t.Errorf("%q: %q lacks %q", format, out.String(), w)
			}
		}
		if strings.Contains(out.String(), "\x1b") || json.Valid([]byte(out.String())) == (format == FormatText) {
			t.Errorf("%q: %q", format, out.String())
		}
	}
}
