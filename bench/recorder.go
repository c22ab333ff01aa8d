package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"nftproxy/bench/result"
)

// recorder keeps the measured cells, in memory and on disk, and shows the progress of the
// run. Its methods are safe for concurrent use.
type recorder struct {
	path string
	bar  *progressbar.ProgressBar
	w    io.Writer

	// abort ends the run when its cells cannot be stored.
	abort context.CancelCauseFunc

	mu     sync.Mutex
	report result.Report
	err    error // the first error of writing
}

func newRecorder(r result.Report, path string, w io.Writer, abort context.CancelCauseFunc) *recorder {
	bar := progressbar.NewOptions(0,
		progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24), progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(false),
		progressbar.OptionClearOnFinish(),
	)
	return &recorder{report: r, path: path, bar: bar, w: w, abort: abort}
}

// expect raises the number of cells that the bar expects.
func (r *recorder) expect(cells int) { r.bar.ChangeMax(r.bar.GetMax() + cells) }

// Put is part of result.Sink. The file has the cell before Put returns, so the cell stays
// however the run ends.
func (r *recorder) Put(c result.Cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Put(c)
	r.save()
	_ = r.bar.Add(1) // a terminal that takes no output is no reason to stop
}

// save writes the report so far. The first error ends the run.
func (r *recorder) save() {
	r.report.Took = time.Since(r.report.Started).Seconds()
	r.report.Judge()
	if err := r.report.Write(r.path); err != nil && r.err == nil {
		r.err = err
		r.abort(err)
	}
}

// Doing is part of result.Sink.
func (r *recorder) Doing(what string) { r.bar.Describe(fmt.Sprintf("%-58s", what)) }

// Version is part of result.Sink.
func (r *recorder) Version(program, version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Facts.Versions[program] = version
}

// Write takes the log. It removes the bar while it writes a line.
func (r *recorder) Write(b []byte) (int, error) {
	_ = r.bar.Clear()
	return r.w.Write(b)
}

// finish removes the bar. It returns the report and the first error of writing.
func (r *recorder) finish() (*result.Report, error) {
	_ = r.bar.Finish()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.save()
	return &r.report, r.err
}
