package chart

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"nftproxy/bench/result"
)

const (
	width  = 22 * vg.Centimeter
	height = 13 * vg.Centimeter
	sans   = "Sans" // Liberation's
)

// Plots writes an SVG file for each question that has a figure, and returns the
// files' names.
func Plots(dir string, r *result.Report) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make plots: %w", err)
	}
	var files []string
	for _, q := range r.Questions() {
		p, err := picture(q, r)
		if err != nil {
			return files, fmt.Errorf("plot %q: %w", q, err)
		}
		if p == nil {
			continue
		}
		name := FileName(q)
		if err := save(p, filepath.Join(dir, name)); err != nil {
			return files, fmt.Errorf("plot %q: %w", q, err)
		}
		files = append(files, name)
	}
	return files, nil
}

// save writes the picture as SVG, whose readers may lack the font.
func save(p *plot.Plot, path string) error {
	drawn, err := p.WriterTo(width, height, "svg")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if _, err := drawn.WriteTo(&b); err != nil {
		return err
	}
	text := strings.ReplaceAll(b.String(), "font-family:Liberation Sans", "font-family:Liberation Sans,Arial,sans-serif")
	return os.WriteFile(path, []byte(text), 0o644)
}

// FileName is that of a question's picture.
func FileName(question string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(question) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			b.WriteRune(r)
		case r == ',' || b.Len() == 0 || strings.HasSuffix(b.String(), "-"):
		default:
			b.WriteByte('-')
		}
	}
	return strings.TrimSuffix(b.String(), "-") + ".svg"
}

// point is one figure of a backend.
type point struct {
	x, y float64
	size string
	// over says that the figure is a limit that was exceeded.
	over bool
}

// picture draws a question: cost against size, both axes logarithmic. It is nil
// if there is nothing to draw.
func picture(question string, r *result.Report) (*plot.Plot, error) {
	cells := slices.DeleteFunc(r.Of(question), func(c result.Cell) bool {
		v, found := c.Main()
		return c.Failed != "" || !found || v <= 0
	})
	if len(cells) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text = question
	p.Title.Padding = vg.Points(8)
	p.X.Label.Text = "services"
	if slices.ContainsFunc(cells, func(c result.Cell) bool { return c.Endpoints > 0 }) {
		p.X.Label.Text += " + endpoints"
	}
	p.Y.Label.Text = unitName(cells[0].Unit)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = decades{}, decades{}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Points(2)
	for _, style := range []*font.Font{
		&p.Title.TextStyle.Font, &p.X.Label.TextStyle.Font, &p.Y.Label.TextStyle.Font,
		&p.X.Tick.Label.Font, &p.Y.Tick.Label.Font, &p.Legend.TextStyle.Font,
	} {
		style.Variant = sans
	}
	p.Title.TextStyle.Font.Size = vg.Points(14)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{235}, color.Gray{225}
	p.Add(grid)
	for i, backend := range newTable(cells).backends {
		if err := addBackend(p, backend, i, cells); err != nil {
			return nil, err
		}
	}
	frame(p)
	if err := addSizes(p, cells); err != nil {
		return nil, err
	}
	return p, nil
}

// addBackend draws a backend's main values, joined where the shape of the
// cluster is the same, and its p99 above them.
func addBackend(p *plot.Plot, backend string, index int, cells []result.Cell) error {
	main := points(cells, backend, func(c *result.Cell) (float64, bool) { return c.Main() })
	tail := points(cells, backend, func(c *result.Cell) (float64, bool) { v, found := c.Values[result.P99]; return v, found })
	style := styleOf(backend, index)
	legend := []plot.Thumbnailer{}
	for _, series := range []struct {
		points []point
		dashed bool
	}{{main, false}, {tail, true}} {
		if len(series.points) == 0 {
			continue
		}
		line, err := plotter.NewLine(xys(sameShape(series.points, cells)))
		if err != nil {
			return err
		}
		line.Color, line.Width = style.Color, vg.Points(1.5)
		if series.dashed {
			line.Width, line.Dashes = vg.Points(0.7), []vg.Length{vg.Points(3), vg.Points(3)}
		}
		scatter, err := plotter.NewScatter(xys(series.points))
		if err != nil {
			return err
		}
		shown := series.points
		scatter.GlyphStyleFunc = func(i int) draw.GlyphStyle {
			s := style
			if series.dashed {
				s.Radius /= 2
			}
			if shown[i].over {
				s.Shape, s.Radius = draw.PyramidGlyph{}, style.Radius*1.5
			}
			return s
		}
		p.Add(line, scatter)
		if !series.dashed {
			// A legend shows one style only, which a function of the index has not.
			thumbnail := *scatter
			thumbnail.GlyphStyleFunc, thumbnail.GlyphStyle = nil, style
			legend = append(legend, line, &thumbnail)
		}
	}
	p.Legend.Add(legendName(backend, main, tail), legend...)
	return nil
}

