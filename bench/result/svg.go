package result

import (
	"fmt"
	"html"
	"strings"
)

// The sizes of a picture, in pixels. A phone shows it with 360 instead of 560, and
// text must be readable there.
const (
	width     = 560.0
	margin    = 16.0
	titleSize = 22.0
	titleLine = 28.0
	textSize  = 17.0
	textLine  = 22.0
	// plotLeft is where the plot begins: texts of the vertical axis are before it.
	plotLeft = 76.0
	// plotRight is where it ends: the names of the lines are behind it.
	plotRight  = 352.0
	labelLeft  = 374.0
	plotHeight = 250.0
)

// theme is the colours of a picture. It has a background of its own, since the page
// around it may be dark where the reader's system is light, and the other way round.
type theme struct {
	background, text, faint, grid string
	// backends has a colour for each line, and other is for all that it lacks.
	backends map[string]string
	other    string
}

func lightTheme() theme {
	return theme{
		background: "#ffffff", text: "#1f2328", faint: "#59636e", grid: "#d1d9e0", other: "#59636e",
		backends: map[string]string{
			NFTProxy:          "#0757ba",
			KubeProxyNFTables: "#b34700",
		},
	}
}

func darkTheme() theme {
	return theme{
		background: "#0d1117", text: "#f0f6fc", faint: "#9da7b3", grid: "#3d444d", other: "#9da7b3",
		backends: map[string]string{
			NFTProxy:          "#6cb6ff",
			KubeProxyNFTables: "#ffa657",
		},
	}
}

// colour is that of a backend's line and label.
func (t theme) colour(backend string) string {
	if c, found := t.backends[backend]; found {
		return c
	}
	return t.other
}

// css sets the colours for the classes of a picture: of its parts, and line-0, line-1
// and so on for the backends.
func (t theme) css(backends []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".back{fill:%s}.text{fill:%s}.faint{fill:%s}.grid{stroke:%s}", t.background, t.text, t.faint, t.grid)
	for i, backend := range backends {
		c := t.colour(backend)
		fmt.Fprintf(&b, ".fill-%d{fill:%s}.line-%d{stroke:%s}", i, c, i, c)
	}
	return b.String()
}

// svg is an image that is being written, from the top.
type svg struct {
	body strings.Builder
}

// document is the whole file. Screen readers read out the title and the description.
func (s *svg) document(height float64, title, description string, backends []string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%s" height="%s" viewBox="0 0 %[1]s %[2]s" `+
		`role="img" aria-labelledby="title description">`+"\n",
		px(width), px(height))
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"description\">%s</desc>\n", html.EscapeString(title),
		html.EscapeString(description))
	fmt.Fprintf(&b, "<style>\ntext{font:%spx -apple-system,\"Segoe UI\",Helvetica,Arial,\"Liberation Sans\",sans-serif}\n",
		px(textSize))
	fmt.Fprintf(&b, ".title{font-size:%spx}.title,.name{font-weight:600}\n", px(titleSize))
	b.WriteString(
		"polyline{fill:none;stroke-linejoin:round}.series{stroke-width:2.5}.main{stroke-width:4}.beyond{stroke-dasharray:6 " +
			"5}.leader{stroke-width:1.5;stroke-dasharray:1.5 4}\n")
	fmt.Fprintf(&b, "%s\n@media (prefers-color-scheme:dark){%s}\n</style>\n", lightTheme().css(backends),
		darkTheme().css(backends))
	fmt.Fprintf(&b, "<rect class=\"back\" width=\"%s\" height=\"%s\" rx=\"8\"/>\n", px(width), px(height))
	b.WriteString(s.body.String())
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// text writes a line of text, whose baseline is at y. The anchor is start, middle or
// end: what of the text is at x.
func (s *svg) text(x, y float64, anchor, class, text string) {
	fmt.Fprintf(&s.body, "<text class=\"%s\" x=\"%s\" y=\"%s\" text-anchor=\"%s\">%s</text>\n", class, px(x), px(y),
		anchor, html.EscapeString(text))
}

// line joins places, of which it takes x and y in turn.
func (s *svg) line(class string, places ...float64) {
	var words []string
	for i := 0; i+1 < len(places); i += 2 {
		words = append(words, px(places[i])+","+px(places[i+1]))
	}
	fmt.Fprintf(&s.body, "<polyline class=\"%s\" points=\"%s\"/>\n", class, strings.Join(words, " "))
}

// paragraph writes a text over the whole width, and returns where it ends.
func (s *svg) paragraph(y float64, class, text string, size, line float64, bold bool) float64 {
	for _, words := range wrap(text, size, bold, width-2*margin) {
		s.text(margin, y+size, "start", class, words)
		y += line
	}
	return y
}

// px writes a length with a tenth of a pixel at most.
func px(v float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
}
