package aptget_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"nftproxy/test/lib/aptget"
)

// TestNewest: the package that another stands for is unpacked once a version, and is there without a
// network too.
func TestNewest(t *testing.T) {
	if testing.Short() {
		t.Skip("downloads packages")
	}
	dir := t.TempDir()
	got, err := aptget.UnpackNewest(t.Context(), dir, aptget.Release{Name: "bookworm"}, "tcl")
	if err != nil || got.Old != nil {
		t.Fatal(err, got.Old)
	}
	if !strings.HasPrefix(got.Name, "tcl8") || !strings.HasPrefix(got.Version, "8.") {
		t.Errorf("found %s of version %s", got.Name, got.Version)
	}
	if _, err := os.Stat(filepath.Join(got.Dir, "usr/share/doc", got.Name)); err != nil {
		t.Error(err)
	}
	again, err := aptget.UnpackNewest(t.Context(), dir, aptget.Release{Name: "bookworm"}, "tcl")
	if err != nil || again != got {
		t.Errorf("%+v, error %v; want %+v", again, err, got)
	}
	t.Setenv("PATH", t.TempDir()) // no apt-get
	without, err := aptget.UnpackNewest(t.Context(), dir, aptget.Release{Name: "bookworm"}, "tcl")
	if err != nil || without.Old == nil {
		t.Fatalf("error %v; without apt-get: %v", err, without.Old)
	}
	if without.Old = nil; without != got {
		t.Errorf("%+v, want %+v", without, got)
	}
	if _, err := aptget.UnpackNewest(t.Context(), t.TempDir(), aptget.Release{Name: "bookworm"}, "tcl"); err == nil {
		t.Error("no error without apt-get and without an earlier package")
	}
}
