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

// verbose is the lowest -v at which the log has every sync, as in kube-proxy.
const verbose = 2

// newLogger makes a logger that writes text to a terminal and JSON elsewhere. Below
// verbose it bounds the lines of each message. It is client-go's logger as well.
func newLogger(w io.Writer, verbosity int) *slog.Logger {
	level := slog.LevelInfo
	if verbosity >= verbose {
		level = slog.LevelDebug
	}
	var handler slog.Handler = slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		handler = tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: time.TimeOnly + ".000"})
	}
	if verbosity < verbose {
		handler = newBoundedHandler(handler)
	}
	log := slog.New(handler)
	klog.SetSlogLogger(slog.New(clientHandler{log.Handler()}).With("from", "client-go"))
	return log
}
