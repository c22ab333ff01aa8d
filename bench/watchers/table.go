package watchers

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Table writes what was measured, and what follows from it for a cluster of many nodes.
func Table(out io.Writer, c Config, results []Result, nodes int) error {
	fmt.Fprintf(out, "%d Services of %d endpoints; %d changes of an endpoint; %v at rest; the API server away for %v\n\n", c.Services, c.Endpoints, c.Changes, c.Rest, c.Away)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "step\twatchers\ttook\tAPI server CPU\twatchers' CPU\treceived\tsent\tconnections")
	for _, step := range steps() {
		for _, r := range results {
			cost := step.of(r)
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%d\n", step.name, r.Watchers, seconds(cost.Took), seconds(cost.Server), seconds(cost.Nodes),
				byteCount(float64(cost.Received)), byteCount(float64(cost.Sent)), cost.Connections)
		}
	}
	for _, r := range results {
		fmt.Fprintf(w, "most memory\t%d\t\t%s\t\t\t\t\n", r.Watchers, byteCount(float64(r.Memory)))
	}
	for _, r := range results {
		fmt.Fprintf(w, "news after the return\t%d\thalf after %s\t0.9 after %s\tall after %s\t\t\t\n", r.Watchers, seconds(r.News.Half), seconds(r.News.Most), seconds(r.News.All))
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "one node's share\t\tAPI server CPU\tnode's CPU\treceived\t\tAPI server CPU for %d nodes\tsent to %d nodes\n", nodes, nodes)
	for _, step := range steps() {
		each := float64(max(1, step.times(c)))
		server := slope(results, func(r Result) float64 { return step.of(r).Server.Seconds() }) / each
		node := slope(results, func(r Result) float64 { return step.of(r).Nodes.Seconds() }) / each
		received := slope(results, func(r Result) float64 { return float64(step.of(r).Received) }) / each
		fmt.Fprintf(w, "%s\t\t%s\t%s\t%s\t\t%s\t%s\n", step.share, small(server), small(node), byteCount(received),
			small(server*float64(nodes)), byteCount(received*float64(nodes)))
	}
	return w.Flush()
}

// step is one of the steps of a measurement.
type step struct {
	name, share string
	of          func(Result) Cost
	// times is how often what share names happens in the step.
	times func(Config) int
}

func steps() []step {
	once := func(Config) int { return 1 }
	return []step{
		{"start", "start", func(r Result) Cost { return r.Start }, once},
		{"rest", "rest", func(r Result) Cost { return r.Rest }, once},
		{"changes", "one change", func(r Result) Cost { return r.Change }, func(c Config) int { return c.Changes }},
		{"API server's return", "API server's return", func(r Result) Cost { return r.Return }, once},
	}
}

// slope is what one watcher more adds: that of the line through the measurements with the least squares.
func slope(results []Result, value func(Result) float64) float64 {
	var n, x, y, xx, xy float64
	for _, r := range results {
		a, b := float64(r.Watchers), value(r)
		n, x, y, xx, xy = n+1, x+a, y+b, xx+a*a, xy+a*b
	}
	d := n*xx - x*x
	if d == 0 {
		return 0
	}
	return (n*xy - x*y) / d
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// small writes a time in seconds with a unit that suits it.
func small(s float64) string {
	switch size := math.Abs(s); {
	case size >= 10:
		return fmt.Sprintf("%.0f s", s)
	case size >= 0.1:
		return fmt.Sprintf("%.2f s", s)
	case size >= 1e-3:
		return fmt.Sprintf("%.1f ms", s*1e3)
	}
	return fmt.Sprintf("%.1f us", s*1e6)
}

// byteCount writes a number of bytes with a unit that suits it: kB is 1,000 bytes.
func byteCount(n float64) string {
	units := strings.Fields("B kB MB GB TB")
	for n >= 1000 && len(units) > 1 {
		n, units = n/1000, units[1:]
	}
	digits := 1
	if n >= 100 || units[0] == "B" {
		digits = 0
	}
	return strconv.FormatFloat(n, 'f', digits, 64) + " " + units[0]
}
