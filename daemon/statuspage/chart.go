package statuspage

import (
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/net/html"
)

// The measures of the picture, in units of its view box.
const (
	chartWidth, chartHeight = 640, 200
	// The frame is left for the names of the axes.
	chartLeft, chartRight, chartTop, chartBottom = 84, 8, 14, 32
)

// chart draws the syncs from left to right, the height of a bar by the time that the sync
// lasted, on a logarithmic scale. A failed sync differs in shape too, not in colour only.
func chart(list []record, now time.Time) *html.Node {
	low, high := decades(list)
	y := func(d time.Duration) float64 {
		at := (math.Log10(d.Seconds()) - float64(low)) / float64(high-low)
		return chartTop + (1-min(1, max(0, at)))*(chartHeight-chartTop-chartBottom)
	}
	svg := element("svg", attributes("class", "chart", "viewBox", fmt.Sprintf("0 0 %d %d", chartWidth, chartHeight),
		"role", "img", "aria-labelledby", "chart-title chart-desc"),
		element("title", attributes("id", "chart-title"), literal("Latency of the last syncs")),
		element("desc", attributes("id", "chart-desc"), literal(describe(list))))
	for e := low; e <= high; e++ {
		at := number(y(decade(e)))
		svg.AppendChild(element("line", attributes("class", "grid", "x1", number(chartLeft), "x2",
			number(chartWidth-chartRight), "y1", at, "y2", at)))
		svg.AppendChild(element("text", attributes("x", number(chartLeft-6), "y", at, "dy", "0.35em", "text-anchor", "end"),
			literal(decadeName(e))))
	}
	slot := float64(chartWidth-chartLeft-chartRight) / float64(max(len(list), historyLength/4))
	for i := range list {
		svg.AppendChild(bar(&list[i], chartLeft+float64(i)*slot, slot, y))
	}
	if len(list) > 0 {
		last := chartLeft + float64(len(list))*slot
		under := number(chartHeight - 9)
		svg.AppendChild(element("text", attributes("x", number(chartLeft), "y", under),
			text("%s ago", duration(max(0, now.Sub(list[0].start))))))
		if last > chartLeft+chartWidth/2 {
			svg.AppendChild(element("text", attributes("x", number(last), "y", under, "text-anchor", "end"),
				text("%s ago", duration(max(0, now.Sub(list[len(list)-1].start))))))
		}
	}
	return svg
}

// bar draws one sync. A failed one has a cross at its top.
func bar(r *record, x, slot float64, y func(time.Duration) float64) *html.Node {
	class := "bar"
	switch {
	case r.err != "":
		class = "bar failed"
	case r.latency == 0:
		class = "bar unprompted"
	}
	top, foot := y(r.lasted()), float64(chartHeight-chartBottom)
	width := max(1, slot-1)
	g := element("g", attributes("class", class),
		element("rect", attributes("x", number(x), "y", number(top), "width", number(width), "height",
			number(max(1, foot-top)))))
	if r.err != "" {
		const arm = 4.0
		middle, at := x+width/2, max(chartTop, top)
		g.AppendChild(element("path", attributes("d", fmt.Sprintf("M%s %sl%s %sm0 -%sl-%s %s",
			number(middle-arm), number(at-arm), number(2*arm), number(2*arm), number(2*arm), number(2*arm), number(2*arm)))))
	}
	return g
}

func decades(list []record) (low, high int) {
	low, high = -3, -1
	for i := range list {
		at := math.Log10(max(list[i].lasted(), 10*time.Microsecond).Seconds())
		low, high = min(low, int(math.Floor(at))), max(high, int(math.Ceil(at)))
	}
	return low, min(high, low+8)
}

func decade(e int) time.Duration { return time.Duration(math.Pow10(e + 9)) }

func decadeName(e int) string {
	switch d := decade(e); {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	}
}

func number(f float64) string { return fmt.Sprintf("%.4g", f) }

func describe(list []record) string {
	if len(list) == 0 {
		return "No sync has ended yet."
	}
	lasted := make([]time.Duration, len(list))
	failed := 0
	for i := range list {
		lasted[i] = list[i].lasted()
		if list[i].err != "" {
			failed++
		}
	}
	slices.Sort(lasted)
	s := fmt.Sprintf("The last %s: median %s, longest %s.", count(len(list), "sync", "syncs"),
		duration(lasted[len(lasted)/2]), duration(lasted[len(lasted)-1]))
	if failed > 0 {
		s += fmt.Sprintf(" Of these, %d failed.", failed)
	}
	return s
}
