package flowmap

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"nftproxy/model/printable"
)

// WriteDOT writes the picture in the language of Graphviz. A workload that is a client and has endpoints is one box, so
// that Graphviz draws chains of calls.
func (p *Picture) WriteDOT(w io.Writer) error {
	g := newGraph(p.Links)
	var b bytes.Buffer
	fmt.Fprintf(&b, "digraph nftproxy {\n\trankdir=LR\n\tlabel=%s\n\tnode [shape=box, style=rounded]\n",
		dotText(append([]string{p.Title}, p.Notes...)...))
	ids := g.dotIDs()
	for _, text := range slices.SortedFunc(maps.Keys(ids), func(a, b dotBox) int { return ids[a] - ids[b] }) {
		attributes := "label=" + dotText(text.text)
		if text.service {
			attributes += `, style=filled, fillcolor="#e3ecf5"`
		}
		fmt.Fprintf(&b, "\tn%d [%s]\n", ids[text], attributes)
	}
	for i := range g.edges {
		e := &g.edges[i]
		from, to := g.dotBox(e.column, e.from), g.dotBox(e.column+1, e.to)
		fmt.Fprintf(&b, "\tn%d -> n%d [label=%s, tooltip=%s, color=%q, penwidth=%v]\n", ids[from], ids[to],
			dotText(label(&e.Stats)), dotText(strings.Split(details(&e.Stats), "\n")...), color(&e.Stats), thickness(&e.Stats))
	}
	b.WriteString("}\n")
	_, err := w.Write(b.Bytes())
	return err
}

// dotBox is a box in DOT: of a workload or of a Service.
type dotBox struct {
	service bool
	text    string
}

func (g *graph) dotBox(column, i int) dotBox {
	return dotBox{column == serviceColumn, g.nodes[column][i].text}
}

// dotIDs numbers the boxes: names that could mean something in DOT are in labels only.
func (g *graph) dotIDs() map[dotBox]int {
	ids := map[dotBox]int{}
	for column := range g.nodes {
		for i := range g.nodes[column] {
			if b := g.dotBox(column, i); ids[b] == 0 {
				ids[b] = len(ids) + 1
			}
		}
	}
	return ids
}

// dotText is a quoted text of some lines: Graphviz reads escapes after a backslash, and entities after &.
func dotText(lines ...string) string {
	escapes := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `&`, `&amp;`, `<`, `&lt;`, `>`, `&gt;`)
	var safe []string
	for _, line := range lines {
		safe = append(safe, escapes.Replace(printable.Text(line)))
	}
	return `"` + strings.Join(safe, `\n`) + `"`
}
