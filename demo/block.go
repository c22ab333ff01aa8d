package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// block is a piece of a step's result. It renders itself as lines of at most the given
// width, without line ends.
type block interface {
	lines(s style, width int) []string
}

// style says what the reader's screen can show.
type style struct {
	color   bool
	unicode bool
}

func (s style) paint(code, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s style) good(text string) string  { return s.paint("32", text) }
func (s style) bad(text string) string   { return s.paint("31;1", text) }
func (s style) faint(text string) string { return s.paint("2", text) }
func (s style) bold(text string) string  { return s.paint("1", text) }
func (s style) bar(text string) string   { return s.paint("36", text) }

// text is a paragraph.
type text string

// textf makes a paragraph.
func textf(format string, args ...any) text { return text(fmt.Sprintf(format, args...)) }

func (t text) lines(_ style, width int) []string { return wrap(string(t), width, "", "") }

// wrap breaks a text at spaces. Every line but the last gets the suffix, and
// every line but the first the indent.
func wrap(s string, width int, indent, suffix string) []string {
	var lines []string
	room := width - columns(suffix)
	line := ""
	for word := range strings.FieldsSeq(s) {
		switch {
		case line == "":
			line = word
		case columns(line)+1+columns(word) <= room:
			line += " " + word
		default:
			lines = append(lines, line+suffix)
			line = indent + word
		}
	}
	return append(lines, line)
}

// columns is the width of a text on the screen: no character here is wide.
func columns(s string) int { return utf8.RuneCountInString(s) }

// pad fills a text with spaces up to a width.
func pad(s string, width int) string { return s + strings.Repeat(" ", max(0, width-columns(s))) }

func padLeft(s string, width int) string { return strings.Repeat(" ", max(0, width-columns(s))) + s }

// table has a head and rows with the same number of cells. From the given column on,
// cells are numbers and stand on the right.
type table struct {
	head    []string
	rows    [][]string
	numbers int
}

func (t table) lines(s style, _ int) []string {
	widths := make([]int, len(t.head))
	for _, row := range append([][]string{t.head}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], columns(cell))
		}
	}
	format := func(row []string) string {
		cells := make([]string, len(row))
		for i, cell := range row {
			if i >= t.numbers {
				cells[i] = padLeft(cell, widths[i])
			} else {
				cells[i] = pad(cell, widths[i])
			}
		}
		return strings.TrimRight(strings.Join(cells, "  "), " ")
	}
	lines := []string{s.faint(format(t.head))}
	for _, row := range t.rows {
		lines = append(lines, format(row))
	}
	return lines
}

// chart is bar charts of one scale, side by side where they fit.
type chart struct {
	groups []group
	// beside is how many groups stand in a row, at least 1.
	beside int
}

type group struct {
	title string
	bars  []bar
}

type bar struct {
	label string
	value int
}

func (c chart) lines(s style, width int) []string {
	const gap = 3
	beside := max(1, c.beside)
	each := (width - gap*(beside-1)) / beside
	scale := 0
	for _, g := range c.groups {
		for _, b := range g.bars {
			scale = max(scale, b.value)
		}
	}
	var lines []string
	for row := range slices.Chunk(c.groups, beside) {
		var side [][]cell
		for _, g := range row {
			side = append(side, g.cells(s, each, scale))
		}
		lines = append(lines, joinCells(side, each+gap)...)
	}
	return lines
}

// cell is a line of a group, with its width on the screen. The colours hide that width.
type cell struct {
	text  string
	width int
}

func (g group) cells(s style, width, scale int) []cell {
	label, number := 0, 0
	for _, b := range g.bars {
		label = max(label, columns(b.label))
		number = max(number, len(fmt.Sprint(b.value)))
	}
	cells := []cell{{s.faint(g.title), columns(g.title)}}
	for _, b := range g.bars {
		drawn := drawBar(s, b.value, scale, width-label-number-2)
		value := padLeft(fmt.Sprint(b.value), number)
		cells = append(cells, cell{
			text:  pad(b.label, label) + " " + s.bar(drawn) + " " + value,
			width: label + 1 + columns(drawn) + 1 + number,
		})
	}
	return cells
}

// joinCells puts the groups of one row beside each other.
func joinCells(side [][]cell, width int) []string {
	height := 0
	for _, column := range side {
		height = max(height, len(column))
	}
	lines := make([]string, height)
	for i := range lines {
		var b strings.Builder
		gap := 0
		for _, column := range side {
			b.WriteString(strings.Repeat(" ", gap))
			var c cell
			if i < len(column) {
				c = column[i]
			}
			b.WriteString(c.text)
			gap = width - c.width
		}
		lines[i] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// drawBar draws value/scale of the width. A value above zero has a bar that can be seen.
func drawBar(s style, value, scale, width int) string {
	if value <= 0 || scale <= 0 || width <= 0 {
		return ""
	}
	if !s.unicode {
		return strings.Repeat("#", max(1, (value*width+scale/2)/scale))
	}
	// Unicode has blocks of one to seven eighths, in descending code points
	// from the full one.
	const full = '\u2588'
	eighths := max(1, (value*width*8+scale/2)/scale)
	drawn := strings.Repeat(string(full), eighths/8)
	if rest := eighths % 8; rest > 0 {
		drawn += string(rune(full + 8 - rest))
	}
	return drawn
}

// listing is nftables text.
type listing string

// lines keeps the indentation, but narrower. It breaks long lines with a backslash, as
// nft reads them.
func (l listing) lines(s style, width int) []string {
	var lines []string
	for line := range strings.Lines(string(l)) {
		body := strings.TrimLeft(strings.TrimRight(line, "\n"), "\t")
		indent := strings.Repeat("  ", len(strings.TrimRight(line, "\n"))-len(body))
		for _, part := range wrap(body, width-len(indent), "    ", " \\") {
			part = indent + part
			if strings.HasPrefix(body, "#") {
				part = s.faint(part)
			}
			lines = append(lines, part)
		}
	}
	return lines
}
