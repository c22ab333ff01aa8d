package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKept: a page shows the last complete run of each kernel, and stays as it is until there is one
// of each, with today's packages.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	o := options{logs: dir, page: filepath.Join(dir, "page.md")}
	if err := os.WriteFile(o.page, []byte("# Page\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	write := func() (page, said string) {
		t.Helper()
		var out bytes.Buffer
		if err := o.writePage(&out); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(o.page)
		if err != nil {
			t.Fatal(err)
		}
		return string(text), out.String()
	}
	complete := func(series string, packages []string) column {
		c := column{Series: series, Kernel: series + ".7-1", Day: "2026-11-24"}
		for i, p := range packages {
			c.Results = append(c.Results, result{Pkg: p, Passed: i + 1, Whole: true, Skips: map[string]string{"TestS": ""}})
		}
		if err := c.keep(dir); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for i, r := range releases() {
		if page, said := write(); page != "# Page\n" || !strings.Contains(said, r.series) {
			t.Fatalf("after %d kernels: %q, %q", i, page, said)
		}
		complete(r.series, defaultPackages()[1:])
		if page, said := write(); page != "# Page\n" || !strings.Contains(said, r.series) {
			t.Fatalf("after %d kernels and one of other packages: %q, %q", i, page, said)
		}
		complete(r.series, defaultPackages())
	}
	page, _ := write()
	for _, want := range []string{"| Debian's version | 5.10.7-1 | 6.1.7-1 | 6.12.7-1 |", "| tests of `nft/ruleset` | 2 pass, 1 skipped |"} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page:\n%s", want, page)
		}
	}
}
