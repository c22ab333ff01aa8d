package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKept: a page shows the last outcome of each package on each kernel. While some are missing the command names
// them, and the page stays.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	o, err := parse([]string{"--logs=" + dir, "--page=" + filepath.Join(dir, "page.md")})
	if err != nil {
		t.Fatal(err)
	}
	const before = "# Page\n"
	if err := os.WriteFile(o.page, []byte(before), 0o644); err != nil {
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
	keep := func(series, kernel string, passed int, packages ...string) {
		t.Helper()
		c := column{Series: series, Kernel: kernel, Day: "2026-11-24"}
		for _, p := range packages {
			c.Results = append(c.Results, result{Pkg: p, Passed: passed, Whole: true, Skips: map[string]string{"TestS": ""}})
		}
		if err := c.keep(dir); err != nil {
			t.Fatal(err)
		}
	}
	all := defaultPackages()
	for i, r := range o.releases {
		if page, said := write(); !strings.Contains(said, "on kernel "+r.series) || page != before {
			t.Fatalf("after %d kernels: %q, %q", i, page, said)
		}
		keep(r.series, "old", 1, all...)
		keep(r.series, "new", 2, all[1:]...) // those of the old kernel go
		if page, said := write(); !strings.Contains(said, "on kernel "+r.series+" no tests ran yet of "+all[0]+": ") ||
			page != before {
			t.Fatalf("after %d kernels and one without a package: %q, %q", i, page, said)
		}
		keep(r.series, "new", 3, all[0], "another/package")
	}
	page, said := write()
	if said != "" {
		t.Errorf("with all: %q", said)
	}
	for _, want := range []string{
		"| Debian's version | new | new | new |",
		"| tests of `" + all[0] + "` | 3 pass, 1 skipped | 3 pass, 1 skipped | 3 pass, 1 skipped |",
		"| tests of `" + all[1] + "` | 2 pass, 1 skipped | 2 pass, 1 skipped | 2 pass, 1 skipped |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page:\n%s", want, page)
		}
	}
	if strings.Contains(page, "another/package") {
		t.Errorf("a package that is not of the matrix is on the page:\n%s", page)
	}
}

// TestKernels: each series is known, also without iptables, and a mistyped one is an error that names it.
func TestKernels(t *testing.T) {
	o, err := parse([]string{"--kernels=newest-nf_tables,5.10"})
	if err != nil {
		t.Fatal(err)
	}
	if len(o.releases) != 2 || len(o.releases[0].lacks) == 0 || o.releases[1].name != "bullseye" {
		t.Errorf("%+v", o.releases)
	}
	if _, err := parse([]string{"--kernels="}); err == nil {
		t.Error("no kernel is no error")
	}
	for _, series := range []string{"6.13", "", "5.10-nf_tables-nf_tables"} {
		if _, err := parse([]string{"--kernels=6.12," + series}); err == nil ||
			!strings.Contains(err.Error(), "kernel "+series+" is") {
			t.Errorf("%q: %v", series, err)
		}
	}
}
