package aptget_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"nftproxy/test/lib/aptget"
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

// TestFromSuite: a command of another release runs with the libraries of that
// release, and is downloaded once.
func TestFromSuite(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads packages")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", "")
	path, err := aptget.FromSuite("trixie", "nft", "nftables")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(path, "--version").CombinedOutput()
	if want := "nftables v1.1."; err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%s, error %v; want %s", out, err, want)
	}
	t.Setenv("PATH", t.TempDir()) // no apt-get
	if again, err := aptget.FromSuite("trixie", "nft", "nftables"); err != nil || again != path {
		t.Errorf("path %q, error %v; want %q", again, err, path)
	}
}
