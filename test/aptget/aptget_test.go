package aptget_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"nftproxy/test/aptget"
)

// TestThere: a command that is on the path is used as it is.
func TestThere(t *testing.T) {
	dir := t.TempDir()
	want := filepath.Join(dir, "tool")
	if err := os.WriteFile(want, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if got, err := aptget.Command("tool", "no-such-package"); err != nil || got != want {
		t.Errorf("path %q, error %v; want %q", got, err, want)
	}
}

// TestNoWay: what is missing where nothing can be installed.
func TestNoWay(t *testing.T) {
	t.Setenv("PATH", t.TempDir()) // no apt-get either
	if _, err := aptget.Command("no-such-tool", "no-such-package"); !errors.Is(err, aptget.ErrMissing) {
		t.Errorf("error %v", err)
	}
}
