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
// verbose it bounds the lines of each message. It is client-go's logger as well. The
// function that it returns changes the verbosity, at any time.
func newLogger(w io.Writer, verbosity int) (*slog.Logger, func(verbosity int)) {
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
