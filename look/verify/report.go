package verify

import (
	"fmt"
	"io"
	"strings"
)

// Report is what people and programs get of a comparison. Its field names are promised.
type Report struct {
	// Same says that nothing differs.
	Same bool `json:"same"`
	// Source says where the wanted Services come from: "kubernetes" or "manifests".
	Source string `json:"source"`
	// Services is the number of Services that should be served.
	Services int `json:"services"`
	// Missing, Extra and Changed count all differences.
	Missing int `json:"missing"`
	Extra   int `json:"extra"`
	Changed int `json:"changed"`
	// Differences are grouped by Service. Those without a Service come first.
	Differences []Difference `json:"differences"`
	// Omitted is how many differences are left out of the list.
	Omitted int `json:"omitted"`
	// Idle are chains and sets, and chains with rules, that are no differences although no program has
	// them: the proxy keeps such for ten seconds.
	Idle []string `json:"idle"`
	// InFlight is how many differences of a first look were gone at a second one.
	InFlight int `json:"inFlight"`
	// Notes say what bears on the result.
	Notes []string `json:"notes"`
}

// Report makes a report with so many differences at most.
func (d *Differences) Report(limit int) Report {
	r := Report{Same: len(d.list) == 0, Differences: []Difference{}, Idle: append([]string{}, d.Idle...),
		Notes: []string{}}
	for i := range d.list {
		switch d.list[i].is {
		case Missing:
			r.Missing++
		case Extra:
			r.Extra++
		case Changed:
			r.Changed++
		}
		if len(r.Differences) < limit {
			r.Differences = append(r.Differences, d.list[i].public())
		}
	}
	r.Omitted = len(d.list) - len(r.Differences)
	return r
}

// WriteText prints the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	last := ""
	for i, d := range r.Differences {
		if i == 0 || d.Service != last {
			last = d.Service
			heading := "of no single Service"
			if last != "" {
				heading = "Service " + last
			}
			fmt.Fprintln(&b, heading)
		}
		d.writeLines(&b)
	}
	if r.Omitted > 0 {
		fmt.Fprintf(&b, "... and %d more\n", r.Omitted)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	if r.Same {
		fmt.Fprintln(&b, "same: the kernel has the rules that it should have")
	} else {
		fmt.Fprintf(&b, "different: %d missing, %d extra, %d changed\n", r.Missing, r.Extra, r.Changed)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeLines prints the difference on one line, and a changed object on two.
func (d *Difference) writeLines(b *strings.Builder) {
	where := d.Family // the text of a table, set or chain has its name
	switch d.Kind {
	case Rule:
		where += fmt.Sprintf(" chain %s:", d.Name)
	case Element:
		where += fmt.Sprintf(" %s:", d.Name)
	}
	switch d.Is {
	case Missing:
		fmt.Fprintf(b, "  missing  %s %s\n", where, d.Want)
	case Extra:
		fmt.Fprintf(b, "  extra    %s %s\n", where, d.Have)
	case Changed:
		fmt.Fprintf(b, "  changed  %s %s\n           it should be: %s\n", where, d.Have, d.Want)
	}
}
