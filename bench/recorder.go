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

	// before is the report that this run adds to, nil if there is none.
	before *result.Report
	// abort ends the run when its cells cannot be stored.
	abort context.CancelCauseFunc

	mu     sync.Mutex
	report result.Report // of this run
	err    error         // the first error of adding and writing
}

func newRecorder(r result.Report, path string, w io.Writer, abort context.CancelCauseFunc) *recorder {
	bar := progressbar.NewOptions(0,
		progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24), progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(false),
		progressbar.OptionClearOnFinish(),
	)
	return &recorder{report: r, path: path, bar: bar, w: w, abort: abort}
}

// addTo adds the cells of this run to an earlier report. The error says why the two
// reports do not go together.
func (r *recorder) addTo(before *result.Report) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = before
	_, err := r.whole()
	return err
}

// whole returns the earlier report with the cells of this run added.
func (r *recorder) whole() (*result.Report, error) {
	r.report.Took = time.Since(r.report.Started).Seconds()
	before := r.before
	if before == nil {
		before = &result.Report{Facts: r.report.Facts, Started: r.report.Started, Quick: r.report.Quick}
	}
	whole, err := before.Add(&r.report)
	if err != nil {
		return nil, fmt.Errorf("add to %s: %w", r.path, err)
	}
	return whole, nil
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

func (r *recorder) save() {
	whole, err := r.whole()
	if err == nil {
		err = whole.Write(r.path)
	}
	r.fail(err)
}

// fail keeps the first error, and ends the run because of it.
func (r *recorder) fail(err error) {
	if err != nil && r.err == nil {
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
	_, err := r.whole()
	r.fail(err)
}

// Write takes the log. It removes the bar while it writes a line.
func (r *recorder) Write(b []byte) (int, error) {
	_ = r.bar.Clear()
	return r.w.Write(b)
}

// finish removes the bar. It returns the whole report and the first error of adding and
// writing. If this run cannot be added to the earlier report, it returns the report of
// this run alone with an error.
func (r *recorder) finish() (*result.Report, error) {
	_ = r.bar.Finish()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.save()
	whole, err := r.whole()
	if err != nil {
		r.report.Judge()
		whole = &r.report
	}
	return whole, r.err
}
