package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// write makes an archive of files, links and a tree.
func write(t *testing.T) []byte {
	t.Helper()
	tree := t.TempDir()
	for name, content := range map[string]string{"a/one": "1", "a/two": "22", "skipped/three": "333"} {
		file := filepath.Join(tree, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content),
			0o755)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a/one", filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := newArchive(&b)
	w.tree("/", tree, func(relative string) bool { return relative == "skipped" })
	w.file("/etc/deep/text", 0o600, []byte("12345"))
	w.file("/a/three", 0o644, nil)
	w.symlink("/bin", "usr/bin")
	if err := w.close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestArchive: the command cpio, where there is one, unpacks the archive into the same files.
func TestArchive(t *testing.T) {
	archive := write(t)
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("no command cpio: the virtual machines of make test-kernels read such archives, too")
	}
	dir := t.TempDir()
	cmd := exec.Command(cpio, "-idm", "--quiet")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for name, want := range map[string]string{"a/one": "1", "a/two": "22", "a/three": "", "etc/deep/text": "12345",
		"link": "1"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
	}
	if target, err := os.Readlink(filepath.Join(dir, "bin")); err != nil || target != "usr/bin" {
		t.Errorf("bin leads to %q, %v", target, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "a/one")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("a/one: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "skipped")); err == nil {
		t.Error("the skipped folder is there")
	}
}

// TestEntries: each entry begins at a multiple of four, and each directory comes once, before what is
// in it.
func TestEntries(t *testing.T) {
	archive := write(t)
	var names []string
	for at := 0; at < len(archive); {
		if string(archive[at:at+6]) != "070701" {
			t.Fatalf("no entry at %d, after %q", at, names)
		}
		field := func(i int) int {
			n := 0
			for _, c := range string(archive[at+6+8*i : at+14+8*i]) {
				n = n<<4 + strings.IndexRune("0123456789abcdef", c)
			}
			return n
		}
		size, length := field(6), field(11)
		names = append(names, string(archive[at+110:at+110+length-1]))
		at = (at + 110 + length + 3) &^ 3
		at = (at + size + 3) &^ 3
	}
	if want := "a a/one a/two link etc etc/deep etc/deep/text a/three bin TRAILER!!!"; strings.Join(names, " ") != want {
		t.Errorf("entries %q, want %s", names, want)
	}
}

// TestMissingFile: an archive without a file that it was to have is an error.
func TestMissingFile(t *testing.T) {
	w := newArchive(&bytes.Buffer{})
	w.copyFile("/a", filepath.Join(t.TempDir(), "missing"))
	w.file("/b", 0o644, nil)
	if err := w.close(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
