package chart

import (
	"fmt"
	"slices"
)

// figurePlace is where a figure stands: x and y of its baseline, and which end of it
// is at x.
type figurePlace struct {
	x, y   float64
	anchor string
	text   string
}

func (p *figurePlace) area() area {
	return textArea(p.x, p.y, p.anchor, p.text, textSize, true)
}

// candidates are the places beside a point, the best ones first.
func candidates(x, y float64, text string) []figurePlace {
	const aside, above, below = 10, 9, 22
	return []figurePlace{
		{x - aside, y - above, "end", text},
		{x + aside, y + below, "start", text},
		{x + aside, y - above, "start", text},
		{x - aside, y + below, "end", text},
		{x, y - 2*above, "middle", text},
		{x, y + below + above, "middle", text},
	}
}

// placeFigures finds a place beside the point of each series that the claim is about,
// where the figure is on no line, no mark and no other figure. A series without a figure
// has none, nor has one with a point that is too close to others.
func (d *drawing) placeFigures() []*figurePlace {
	frame := area{left: plotLeft, top: d.top - textLine, right: plotRight, bottom: d.bottom}
	lines, marks := d.obstacles()
	places := make([]*figurePlace, len(d.series))
	for i := range d.series {
		s := &d.series[i]
		p := s.at(d.number)
		if p == nil {
			continue
		}
		x, y := d.at(p)
		for _, c := range candidates(x, y, s.text(p)) {
			a := c.area()
			free := a.within(frame) && !slices.ContainsFunc(marks, a.meets) &&
				!slices.ContainsFunc(lines, func(l segment) bool { return l.crosses(a) })
			if free {
				places[i] = &c
				marks = append(marks, a)
				break
			}
		}
	}
	return places
}

// obstacles are the lines and the marks of all series.
func (d *drawing) obstacles() (lines []segment, marks []area) {
	const radius = 6
	for _, s := range d.series {
		for i := range s.points {
			x, y := d.at(&s.points[i])
			marks = append(marks, area{x, y, x, y}.grown(radius))
			toX, toY := plotRight, y // the dotted line to the label
			if i+1 < len(s.points) {
				toX, toY = d.at(&s.points[i+1])
			}
			lines = append(lines, segment{x, y, toX, toY})
		}
	}
	return lines, marks
}

func (d *drawing) drawFigures() {
	for i, p := range d.places {
		if p != nil {
			d.text(p.x, p.y, p.anchor, fmt.Sprintf("name figure fill-%d", i), p.text)
		}
	}
}
