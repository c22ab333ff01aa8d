package tracing

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// WriteText prints the packet and its way for people. printable makes a cell's text safe for a
// terminal.
func (p *Packet) WriteText(w io.Writer, printable func(string) string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "packet %d: %s %s -> %s", p.Number, p.Protocol, p.Source, p.Destination)
	if p.Input != "" {
		fmt.Fprintf(&b, ", in by %s", p.Input)
	} else {
		b.WriteString(", from this node")
	}
	if p.Service != "" {
		fmt.Fprintf(&b, ", Service %s:%s", p.Service, p.Port)
	}
	head := printable(b.String())
	if _, err := fmt.Fprintln(w, head); err != nil {
		return err
	}
	const padding = 2
	t := tabwriter.NewWriter(w, 0, 0, padding, ' ', 0)
	for _, s := range p.Steps {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", printable(cmp.Or(s.Hook, "-")), printable(s.Family+" "+s.Table),
			printable(s.Chain), printable(s.text()))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "  %s\n", printable(p.end()))
	return err
}

// text is the rule and its verdict.
func (s *Step) text() string {
	switch {
	case s.By == endOfChain:
		return s.By
	case s.By != byRule:
		return s.By + ": " + s.Verdict
	case s.Rule == "":
		return fmt.Sprintf("rule with handle %d: %s", s.Handle, s.Verdict)
	case strings.HasSuffix(s.Rule, s.Verdict):
		return s.Rule
	}
	return fmt.Sprintf("%s: %s", s.Rule, s.Verdict)
}

// end says what became of the packet.
func (p *Packet) end() string {
	text := string(p.Fate)
	if p.Fate == Other {
		text += " to another program, and no chain saw it again; if it went on, it has an entry"
	}
	if p.Fate == Passed && p.Translated.IsValid() {
		text += ", translated to " + p.Translated.String()
	}
	if p.Output != "" && p.Fate == Passed {
		text += ", out by " + p.Output
	}
	if p.Omitted > 0 {
		text += fmt.Sprintf("; %d more steps", p.Omitted)
	}
	if p.Incomplete {
		text += "; steps may be missing, since events were lost or not read in time"
	}
	return text
}
