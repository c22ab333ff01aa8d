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

// recorder keeps what is measured, in memory and on disk, and shows how far it
// is. Its methods are safe for concurrent use.
type recorder struct {
	path string
	bar  *progressbar.ProgressBar
	w    io.Writer

	// before is the report that this run adds to, nil if there is none.
	before *result.Report
	// abort ends the run, whose figures have no place to go.
	abort context.CancelCauseFunc

	mu     sync.Mutex
	report result.Report // of this run
	err    error         // the first of adding and writing
}

func newRecorder(r result.Report, path string, w io.Writer, abort context.CancelCauseFunc) *recorder {
	bar := progressbar.NewOptions(0,
		progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(24), progressbar.OptionShowCount(),
		progressbar.OptionSetElapsedTime(true), progressbar.OptionSetPredictTime(false),
		progressbar.OptionClearOnFinish(),
	)
	return &recorder{report: r, path: path, bar: bar, w: w, abort: abort}
}

// addTo has the figures go into a report that is there already. The error says
// why they have no place in it.
func (r *recorder) addTo(before *result.Report) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.before = before
	_, err := r.whole()
	return err
}

// whole is the report with what was there before.
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

// expect announces cells.
func (r *recorder) expect(cells int) { r.bar.ChangeMax(r.bar.GetMax() + cells) }

// Put is part of result.Sink. The file has the cell before it returns: what was
// measured is there, however the run ends.
func (r *recorder) Put(c result.Cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.report.Put(c)
	r.save()
	_ = r.bar.Add(1) // a terminal that cannot be written to is no reason to stop
}

func (r *recorder) save() {
	whole, err := r.whole()
	if err == nil {
		err = whole.Write(r.path)
	}
	r.fail(err)
}

// fail keeps the first error, and ends the run for it.
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

// Write is for logs: the bar makes way for them.
func (r *recorder) Write(b []byte) (int, error) {
	_ = r.bar.Clear()
	return r.w.Write(b)
}

// finish takes the bar away, and returns the whole report and the first error of
// adding and writing. With an error, the report is that of this run alone if it
// has no place in the other.
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
