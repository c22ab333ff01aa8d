package statuspage

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/html"
)

// attributes are names and values in turn.
func attributes(pairs ...string) []html.Attribute {
	var list []html.Attribute
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, html.Attribute{Key: pairs[i], Val: clean(pairs[i+1])})
	}
	return list
}

// element makes an element. Rendering escapes all text and attributes in it, so that no
// name can become markup. (Package html/template escapes too, but makes the binary a half
// larger: see CONTRIBUTING.md, "The size of the binary".) A nil child is left out.
func element(name string, attr []html.Attribute, children ...*html.Node) *html.Node {
	n := &html.Node{Type: html.ElementNode, Data: name, Attr: attr}
	for _, c := range children {
		if c != nil {
			n.AppendChild(c)
		}
	}
	return n
}

func text(format string, args ...any) *html.Node {
	return literal(fmt.Sprintf(format, args...))
}

// plain is an element with a text and no attributes.
func plain(name, content string) *html.Node { return element(name, nil, literal(content)) }

// literal makes a text node of a string that is no format.
func literal(s string) *html.Node { return &html.Node{Type: html.TextNode, Data: clean(s)} }

// link makes a link. target is made by request.url.
func link(target, content string) *html.Node {
	return element("a", attributes("href", target), literal(content))
}

// input makes a field of a form, which the element with the id NAME-help describes.
func input(kind, name, value string) *html.Node {
	return element("input", attributes("type", kind, "id", name, "name", name, "value", value, "maxlength",
		fmt.Sprint(maxQuery), "aria-describedby", name+"-help", "autocapitalize", "none", "autocomplete", "off",
		"spellcheck", "false"))
}

// clean replaces what is not to be seen, or changes how other text is seen: control
// characters, directions of writing, and bytes that are no UTF-8.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == utf8.RuneError:
			return '\uFFFD'
		}
		return r
	}, s)
}

// cut cuts a text that is longer than a number of bytes.
func cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit] + "..."
}

// cell is the content of a table's cell.
type cell []*html.Node

func textCell(s string) cell { return cell{literal(s)} }

// numberCell is for figures, which stand to the right.
func numberCell(s string) cell {
	return cell{element("span", attributes("class", "number"), literal(s))}
}

// table makes a table with a caption. The first cell of a row is its header. The roles keep it a table for screen
// readers where the style lays rows out as blocks, and data-label then names each cell for the eye.
func table(class, caption string, columns []string, rows []([]cell)) *html.Node {
	heads := element("tr", attributes("role", "row"))
	for _, c := range columns {
		heads.AppendChild(element("th", attributes("scope", "col", "role", "columnheader"), literal(c)))
	}
	body := element("tbody", attributes("role", "rowgroup"))
	for _, row := range rows {
		tr := element("tr", attributes("role", "row"))
		for i, c := range row {
			name, attr := "td", attributes("role", "cell", "data-label", columns[i])
			if i == 0 {
				name, attr = "th", attributes("scope", "row", "role", "rowheader", "data-label", columns[i])
			}
			tr.AppendChild(element(name, attr, element("div", nil, c...)))
		}
		body.AppendChild(tr)
	}
	return element("table", attributes("class", class, "role", "table"),
		plain("caption", caption), element("thead", attributes("role", "rowgroup"), heads), body)
}

// facts makes a description list of names and contents.
func facts(pairs ...fact) *html.Node {
	list := element("dl", nil)
	for _, p := range pairs {
		if len(p.content) > 0 {
			list.AppendChild(element("div", nil, plain("dt", p.name), element("dd", nil, p.content...)))
		}
	}
	return list
}

// fact is a name with a content. It is left out without content.
type fact struct {
	name    string
	content cell
}

func moment(t, now time.Time) *html.Node {
	if t.IsZero() {
		return literal("never")
	}
	const form = "2006-01-02 15:04:05 UTC"
	ago := "just now"
	if d := now.Sub(t); d >= time.Second {
		ago = duration(d) + " ago"
	}
	t = t.UTC()
	return element("span", nil, element("time", attributes("datetime", t.Format(time.RFC3339)), literal(t.Format(form))),
		text(" (%s)", ago))
}

// duration shows two or three figures of a duration.
func duration(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %d min", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours()/24))
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return thousands(n) + " " + many
}

func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
