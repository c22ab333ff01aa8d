package result

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tables writes the facts, a table for each question, and the targets.
func Tables(w io.Writer, r *Report) error {
	p := &printer{w: w}
	p.facts(r)
	for _, q := range r.Questions() {
		p.question(q, r.Of(q))
	}
	p.targets(r.Targets)
	p.leftOut(r)
	return p.err
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintln(p.w, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
}

func (p *printer) facts(r *Report) {
	f := r.Facts
	p.line("%s, %d cores, %s MB; Linux %s; %s; load at start %s", f.CPU, f.Cores, Count(f.Memory), f.Kernel, f.Go, f.Load)
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(f.Versions)) {
		versions = append(versions, name+" "+f.Versions[name])
	}
	if len(versions) > 0 {
		p.line("%s", strings.Join(versions, "; "))
	}
	p.line("%s, %s s", r.Started.UTC().Format("2006-01-02 15:04 UTC"), Figure(r.Took))
}

// question writes one table: backends down, sizes across, notes below.
func (p *printer) question(name string, cells []Cell) {
	t := newTable(cells)
	p.line("")
	p.line("%s", strings.TrimSuffix(name+" ["+strings.Join(t.units, ", ")+"]", " []"))
	if about := About(name); about != "" {
		p.line("  %s", about)
	}
	p.grid(t.rows())
	for i, note := range t.notes {
		p.line("  (%d) %s", i+1, note)
	}
}

// table collects the cells of one question.
type table struct {
	cells           []Cell
	backends, sizes []string
	units           []string
	// notes are numbered from 1 on; each is there once.
	notes []string
}

func newTable(cells []Cell) *table {
	t := &table{cells: cells}
	for _, c := range cells {
		t.backends = appendNew(t.backends, c.Backend)
		t.sizes = appendNew(t.sizes, c.Size)
		if c.Unit != "" { // a cell without a figure has none
			t.units = appendNew(t.units, c.Unit)
		}
	}
	return t
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

func (t *table) cell(backend, size string) *Cell {
	for i := range t.cells {
		if c := &t.cells[i]; c.Backend == backend && c.Size == size {
			return c
		}
	}
	return nil
}

// rows are the table's texts, the heads included.
func (t *table) rows() [][]string {
	rows := [][]string{append([]string{""}, t.sizes...)}
	for _, backend := range t.backends {
		row := []string{backend}
		for _, size := range t.sizes {
			row = append(row, t.text(t.cell(backend, size)))
		}
		rows = append(rows, row)
		for _, part := range t.parts(backend) {
			row := []string{"  " + part}
			for _, size := range t.sizes {
				row = append(row, partText(t.cell(backend, size), part))
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// text is a cell in a few characters.
func (t *table) text(c *Cell) string {
	if c == nil {
		return ""
	}
	if c.Failed != "" {
		return "- " + t.note(c.Failed)
	}
	var words []string
	for _, key := range []string{Value, P50, P99} {
		if v, found := c.Values[key]; found {
			words = append(words, Figure(v))
		}
	}
	text := strings.Join(words, " / ")
	if c.Over && len(words) == 0 {
		text = "limit"
	}
	if c.Over {
		text = "> " + text
	}
	if c.Note != "" {
		text += " " + t.note(c.Note)
	}
	return text
}

func (t *table) note(text string) string {
	t.notes = appendNew(t.notes, text)
	return fmt.Sprintf("(%d)", slices.Index(t.notes, text)+1)
}

// parts lists the values that are parts of the whole, in the order of a sync.
func (t *table) parts(backend string) []string {
	order := []string{"snapshot", "compile", "read", "plan", "encode", "commit", "rest of apply"}
	whole := []string{Value, P50, P99, Min, Max, Samples}
	var parts []string
	for _, c := range t.cells {
		if c.Backend != backend {
			continue
		}
		for key := range c.Values {
			if !slices.Contains(whole, key) {
				parts = appendNew(parts, key)
			}
		}
	}
	rank := func(s string) int {
		if i := slices.Index(order, s); i >= 0 {
			return i
		}
		return len(order)
	}
	slices.SortFunc(parts, func(a, b string) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a, b)) })
	return parts
}

func partText(c *Cell, part string) string {
	if c == nil {
		return ""
	}
	v, found := c.Values[part]
	if !found {
		return ""
	}
	return Figure(v)
}

// grid writes rows with columns of equal width, the first one to the left.
func (p *printer) grid(rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, text := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, row := range rows {
		var b strings.Builder
		for i, text := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i == 0 {
				b.WriteString("  " + text + pad)
			} else {
				b.WriteString("   " + pad + text)
			}
		}
		p.line("%s", b.String())
	}
}

func (p *printer) targets(targets []Target) {
	if len(targets) == 0 {
		return
	}
	p.line("")
	p.line("targets")
	for _, t := range targets {
		p.line("  %-12s  %s: %s", t.Verdict, t.What, t.Want)
		p.line("  %-12s    %s", "", t.Got)
	}
}

func (p *printer) leftOut(r *Report) {
	if len(r.LeftOut) == 0 {
		return
	}
	p.line("")
	p.line("left out:")
	for _, what := range r.LeftOut {
		p.line("  %s", what)
	}
}
