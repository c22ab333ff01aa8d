package flowmap

import (
	"bytes"
	"fmt"
	"io"
	"unicode/utf8"

	svg "github.com/ajstarks/svgo"

	"nftproxy/model/printable"
)

// Lengths in the picture, in pixels.
const (
	margin   = 16
	row      = 20  // of one edge at a box
	apart    = 12  // between two boxes of a column
	inset    = 8   // of texts in a box
	bend     = 110 // in which edges cross
	head     = 64  // above the boxes
	charWide = 7.3 // of the font, of 12 pixels
)

// frame is where a box is. Its edges end at its sides, a row apart.
type frame struct{ x, y, width, height int }

// layout is where all is. Each edge begins with a straight piece in a row of its own, which has its label: labels never
// lie on one another, nor on boxes.
type layout struct {
	*graph
	frames [columns][]frame
	order  [columns][]int
	// labels is the width of the labels of the edges that leave a column.
	labels        [columns]int
	width, height int
}

func newLayout(g *graph) *layout {
	l := &layout{graph: g, order: g.arrange()}
	for i := range g.edges {
		e := &g.edges[i]
		l.labels[e.column] = max(l.labels[e.column], textWidth(label(&e.Stats))+2*inset)
	}
	x, tallest := margin, 0
	var heights [columns]int
	for c := range l.frames {
		l.frames[c] = make([]frame, len(g.nodes[c]))
		wide := textWidth(columnTitles()[c]) + 2*inset
		for i := range g.nodes[c] {
			wide = max(wide, textWidth(short(g.nodes[c][i].text))+2*inset)
		}
		for _, i := range l.order[c] {
			n := &g.nodes[c][i]
			f := frame{x, heights[c], wide, row*max(1, len(n.in), len(n.out)) + inset}
			l.frames[c][i] = f
			heights[c] += f.height + apart
		}
		x += wide
		if c+1 < columns {
			x += l.labels[c] + bend
		}
		tallest = max(tallest, heights[c])
	}
	for c := range l.frames {
		for i := range l.frames[c] {
			l.frames[c][i].y += head + (tallest-heights[c])/2
		}
	}
	l.width, l.height = x+margin, head+tallest
	return l
}

func columnTitles() [columns]string { return [columns]string{"clients", "Services", "endpoints"} }

func textWidth(text string) int { return int(charWide*float64(utf8.RuneCountInString(text))) + 1 }

// slot is the height of an edge at a side of a box: the first, second and so on of as many.
func (f *frame) slot(i, of int) int {
	return f.y + (f.height-row*of)/2 + row*i + row/2
}

// WriteSVG draws the picture.
func (p *Picture) WriteSVG(w io.Writer) error {
	l := newLayout(newGraph(p.Links))
	const line = 18
	title := printable.Text(p.Title)
	width := max(l.width, textWidth(title)*5/4+2*margin)
	for _, note := range p.Notes {
		width = max(width, textWidth(note)+2*margin)
	}
	height := l.height + margin + line*len(p.Notes)
	var b bytes.Buffer
	s := svg.New(&b)
	s.Startview(width, height, 0, 0, width, height)
	s.Title(title)
	s.Rect(0, 0, width, height, "fill:#ffffff")
	s.Gstyle("font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12px;fill:#1c2733")
	s.Text(margin, 24, title, "font-size:15px;font-weight:bold")
	for c, text := range columnTitles() {
		if len(l.frames[c]) > 0 {
			s.Text(l.frames[c][0].x, head-14, text, "fill:#5b6b7a")
		}
	}
	l.drawEdges(s)
	l.drawBoxes(s)
	for i, note := range p.Notes {
		s.Text(margin, l.height+margin+line*i, printable.Text(note), "fill:#5b6b7a")
	}
	s.Gend()
	s.End()
	_, err := w.Write(b.Bytes())
	return err
}

func (l *layout) drawEdges(s *svg.SVG) {
	ends := make([]int, len(l.edges)) // the height at the box that an edge leads to
	for c := range l.nodes {
		for i := range l.nodes[c] {
			n := &l.nodes[c][i]
			for slot, e := range n.in {
				ends[e] = l.frames[c][i].slot(slot, len(n.in))
			}
		}
	}
	for c := range l.nodes {
		for _, i := range l.order[c] {
			n, f := &l.nodes[c][i], &l.frames[c][i]
			for slot, e := range n.out {
				l.drawEdge(s, &l.edges[e], f.x+f.width, f.slot(slot, len(n.out)), ends[e])
			}
		}
	}
}

// drawEdge draws an edge from a point at the right of a box to the next column: straight under its label, then bent.
func (l *layout) drawEdge(s *svg.SVG, e *edge, x, y, end int) {
	const tip = 7
	bent := x + l.labels[e.column]
	to := l.frames[e.column+1][e.to].x
	paint := color(&e.Stats)
	s.Group()
	s.Title(details(&e.Stats))
	s.Path(fmt.Sprintf("M%d,%d H%d C%d,%d %d,%d %d,%d", x, y, bent, bent+bend/2, y, to-tip-bend/2, end, to-tip, end),
		fmt.Sprintf("fill:none;stroke:%s;stroke-width:%v;stroke-opacity:0.75", paint, thickness(&e.Stats)))
	s.Path(fmt.Sprintf("M%d,%d l%d,%d v%d z", to, end, -tip-1, -tip/2-1, tip+1), "fill:"+paint)
	s.Text(x+inset, y-4, label(&e.Stats), "font-size:11px;fill:"+paint)
	s.Gend()
}

func (l *layout) drawBoxes(s *svg.SVG) {
	for c := range l.nodes {
		fill := "#f4f6f8"
		if c == serviceColumn {
			fill = "#e3ecf5"
		}
		for _, i := range l.order[c] {
			f, text := &l.frames[c][i], l.nodes[c][i].text
			s.Group()
			s.Title(printable.Text(text))
			s.Roundrect(f.x, f.y, f.width, f.height, 6, 6, "stroke:#8fa1b3;fill:"+fill)
			s.Text(f.x+inset, f.y+f.height/2+4, short(text))
			s.Gend()
		}
	}
}
