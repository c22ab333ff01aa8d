package explain

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// summary is the outcome in a sentence.
func (x *explainer) summary(e *Explanation) string {
	switch e.Outcome {
	case Endpoint:
		draw := drawText(&x.ways[0])
		text := fmt.Sprintf("it goes to one of %d endpoints%s", len(e.Endpoints), draw)
		switch {
		case e.Affinity != nil && len(e.Endpoints) == 1:
			text = fmt.Sprintf("it goes to %s, which is remembered for the client", e.Endpoints[0].Address)
		case len(e.Endpoints) == 1:
			text = "it goes to " + e.Endpoints[0].Address + draw
		}
		return text + masqueradeText(e.Endpoints) + e.stopText()
	case Mixed:
		var parts []string
		for _, r := range e.Results {
			parts = append(parts, fmt.Sprintf("%s (%s)", r.sentence(), percent(r.Chance)))
		}
		return strings.Join(parts, ", or ")
	}
	return e.Results[0].sentence() + e.stopText()
}

func (r *Result) sentence() string {
	switch r.Outcome {
	case Endpoint:
		return "it goes to an endpoint"
	case Refused:
		if r.By == noWayResult().By {
			return "the node cannot send it: its routes refuse the destination"
		}
		by := "a TCP reset"
		if r.By != "tcp reset" {
			by = "ICMP port unreachable"
		}
		return "it is refused by " + by
	case Dropped:
		return "it is dropped"
	case Undecided:
		return "nftproxy cannot tell what becomes of it"
	}
	return "nftproxy's rules leave it alone"
}

func masqueradeText(targets []Target) string {
	masqueraded := 0
	for _, t := range targets {
		if t.Masqueraded {
			masqueraded++
		}
	}
	switch {
	case masqueraded == 0:
		return ", and keeps its source address"
	case masqueraded == len(targets):
		return ", masqueraded"
	}
	return fmt.Sprintf(", masqueraded for %d of them", masqueraded)
}

// percent is a chance for people.
func percent(chance float64) string {
	text := strconv.FormatFloat(100*chance, 'f', 1, 64)
	return strings.TrimSuffix(text, ".0") + " %"
}

// Text is the explanation for people. verbose adds the text of each rule, and rules that most readers can do
// without.
func (e *Explanation) Text(verbose bool) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s from %s to %s", e.Packet.Protocol, e.Packet.clientText(), strings.TrimSuffix(e.Packet.Destination,
		"/"+e.Packet.Protocol))
	if e.Service != "" {
		fmt.Fprintf(&b, ", of Service %s", clean(strings.TrimSuffix(e.Service+":"+e.Port, ":")))
	}
	fmt.Fprintf(&b, ":\n%s.\n", e.Summary)
	e.writeEndpoints(&b)
	if text := stepsText(e.Steps, verbose); text != "" {
		fmt.Fprintf(&b, "\nSteps:\n%s", text)
	}
	for _, o := range e.Otherwise {
		if text := stepsText(o.Steps, verbose); text != "" {
			fmt.Fprintf(&b, "\nOtherwise (%s):\n%s", percent(o.Chance), text)
		}
	}
	writeList(&b, "Why", e.Causes)
	writeList(&b, "What cannot be used of the Service's objects", e.Problems)
	writeList(&b, "What to do", e.Remedies)
	var others []string
	for _, o := range e.Others {
		others = append(others, o.Says)
	}
	writeList(&b, "Chains of other programs on the way, which may drop or change it", others)
	var elsewhere []string
	for _, c := range e.Elsewhere {
		elsewhere = append(elsewhere, fmt.Sprintf("from %s (%s): %s", c.Source, c.From, c.Summary))
	}
	writeList(&b, "Other clients", elsewhere)
	writeList(&b, "Note", e.Notes)
	writeList(&b, "Assumed", e.Assumed)
	return b.String()
}

// clientText names the client.
func (p *Packet) clientText() string {
	if p.FromNode || p.Interface == "" {
		return fmt.Sprintf("%s (%s)", p.Source, p.From)
	}
	return fmt.Sprintf("%s (%s, by %s)", p.Source, p.From, clean(p.Interface))
}

func writeList(b *bytes.Buffer, heading string, list []string) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n", heading)
	for _, text := range list {
		fmt.Fprintf(b, "  %s\n", clean(text))
	}
}

// mostEndpoints is the greatest number of endpoints in the text.
const mostEndpoints = 20

func (e *Explanation) writeEndpoints(b *bytes.Buffer) {
	if len(e.Endpoints) == 0 {
		return
	}
	fmt.Fprint(b, "\nEndpoints:\n")
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, ep := range e.Endpoints[:min(len(e.Endpoints), mostEndpoints)] {
		masqueraded := "source address kept"
		if ep.Masqueraded {
			masqueraded = "masqueraded"
		}
		cells := slices.DeleteFunc([]string{ep.Address, percent(ep.Chance), masqueraded, ep.Way, ep.About},
			func(s string) bool { return s == "" })
		for i := range cells {
			cells[i] = clean(cells[i])
		}
		fmt.Fprintf(t, "  %s\n", strings.Join(cells, "\t"))
	}
	_ = t.Flush() // to memory
	if n := len(e.Endpoints) - mostEndpoints; n > 0 {
		fmt.Fprintf(b, "  ... and %d more\n", n)
	}
	var by []string
	for _, ep := range e.Endpoints {
		if ep.MasqueradedBy != "" && !slices.Contains(by, ep.MasqueradedBy) {
			by = append(by, ep.MasqueradedBy)
			fmt.Fprintf(b, "  masqueraded by %s\n", clean(ep.MasqueradedBy))
		}
	}
	if e.Affinity != nil {
		fmt.Fprintf(b, "  map %s remembers the client for %s, unless it connects again\n", clean(e.Affinity.Map),
			time.Duration(e.Affinity.ExpiresSeconds)*time.Second)
	}
}

// stepsText is a line for each step, and with verbose one for its rule and for each element.
func stepsText(steps []Step, verbose bool) string {
	var b bytes.Buffer
	steps = slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return s.minor && !verbose })
	width := 0
	for _, s := range steps {
		width = max(width, len(s.place()))
	}
	for _, s := range steps {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, s.place(), clean(s.Says))
		if !verbose {
			continue
		}
		fmt.Fprintf(&b, "  %*s  rule %d: %s\n", width, "", s.Number, clean(s.Rule))
		for _, e := range s.Elements {
			fmt.Fprintf(&b, "  %*s  element of %s\n", width, "", clean(e))
		}
	}
	return b.String()
}

// place names the chain, cut where a Service's name makes it long. A base chain has the name of its hook.
func (s *Step) place() string {
	const longest = 40
	name := clean(s.Chain)
	if runes := []rune(name); len(runes) > longest {
		name = string(runes[:longest-3]) + "..."
	}
	return name
}