func legendName(backend string, main, tail []point) string {
	if len(tail) > 0 {
		backend += " (p50, p99 dashed)"
	}
	if slices.ContainsFunc(main, func(p point) bool { return p.over }) {
		backend += "; triangle: stopped at the limit"
	}
	return backend
}

func points(cells []result.Cell, backend string, value func(*result.Cell) (float64, bool)) []point {
	var list []point
	for i := range cells {
		c := &cells[i]
		if v, found := value(c); c.Backend == backend && found && v > 0 {
			list = append(list, point{objects(c), v, c.Size, c.Over})
		}
	}
	slices.SortFunc(list, func(a, b point) int { return int(math.Copysign(1, a.x-b.x)) })
	return list
}

func objects(c *result.Cell) float64 { return float64(max(1, c.Services+c.Endpoints)) }

// sameShape leaves the points of clusters with ten endpoints a service, or with
// no endpoints counted: only these lie on a line.
func sameShape(list []point, cells []result.Cell) []point {
	return slices.DeleteFunc(slices.Clone(list), func(p point) bool {
		i := slices.IndexFunc(cells, func(c result.Cell) bool { return c.Size == p.size })
		c := cells[i]
		return c.Endpoints > 0 && !strings.HasSuffix(c.Size, "x10")
	})
}

func xys(list []point) plotter.XYs {
	xys := make(plotter.XYs, len(list))
	for i, p := range list {
		xys[i] = plotter.XY{X: p.x, Y: p.y}
	}
	return xys
}

// addSizes writes each size's name upwards from the bottom, at its place.
func addSizes(p *plot.Plot, cells []result.Cell) error {
	labels := plotter.XYLabels{}
	for _, size := range newTable(cells).sizes {
		i := slices.IndexFunc(cells, func(c result.Cell) bool { return c.Size == size })
		labels.XYs = append(labels.XYs, plotter.XY{X: objects(&cells[i]), Y: p.Y.Min})
		labels.Labels = append(labels.Labels, size)
	}
	l, err := plotter.NewLabels(labels)
	if err != nil {
		return err
	}
	for i := range l.TextStyle {
		l.TextStyle[i].Font.Size = vg.Points(9)
		l.TextStyle[i].Font.Variant = sans
		l.TextStyle[i].Color = color.Gray{80}
		l.TextStyle[i].Rotation = math.Pi / 2
		l.TextStyle[i].YAlign = draw.YCenter
	}
	l.Offset = vg.Point{Y: vg.Points(4)}
	p.Add(l)
	return nil
}

// frame leaves room around the points, for the legend and the labels.
func frame(p *plot.Plot) {
	p.X.Min, p.X.Max = p.X.Min/1.3, p.X.Max*1.6
	rise := math.Max(p.Y.Max/p.Y.Min, 10)
	p.Y.Max *= math.Pow(rise, 0.4)
	p.Y.Min /= math.Pow(rise, 0.3)
}

// decades marks powers of ten with names, and the numbers between without.
type decades struct{}

// Ticks is part of plot.Ticker.
func (decades) Ticks(low, high float64) []plot.Tick {
	var ticks []plot.Tick
	for e := math.Floor(math.Log10(low)); e <= math.Ceil(math.Log10(high)); e++ {
		for n := 1; n < 10; n++ {
			v := float64(n) * math.Pow(10, e)
			if v < low || v > high {
				continue
			}
			t := plot.Tick{Value: v}
			if n == 1 || high/low < 20 && (n == 2 || n == 5) {
				t.Label = plain(v)
			}
			ticks = append(ticks, t)
		}
	}
	return ticks
}

func plain(v float64) string {
	if v >= 1 {
		return result.Count(int(math.Round(v)))
	}
	return fmt.Sprintf("%g", v)
}

func unitName(unit string) string {
	switch unit {
	case "s":
		return "seconds"
	case "ms":
		return "milliseconds"
	case "us":
		return "microseconds"
	}
	return unit
}

// styleOf gives each backend its colour in every picture.
func styleOf(backend string, index int) draw.GlyphStyle {
	known := map[string]color.RGBA{
		result.NFTProxy:          {0x00, 0x6d, 0xb3, 255},
		result.KubeProxyNFTables: {0xd5, 0x5e, 0x00, 255},
		result.KubeProxyIPTables: {0xcc, 0x33, 0x77, 255},
		result.NFTCommand:        {0x8a, 0x6d, 0x00, 255},
		result.BareNetlink:       {0x44, 0x44, 0x44, 255},
		result.NoProxy:           {0x00, 0x00, 0x00, 255},
		result.OneStaticRule:     {0x77, 0x77, 0x77, 255},
	}
	c, found := known[backend]
	if !found {
		c = color.RGBA{uint8(60 * index), 0x99, uint8(255 - 60*index), 255}
	}
	return draw.GlyphStyle{Color: c, Radius: font.Points(3), Shape: draw.CircleGlyph{}}
}
