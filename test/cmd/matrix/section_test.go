package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReplace: the section is added once, and replaced from then on. What people wrote stays.
func TestReplace(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(text string) {
		t.Helper()
		if got, err := os.ReadFile(page); err != nil || string(got) != text {
			t.Errorf("%q, %v; want %q", got, err, text)
		}
	}
	s := section{Name: "matrix of all", Heading: "The matrix"}
	write("# Page\n")
	for _, text := range []string{"first\n", "second\n"} {
		if err := s.Replace(page, text); err != nil {
			t.Fatal(err)
		}
		want("# Page\n\n## The matrix\n\n<!-- the matrix of all -->\n\n" + text + "\n<!-- end of the matrix of all -->\n")
	}
	write("a\n<!-- the matrix of all -->\nold\n<!-- end of the matrix of all -->\nb\n")
	if err := s.Replace(page, "new\n"); err != nil {
		t.Fatal(err)
	}
	want("a\n<!-- the matrix of all -->\n\nnew\n\n<!-- end of the matrix of all -->\nb\n")
	write("a\n<!-- the matrix of all -->\nb\n")
	if err := s.Replace(page, "new\n"); err == nil {
		t.Error("a section without an end was replaced")
	}
	want("a\n<!-- the matrix of all -->\nb\n")
}
