package main

import (
	"context"
	"io"
	"path/filepath"
	"strings"
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

// TestPieces: a second run adds to the file of the first. A run with another version of a
// program ends, and leaves the file unchanged.
func TestPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report.json")
	read := func() *result.Report {
		t.Helper()
		r, err := result.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first, _ := record(t, path)
	first.Version("nft", "1")
	first.Put(result.Cell{Question: "q", Backend: "b", Size: "1"})
	if _, err := first.finish(); err != nil {
		t.Fatal(err)
	}

	second, ctx := record(t, path)
	if err := second.addTo(read()); err != nil {
		t.Fatal(err)
	}
	second.Version("nft", "1")
	second.Put(result.Cell{Question: "q", Backend: "b", Size: "2"})
	if n := len(read().Cells); n != 2 {
		t.Errorf("%d cells in the file as soon as the second is measured, want 2", n)
	}
	whole, err := second.finish()
	if err != nil || len(whole.Cells) != 2 || ctx.Err() != nil {
		t.Errorf("%d cells, error %v, run %v", len(whole.Cells), err, ctx.Err())
	}

	other, ctx := record(t, path)
	if err := other.addTo(read()); err != nil {
		t.Fatal(err)
	}
	other.Version("nft", "2")
	if ctx.Err() == nil {
		t.Error("the run goes on with another version")
	}
	if _, err := other.finish(); err == nil || !strings.Contains(err.Error(), "version was 1 and is 2") {
		t.Errorf("error %v", err)
	}
	if n := len(read().Cells); n != 2 {
		t.Errorf("%d cells in the file afterwards, want 2", n)
	}
}
