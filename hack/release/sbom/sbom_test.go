package sbom_test

import (
	"bytes"
	"debug/buildinfo"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spdx/tools-golang/json"

	"nftproxy/hack/release/sbom"
)

// TestWrite reads the document of a binary, the command release, back by the library: it
// has each module that the linker names, and it is the same each time.
func TestWrite(t *testing.T) {
	self := filepath.Join(t.TempDir(), "release")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", self,
		"nftproxy/hack/release").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var first, second bytes.Buffer
	for _, b := range []*bytes.Buffer{&first, &second} {
		if err := sbom.Write(b, self); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two documents of the same binary differ")
	}
	d, err := json.Read(&first)
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"stdlib": info.GoVersion[len("go"):]}
	for _, m := range info.Deps {
		want[m.Path] = m.Version
	}
	if len(want) < 3 {
		t.Fatalf("the binary has only %v", want)
	}
	got := map[string]string{}
	binaries := 0
	for _, p := range d.Packages {
		if p.PrimaryPackagePurpose == "APPLICATION" {
			binaries++
			continue
		}
		got[p.PackageName] = p.PackageVersion
	}
	if diff := cmp.Diff(want, got); diff != "" || binaries != 1 {
		t.Errorf("%d binaries, want 1; modules (-want +got):\n%s", binaries, diff)
	}
	depends := 0
	for _, r := range d.Relationships {
		if r.Relationship == "DEPENDS_ON" {
			depends++
		}
	}
	if depends != len(want) {
		t.Errorf("%d modules are said to be in the binary, want all of %v", depends, slices.Sorted(maps.Keys(want)))
	}
}

func TestNoBinary(t *testing.T) {
	if err := sbom.Write(&bytes.Buffer{}); err == nil {
		t.Error("a document of nothing")
	}
	if err := sbom.Write(&bytes.Buffer{}, "sbom_test.go"); err == nil {
		t.Error("a document of a text")
	}
}
