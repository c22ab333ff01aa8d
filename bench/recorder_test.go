package main

import (
	"context"
	"io"
	"path/filepath"
	"testing"
	"time"

	"nftproxy/bench/result"
)

// record starts a recorder whose machine never changes.
func record(t *testing.T, path string) (*recorder, context.Context) {
	t.Helper()
	ctx, abort := context.WithCancelCause(t.Context())
	t.Cleanup(func() { abort(nil) })
	facts := result.Facts{CPU: "a", Versions: map[string]string{}}
	return newRecorder(result.Report{Facts: facts, Started: time.Now()}, path, io.Discard, abort), ctx
}

// TestRecorder: the file has each cell as soon as it is measured.
func TestRecorder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	r, ctx := record(t, path)
	r.Version("nft", "1")
	for n, size := range []string{"1", "2"} {
		r.Put(result.Cell{Question: "q", Backend: "b", Size: size})
		if there, err := result.Read(path); err != nil || len(there.Cells) != n+1 {
			t.Fatalf("%v, error %v, want %d cells", there, err, n+1)
		}
	}
	report, err := r.finish()
	if err != nil || len(report.Cells) != 2 || report.Facts.Versions["nft"] != "1" || ctx.Err() != nil {
		t.Errorf("%+v, error %v, run %v", report, err, ctx.Err())
	}
}

// A report that cannot be written ends the run.
func TestRecorderFails(t *testing.T) {
	r, ctx := record(t, filepath.Join(t.TempDir(), "none", "report.json"))
	r.Put(result.Cell{Question: "q", Backend: "b", Size: "1"})
	if _, err := r.finish(); err == nil || ctx.Err() == nil {
		t.Errorf("error %v, run %v", err, ctx.Err())
	}
}
