package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"nftproxy/test/section"
)

// column is one kernel of the matrix.
type column struct {
	// kernel is the version of the kernel's package.
	series, kernel string
	findings       []finding
	results        []result
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
	row("", func(c column) string { return "Linux " + c.series })
	row("---", func(column) string { return "---" })
	row("Debian's version", func(c column) string { return c.kernel })
	for _, probe := range probes(columns) {
		row(strings.TrimPrefix(probe, "kernel: "), func(c column) string { return c.finding(probe) })
	}
	for i := range columns[0].results {
		row("tests of `"+columns[0].results[i].pkg+"`", func(c column) string { return c.results[i].summary() })
	}
	notes := map[string][]string{}
	for _, c := range columns {
		for _, r := range c.results {
			for _, name := range keys(r.skips) {
				note := fmt.Sprintf("`%s` of %s: %s", name, r.pkg, escape(reason(r.skips[name])))
				notes[note] = append(notes[note], c.series)
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

// probes lists the probes of all columns, in the order of nftproxy check.
func probes(columns []column) []string {
	var all []string
	for _, c := range columns {
		for _, f := range c.findings {
			if !slices.Contains(all, f.Probe) {
				all = append(all, f.Probe)
			}
		}
	}
	return all
}

func (c column) finding(probe string) string {
	i := slices.IndexFunc(c.findings, func(f finding) bool { return f.Probe == probe })
	switch {
	case i < 0:
		return ""
	case c.findings[i].Level == "green":
		return escape(c.findings[i].Found)
	}
	return escape(fmt.Sprintf("**%s**: %s; %s", c.findings[i].Level, c.findings[i].Found, c.findings[i].Do))
}

func (r result) summary() string {
	parts := []string{fmt.Sprintf("%d pass", r.passed)}
	if r.died {
		parts = append(parts, "**the kernel died**")
	}
	if r.failed > 0 || !r.whole {
		parts = append(parts, fmt.Sprintf("**%d fail**", r.failed))
	}
	if len(r.skips) > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped", len(r.skips)))
	}
	return strings.Join(parts, ", ")
}

// escape makes a text fit a cell of a table.
func escape(s string) string {
	return strings.NewReplacer("|", "\\|", "\n", " ").Replace(s)
}

// page is the matrix's part of its page.
func page() section.Section {
	return section.Section{Name: "matrix of make test-kernels", Heading: "The matrix"}
}
