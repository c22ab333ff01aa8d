package result

import (
	"fmt"
	"slices"
)

const (
	// plotLeft is where the plot begins: texts of the vertical axis are before it.
	plotLeft = 76.0
	// plotRight is where it ends: the names of the lines are behind it.
	plotRight  = 352.0
	labelLeft  = 374.0
	plotHeight = 250.0
	// labelGap is the space between two labels.
	labelGap = 8.0
)

// drawing is a picture that is being drawn.
type drawing struct {
	*picture
	svg
	// top and bottom are the ends of the plot.
	top, bottom float64
	across, up  scale
}

// draw makes the file: title and subtitle, the plot with names to the right of it, and
// footnotes, from the top to the bottom.
func (p *picture) draw() []byte {
	d := &drawing{picture: p}
	y := d.paragraph(margin, "title text", p.title(), titleSize, titleLine, true)
	y = d.paragraph(y+4, "faint", p.about, textSize, textLine, false)
	d.top = y + 32
	d.bottom = d.top + plotHeight
	d.setScales()
	d.drawAxes()
	for i := range p.series {
		d.drawSeries(i)
	}
	d.drawLabels()
	y = d.bottom + 2*textLine + 4
	d.text(plotLeft, y, "start", "faint", p.axisName())
	y += 12
	notes := p.footnotes()
	if d.across.logarithmic {
		notes = append([]string{"Both scales are logarithmic."}, notes...)
	}
	for _, note := range notes {
		y = d.paragraph(y, "faint", note, textSize, textLine, false)
	}
	var backends []string
	for _, s := range p.series {
		backends = append(backends, s.backend)
	}
	return d.document(y+margin, p.title(), p.description(), backends)
}

// paragraph writes a text over the whole width, and returns where it ends.
func (s *svg) paragraph(y float64, class, text string, size, line float64, bold bool) float64 {
	for _, words := range wrap(text, size, bold, width-2*margin) {
		s.text(margin, y+size, "start", class, words)
		y += line
	}
	return y
}

// setScales makes both scales logarithmic, or both in proportion: what grows with the
// number of Services is a straight line in either case.
func (d *drawing) setScales() {
	var numbers, values []float64
	for _, s := range d.series {
		for _, p := range s.points {
			numbers, values = append(numbers, float64(p.number)), append(values, p.value)
		}
	}
	low, high := extent(values)
	logarithmic := high/low > manyTimes
	d.across = newScale(logarithmic, numbers, plotLeft, plotRight)
	d.up = newScale(logarithmic, values, d.bottom, d.top)
}

// at is where a point of a series is.
func (d *drawing) at(p *point) (x, y float64) {
	return d.across.pixel(float64(p.number)), d.up.pixel(p.value)
}

// drawAxes draws the ticks, and a vertical line where the figures of the claim are.
func (d *drawing) drawAxes() {
	for _, v := range d.up.ticks() {
		y := d.up.pixel(v)
		text := "0"
		if v > 0 {
			text = amount(v, d.ours.unit)
		}
		d.line("grid", plotLeft, y, plotRight, y)
		d.text(plotLeft-8, y+textSize/3, "end", "faint", text)
	}
	var written []area
	for _, v := range d.sizes() {
		x, y := d.across.pixel(v), d.bottom+textLine+2
		text := Count(int(v))
		a := textArea(x, y, "middle", text, textSize, false).grown(3)
		if slices.ContainsFunc(written, a.meets) {
			continue
		}
		d.line("grid", x, d.bottom, x, d.bottom+6)
		d.text(x, y, "middle", "faint", text)
		written = append(written, a)
	}
	d.line("grid", plotLeft, d.bottom, plotRight, d.bottom)
	x := d.across.pixel(float64(d.number))
	d.line("grid", x, d.bottom, x, d.top)
}

// sizes are the numbers that the axis names, the most important ones first:
// those that were measured if the scale is logarithmic, else round ones.
func (d *drawing) sizes() []float64 {
	if !d.across.logarithmic {
		return d.across.ticks()
	}
	list := []float64{float64(d.number)}
	for _, s := range d.series {
		for _, p := range s.points {
			list = append(list, float64(p.number))
		}
	}
	return list
}

// drawSeries joins the points. The line to a point beyond a limit is dashed.
func (d *drawing) drawSeries(index int) {
	s := &d.series[index]
	line, fill := fmt.Sprintf("series line-%d", index), fmt.Sprintf("fill-%d", index)
	radius := 4.5
	if s.backend == NFTProxy {
		line, radius = line+" main", 6.5
	}
	for i := range s.points {
		p := &s.points[i]
		x, y := d.at(p)
		if i > 0 {
			fromX, fromY := d.at(&s.points[i-1])
			class := line
			if p.over {
				class += " beyond"
			}
			d.line(class, fromX, fromY, x, y)
		}
		if p.over {
			d.arrow(fill, x, y)
		} else {
			d.dot(fill, x, y, radius)
		}
	}
}

// label is what stands behind the end of a line.
type label struct {
	block
	// lines are the text; the first ones, as many as names, are the name.
	lines []string
	names int
}

// drawLabels writes the labels apart from each other, each with a dotted line from the
// last point of its series.
func (d *drawing) drawLabels() {
	var labels []label
	var blocks []block
	for i := range d.series {
		l := d.label(i)
		labels, blocks = append(labels, l), append(blocks, l.block)
	}
	// Names may reach a line beyond the plot, where nothing else is.
	for i, middle := range spread(blocks, d.top-textLine, d.bottom+textLine) {
		l, points := labels[i], d.series[i].points
		y := middle - (l.height-labelGap-textLine)/2 // the middle of the first line
		if len(points) > 0 {
			pointX, pointY := d.at(&points[len(points)-1])
			d.line(fmt.Sprintf("leader line-%d", i), pointX+10, pointY, plotRight+4, pointY, labelLeft-6, y)
		}
		for n, text := range l.lines {
			class := "text"
			if n < l.names {
				class = fmt.Sprintf("name fill-%d", i)
			}
			d.text(labelLeft, y+textSize/3, "start", class, text)
			y += textLine
		}
	}
}

// label has the name of a series, and what it did with the number of the claim. The first line wants to be where
// the line of the series ends; a series without points has its label at the top.
func (d *drawing) label(index int) label {
	const room = width - labelLeft - margin/2
	s := &d.series[index]
	names := wrap(displayName(s.backend), textSize, true, room)
	l := label{lines: append(names, wrap(s.label(d.number), textSize, false, room)...), names: len(names)}
	l.height = float64(len(l.lines))*textLine + labelGap
	l.wanted = d.top
	if len(s.points) > 0 {
		_, y := d.at(&s.points[len(s.points)-1])
		l.wanted = y + (l.height-labelGap-textLine)/2
	}
	return l
}

// displayName is what a picture calls a backend.
func displayName(backend string) string {
	if backend == BareNetlink {
		return "the kernel alone"
	}
	return backend
}
