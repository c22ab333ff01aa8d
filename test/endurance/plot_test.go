package endurance

import (
	"fmt"
	"strings"
)

// The size of a picture in pixels: each curve has a panel of its own, below the last.
const (
	plotWidth, panelHeight, plotTop = 560, 92, 84
	plotLeft, plotRight             = 16, 470
)

// plot is a picture of the samples, for light and dark pages.
func plot(all []sample) string {
	last := all[len(all)-1]
	height := plotTop + panelHeight*len(curves()) + 30
	const title = "What nftproxy and the kernel hold"
	over := fmt.Sprintf("over %s changes and %s watches", thousands(last.Changes), thousands(last.Watches))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-labelledby="title description">
<title id="title">%s %s</title>
<desc id="description">By the number of changes.%s</desc>
<style>
text{font:15px -apple-system,"Segoe UI",Helvetica,Arial,"Liberation Sans",sans-serif}
.title{font-size:20px;font-weight:600}.curve{fill:none;stroke-width:2;stroke-linejoin:round}
.back{fill:#ffffff}.text{fill:#1f2328}.faint{fill:#59636e}.grid{stroke:#d1d9e0}.curve{stroke:#0757ba}
@media (prefers-color-scheme:dark){.back{fill:#0d1117}.text{fill:#f0f6fc}.faint{fill:#9da7b3}.grid{stroke:#3d444d}.curve{stroke:#6cb6ff}}
</style>
<rect class="back" width="%d" height="%d" rx="8"/>
<text class="title text" x="%d" y="32">%s</text>
<text class="title text" x="%d" y="58">%s</text>
`, plotWidth, height, plotWidth, height, title, over, description(all), plotWidth, height, plotLeft, title, plotLeft, over)
	for i, c := range curves() {
		drawPanel(&b, c, all, plotTop+panelHeight*i)
	}
	fmt.Fprintf(&b, `<text class="faint" x="%d" y="%d">0</text><text class="faint" x="%d" y="%d" text-anchor="end">%s `+
		`changes</text>`+"\n</svg>\n",
		plotLeft, height-12, plotRight, height-12, thousands(last.Changes))
	return b.String()
}

// description says the same in words.
func description(all []sample) string {
	var b strings.Builder
	for _, c := range curves() {
		fmt.Fprintf(&b, " %s: %.0f after %s, %.0f at the end.", c.what, c.of(&all[0]), thousands(all[0].Changes),
			c.of(&all[len(all)-1]))
	}
	return b.String()
}

// drawPanel draws a curve from zero, with its greatest and its last value.
func drawPanel(b *strings.Builder, c curve, all []sample, top int) {
	const text, room = 16, 58
	most := 1.0
	for i := range all {
		most = max(most, c.of(&all[i]))
	}
	bottom := top + text + room
	var points []string
	for i := range all {
		x := plotLeft + float64(plotRight-plotLeft)*float64(all[i].Changes)/float64(all[len(all)-1].Changes)
		points = append(points, fmt.Sprintf("%.1f,%.1f", x, float64(bottom)-c.of(&all[i])/most*(room-8)))
	}
	fmt.Fprintf(b, `<text class="faint" x="%d" y="%d">%s, at most %.0f</text>`+"\n", plotLeft, top+text-4, c.what, most)
	fmt.Fprintf(b, `<line class="grid" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", plotLeft, bottom, plotRight, bottom)
	fmt.Fprintf(b, `<polyline class="curve" points="%s"/>`+"\n", strings.Join(points, " "))
	end := c.of(&all[len(all)-1])
	fmt.Fprintf(b, `<text class="text" x="%d" y="%.1f">%.0f</text>`+"\n", plotRight+10, float64(bottom)-end/most*(room-8)+
		5, end)
}

// thousands writes a number with commas.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
