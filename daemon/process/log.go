package process

import (
	"context"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
	"k8s.io/klog/v2"
)

// verbose is the lowest -v at which the log has every sync, as in kube-proxy.
const verbose = 2

// The formats of the log. The zero value is for text on a terminal and JSON elsewhere.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// NewLogger makes a logger that writes in a format. Below verbose it bounds the lines of each message. It is
// client-go's logger as well. The function that it returns changes the verbosity, at any time.
func NewLogger(w io.Writer, format string, verbosity int) (*slog.Logger, func(verbosity int)) {
	level := new(slog.LevelVar)
	bounded := newBoundedHandler(newHandler(w, format, level), logBurst, logPeriod)
	client := newBoundedHandler(bounded, clientBurst, clientPeriod)
	set := func(verbosity int) {
		bounded.bounds.off.Store(verbosity >= verbose)
		client.bounds.off.Store(verbosity >= verbose)
		if level.Set(slog.LevelInfo); verbosity >= verbose {
			level.Set(slog.LevelDebug)
		}
	}
	set(verbosity)
	log := slog.New(bounded)
	klog.SetSlogLogger(slog.New(clientHandler{client}).With("from", "client-go"))
	return log, set
}

// newHandler makes the handler of a format. Text has the whole time and no colours where nobody reads along.
func newHandler(w io.Writer, format string, level slog.Leveler) slog.Handler {
	f, ok := w.(*os.File)
	terminal := ok && term.IsTerminal(int(f.Fd()))
	switch {
	case format == FormatJSON || format == "" && !terminal:
		return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: durationAsText})
	case terminal:
		return tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly + ".000"})
	}
	return tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "2006-01-02T15:04:05.000Z07:00", NoColor: true})
}

// durationAsText has a duration in the JSON log say its unit, as in kube-proxy's. On its own, slog writes nanoseconds.
func durationAsText(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

// clientHandler passes on client-go's messages, warnings and errors, but not its details:
// klog's V(1) and above become slog's debug level. At each start client-go has a line of
// detail for each of its feature gates. Nothing in them is about this node.
type clientHandler struct{ slog.Handler }

// Enabled is part of slog.Handler.
func (h clientHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && h.Handler.Enabled(ctx, level)
}

// WithAttrs is part of slog.Handler.
func (h clientHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return clientHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup is part of slog.Handler.
func (h clientHandler) WithGroup(name string) slog.Handler {
	return clientHandler{h.Handler.WithGroup(name)}
}

// SetOOMScoreAdj asks the kernel for a score, if there is one. Without CAP_SYS_RESOURCE, which LimitPrivileges gives
// up, the kernel refuses one that is lower than the present score (proc(5)): the proxy works all the same.
func SetOOMScoreAdj(score string, log *slog.Logger) {
	if score == "" {
		return
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0); err != nil {
		log.Warn("the kernel refused --oom-score-adj; going on without", "score", score, "err", err)
	}
}
