package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// column is one kernel of the matrix, and how a run went there.
type column struct {
	Series string
	// Kernel is the version of the kernel's package.
	Kernel string
	// Day is when the run began, such as 2026-11-24.
	Day      string
	Findings []finding
	Results  []result
	// Lacks has patterns of modules that the machine did not have.
	Lacks []string
}

// finding is one of nftproxy check.
type finding struct {
	Probe, Level, Found, Do string
}

// readFindings reads what nftproxy check -o json says of the kernel.
func readFindings(output []byte) ([]finding, error) {
	var report struct{ Findings []finding }
	if err := json.Unmarshal(output, &report); err != nil {
		return nil, fmt.Errorf("nftproxy check: %w: %s", err, output)
	}
	return slices.DeleteFunc(report.Findings, func(f finding) bool { return !strings.HasPrefix(f.Probe, "kernel: ") }), nil
}

// matrix is the table of all columns, in Markdown.
func matrix(columns []column) string {
	var b strings.Builder
	row := func(first string, cell func(column) string) {
		fmt.Fprintf(&b, "| %s |", first)
		for _, c := range columns {
			fmt.Fprintf(&b, " %s |", cell(c))
		}
		b.WriteByte('\n')
	}
	row("", func(c column) string { return "Linux " + c.Series })
	row("---", func(column) string { return "---" })
	row("Debian's version", func(c column) string { return c.Kernel })
	row("run on", func(c column) string { return c.Day })
	for _, probe := range probes(columns) {
		row(strings.TrimPrefix(probe, "kernel: "), func(c column) string { return c.finding(probe) })
	}
	if slices.ContainsFunc(columns, func(c column) bool { return len(c.Lacks) > 0 }) {
		row("lacks the modules", func(c column) string { return strings.Join(c.Lacks, ", ") })
		row("... and nftproxy or a test asked the kernel for", column.asked)
	}
	for _, pkg := range packages(columns) {
		if pkg == demo {
			row("`make demo`", func(c column) string { return c.result(pkg).summary() })
			continue
		}
		row("tests of `"+pkg+"`", func(c column) string { return c.result(pkg).summary() })
	}
	notes := map[string][]string{}
	for _, c := range columns {
		for _, r := range c.Results {
			for _, note := range r.skipNotes(len(c.Lacks) > 0) {
				notes[note] = append(notes[note], c.Series)
			}
		}
	}
	b.WriteString("\nTests that skip themselves:\n\n")
	var lines []string
	for note, series := range notes {
		lines = append(lines, fmt.Sprintf("- %s (on %s)\n", note, strings.Join(series, ", ")))
	}
	slices.Sort(lines)
	b.WriteString(strings.Join(lines, ""))
	return b.String()
}

// skipNotes say which tests of a package skipped themselves, with one note for each reason: each of them, or only what
// the kernel lacks.
func (r result) skipNotes(lacks bool) []string {
	byReason := map[string][]string{}
	for _, name := range keys(r.Skips) {
		why := escape(reason(r.Skips[name]))
		if lacks && !strings.HasPrefix(why, "this kernel has no ") {
			continue
		}
		byReason[why] = append(byReason[why], name)
	}
	var notes []string
	for why, names := range byReason {
		more := ""
		if len(names) > 1 {
			more = fmt.Sprintf(" and %d more", len(names)-1)
		}
		notes = append(notes, fmt.Sprintf("`%s`%s of %s: %s", names[0], more, r.Pkg, why))
	}
	return notes
}

// packages lists the packages of all columns.
func packages(columns []column) []string {
	var all []string
	for _, c := range columns {
		for _, r := range c.Results {
			if !slices.Contains(all, r.Pkg) {
				all = append(all, r.Pkg)
			}
		}
	}
	return all
}

// probes lists the probes of all columns, in the order of nftproxy check.
func probes(columns []column) []string {
	var all []string
	for _, c := range columns {
		for _, f := range c.Findings {
			if !slices.Contains(all, f.Probe) {
				all = append(all, f.Probe)
			}
		}
	}
	return all
}

func (c column) finding(probe string) string {
	i := slices.IndexFunc(c.Findings, func(f finding) bool { return f.Probe == probe })
	switch {
	case i < 0:
		return ""
	case c.Findings[i].Level == "green":
		return escape(c.Findings[i].Found)
	}
	return escape(fmt.Sprintf("**%s**: %s; %s", c.Findings[i].Level, c.Findings[i].Found, c.Findings[i].Do))
}

// asked says which modules that it lacks the kernel was asked for.
func (c column) asked() string {
	if len(c.Lacks) == 0 {
		return ""
	}
	var all []string
	for _, r := range c.Results {
		all = append(all, r.Asked...)
	}
	if len(all) == 0 {
		return "none of them"
	}
	return escape("**" + strings.Join(all, ", ") + "**")
}

func (r *result) summary() string {
	switch {
	case r == nil:
		return "did not run"
	case r.Pkg == demo && r.good():
		return "works"
	}
	parts := []string{fmt.Sprintf("%d pass", r.Passed)}
	if r.Died {
		parts = append(parts, "**the kernel died**")
	}
	if r.Failed > 0 || !r.Whole {
		parts = append(parts, fmt.Sprintf("**%d fail**", r.Failed))
	}
	if len(r.Skips) > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped", len(r.Skips)))
	}
	return strings.Join(parts, ", ")
}

// escape makes a text fit a cell of a table.
func escape(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}

// pageWithoutModules is the part of the kernels that lack modules.
func pageWithoutModules() section {
	return section{Name: "matrix of make test-no-iptables", Heading: "Without iptables"}
}

// page is the matrix's part of its page.
func page() section {
	return section{Name: "matrix of make test-kernels", Heading: "The matrix"}
}
