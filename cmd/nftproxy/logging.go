package main

import (
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/lmittmann/tint"
	"golang.org/x/term"
	"k8s.io/klog/v2"
)

// verbose is the -v from which on every sync is logged, as with kube-proxy.
const verbose = 2

// newLogger writes for people on a terminal and JSON elsewhere. What client-go
// has to say goes the same way.
func newLogger(w io.Writer, verbosity int) *slog.Logger {
	level := slog.LevelInfo
	if verbosity >= verbose {
		level = slog.LevelDebug
	}
	var handler slog.Handler = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		handler = tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly + ".000"})
	}
	log := slog.New(handler)
	klog.SetSlogLogger(log.With("from", "client-go"))
	return log
}
