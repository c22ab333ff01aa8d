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

// NewLogger makes a logger that writes text to a terminal and JSON elsewhere. Below
// verbose it bounds the lines of each message. It is client-go's logger as well. The
// function that it returns changes the verbosity, at any time.
func NewLogger(w io.Writer, verbosity int) (*slog.Logger, func(verbosity int)) {
	level := new(slog.LevelVar)
	var handler slog.Handler = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		handler = tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly + ".000"})
	}
	bounded := newBoundedHandler(handler, logBurst, logPeriod)
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

// SetOOMScoreAdj asks the kernel for a score, if there is one. Without CAP_SYS_RESOURCE, which
// LimitPrivileges gives up, the kernel refuses one that is lower than the present
// score (proc(5)): the proxy works all the same.
func SetOOMScoreAdj(score string, log *slog.Logger) {
	if score == "" {
		return
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(score), 0); err != nil {
		log.Warn("the kernel refused --oom-score-adj; going on without", "score", score, "err", err)
	}
}
