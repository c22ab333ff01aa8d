package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"
)

// countersOff tells how connections become counted.
const countersOff = "new connections are not counted: start nftproxy run with --" + ownPrefix + "counters"

// writeTop prints one reading for people.
func writeTop(w io.Writer, v *topView, o *topOptions) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s in the tables", plural(v.services, "Service"))
	if v.Counters {
		fmt.Fprintf(&b, ", %s new connections/s", rateText(v.ConnectionsPerSecond))
	}
	b.WriteByte('\n')
	for _, verdict := range []string{"refused", "dropped"} {
		var words []string
		for _, c := range v.Causes {
			if c.Verdict == verdict {
				words = append(words, c.Cause+" "+rateText(c.PacketsPerSecond))
			}
		}
		fmt.Fprintf(&b, "%s/s: %s\n", verdict, strings.Join(words, ", "))
	}
	b.WriteByte('\n')
	if v.Counters {
		writeTopServices(&b, v, o)
	} else {
		fmt.Fprintln(&b, countersOff)
	}
	if len(v.Refused) > 0 {
		b.WriteByte('\n')
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "SERVICE\tCAUSE\tPACKETS/S\tPACKETS")
		for _, r := range v.Refused {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\n", printable(r.Service), r.Cause, rateText(r.PacketsPerSecond), r.Packets)
		}
		t.Flush() // a Buffer takes everything
	}
	_, err := w.Write(b.Bytes())
	return err
}

func writeTopServices(b *bytes.Buffer, v *topView, o *topOptions) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\tPORT\tPROTOCOL\tNEW/S\tNEW")
	for _, s := range v.Services {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\n", printable(s.Service), printable(s.Port), s.Protocol, rateText(s.ConnectionsPerSecond), s.Connections)
		if !o.endpoints {
			continue
		}
		for _, e := range s.Endpoints {
			rate := "-"
			if e.ConnectionsPerSecond != nil {
				rate = rateText(*e.ConnectionsPerSecond)
			}
			fmt.Fprintf(t, "  %s\t\t\t%s\t%d\n", e.Endpoint, rate, e.Connections)
		}
	}
	t.Flush() // a Buffer takes everything
}

// rateText has one digit after the point where it says something.
func rateText(r float64) string {
	if r == 0 || r >= 100 {
		return fmt.Sprintf("%.0f", r)
	}
	return fmt.Sprintf("%.1f", r)
}

// The escape sequences that draw a screen anew without flicker: to the upper left corner, clear
// to the end of the line, clear to the end of the screen.
const (
	escapeHome       = "\x1b[H"
	escapeClearLine  = "\x1b[K"
	escapeClearBelow = "\x1b[J"
)

// drawTop shows one reading on a terminal, cut to its size.
func drawTop(screen *os.File, v *topView, o *topOptions) error {
	var b bytes.Buffer
	if err := writeTop(&b, v, o); err != nil {
		return err
	}
	width, height, err := term.GetSize(int(screen.Fd()))
	if err != nil {
		return fmt.Errorf("size of the terminal: %w", err)
	}
	_, err = io.WriteString(screen, frame(b.String(), width, height))
	return err
}

// frame is the text as one picture of a terminal of that size. The last line stays free, for the
// shell's prompt after the end.
func frame(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	lines = lines[:min(len(lines), max(1, height-1))]
	var b strings.Builder
	b.WriteString(escapeHome)
	for _, line := range lines {
		runes := []rune(line)
		b.WriteString(string(runes[:min(len(runes), max(1, width))]))
		b.WriteString(escapeClearLine + "\r\n")
	}
	b.WriteString(escapeClearBelow)
	return b.String()
}
