package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"nftproxy/bench/result"
)

// recorder keeps what is measured, in memory and on disk, and shows how far it
// is. Its methods are safe for concurrent use.
type recorder struct {
	path string
	bar  *progressbar.ProgressBar
	w    io.Writer

	mu     sync.Mutex
	report result.Report
	err    error // the first of writing to disk
}

func newRecorder(r result.Report, path string, w io.Writer) *recorder {
	bar := progressbar.NewOptions(0,
		progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24), progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(false),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish(),
	)
	return &recorder{report: r, path: path, bar: bar, w: w}
}

// expect announces cells.
func (r *recorder) expect(cells int) { r.bar.ChangeMax(r.bar.GetMax() + cells) }

// Put is part of control.Sink. The file has the cell before it returns: what was
// measured is there, however the run ends.
func (r *recorder) Put(c result.Cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Put(c)
	r.save()
	_ = r.bar.Add(1) // a terminal that cannot be written to is no reason to stop
}

func (r *recorder) save() {
	r.report.Took = time.Since(r.report.Started).Seconds()
	r.report.Judge()
	if err := r.report.Write(r.path); err != nil && r.err == nil {
		r.err = err
	}
}

// Doing is part of control.Sink.
func (r *recorder) Doing(what string) { r.bar.Describe(fmt.Sprintf("%-58s", what)) }

// Version is part of control.Sink.
func (r *recorder) Version(program, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Facts.Versions[program] = version
}

// Write is for logs: the bar makes way for them.
func (r *recorder) Write(b []byte) (int, error) {
	_ = r.bar.Clear()
	return r.w.Write(b)
}

// finish takes the bar away and returns the first error of writing to disk.
func (r *recorder) finish() error {
	_ = r.bar.Finish()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.save()
	return r.err
}
