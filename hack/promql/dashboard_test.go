// Package promql holds the dashboard and the alerts in deploy to what nftproxy exports,
// with Prometheus' own parser and engine. It is a module of its own, so that Prometheus
// is no dependency of nftproxy.
package promql

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

var update = flag.Bool("update", false, "write testdata/panels.txt")

// dashboard is the part of Grafana's model that the tests read.
type dashboard struct {
	Templating struct {
		List []struct{ Name, Query string }
	}
	Panels []struct {
		Type, Title string
		Targets     []struct{ Expr, LegendFormat string }
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/nftproxy.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// expand puts in what Grafana would put in for the variables.
func expand(expr string) string {
	return strings.NewReplacer("$job", "nftproxy", "$instance", ".*", "$__rate_interval", "1m").Replace(expr)
}

// TestDashboard: each panel asks for metrics and labels that nftproxy exports, and has
// data in the record of a real daemon. The panels as they look are in testdata/panels.txt;
// with -update they are written.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	exported := readListing(t)
	data := readScrapes(t)
	var drawn strings.Builder
	drawn.WriteString("# The panels of deploy/grafana/nftproxy.json with the data of testdata/scrapes.txt.\n# Written " +
		"by: go test . -run TestDashboard -update\n")
	panels := 0
	for _, p := range d.Panels {
		if p.Type == "row" {
			fmt.Fprintf(&drawn, "\n== %s ==\n", p.Title)
			continue
		}
		panels++
		fmt.Fprintf(&drawn, "\n%s\n", p.Title)
		for _, target := range p.Targets {
			expr := expand(target.Expr)
			exported.check(t, p.Title, expr)
			result := data.over(t, expr)
			if len(result) == 0 {
				t.Errorf("%s: no data for %s", p.Title, expr)
			}
			for _, series := range result {
				draw(&drawn, legend(target.LegendFormat, series), series)
			}
		}
	}
	if panels < 15 {
		t.Errorf("%d panels", panels)
	}
	for _, v := range d.Templating.List {
		if strings.HasPrefix(v.Query, "label_values(") {
			selector, _, _ := strings.Cut(strings.TrimPrefix(v.Query, "label_values("), ", ")
			exported.check(t, v.Name, expand(selector))
			if len(data.over(t, expand(selector))) == 0 {
				t.Errorf("variable %s: no data for %s", v.Name, selector)
			}
		}
	}
	const golden = "testdata/panels.txt"
	if *update {
		if err := os.WriteFile(golden, []byte(drawn.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(golden); err != nil || string(have) != drawn.String() {
		t.Errorf("%s is stale (-update writes it), err %v:\n%s", golden, err, drawn.String())
	}
}

// legend puts the labels of a series into its legend.
func legend(format string, s promql.Series) string {
	for name, value := range s.Metric.Map() {
		format = strings.ReplaceAll(format, "{{"+name+"}}", value)
	}
	return format
}

// draw writes a series as a line of blocks from 0 to its largest value.
func draw(b *strings.Builder, name string, s promql.Series) {
	most := 0.0
	for _, p := range s.Floats {
		if !math.IsNaN(p.F) {
			most = max(most, p.F)
		}
	}
	blocks := []rune("▁▂▃▄▅▆▇█")
	fmt.Fprintf(b, "  %-28s ", name)
	for _, p := range s.Floats {
		switch {
		case math.IsNaN(p.F):
			b.WriteRune(' ')
		case most == 0:
			b.WriteRune(blocks[0])
		default:
			b.WriteRune(blocks[min(len(blocks)-1, int(p.F/most*float64(len(blocks))))])
		}
	}
	fmt.Fprintf(b, "  0 to %.4g\n", most)
}

// TestLegends: a legend names labels that the result has.
func TestLegends(t *testing.T) {
	data := readScrapes(t)
	for _, p := range readDashboard(t).Panels {
		for _, target := range p.Targets {
			for _, series := range data.over(t, expand(target.Expr)) {
				if text := legend(target.LegendFormat, series); strings.Contains(text, "{{") {
					t.Errorf("%s: the legend %q lacks a label of %v", p.Title, text, series.Metric)
				}
			}
		}
	}
}

// check parses an expression and compares its metrics and labels with the listing.
func (l listing) check(t *testing.T, where, expr string) {
	t.Helper()
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	labels := []string{"job", "instance"} // The target's.
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		of, ok := l[v.Name]
		if !ok {
			t.Errorf("%s: nftproxy does not export %s", where, v.Name)
			return nil
		}
		labels = append(labels, of...)
		for _, m := range v.LabelMatchers {
			if m.Name != "__name__" && !slices.Contains(append(of, "job", "instance"), m.Name) {
				t.Errorf("%s: %s has no label %s", where, v.Name, m.Name)
			}
		}
		return nil
	})
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, label := range a.Grouping {
				if !slices.Contains(labels, label) {
					t.Errorf("%s: by %s, which no metric in %s has", where, label, expr)
				}
			}
		}
		return nil
	})
}

func engine() *promql.Engine {
	return promql.NewEngine(promql.EngineOpts{MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute})
}

// over evaluates an expression in 24 steps from the second scrape to the last.
func (d samples) over(t *testing.T, expr string) promql.Matrix {
	t.Helper()
	first, last := d.times[1], d.times[len(d.times)-1]
	query, err := engine().NewRangeQuery(context.Background(), d, nil, expr, first, last, last.Sub(first)/23)
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	result := query.Exec(context.Background())
	matrix, err := result.Matrix()
	if err != nil {
		t.Fatalf("%s: %v", expr, err)
	}
	return matrix
}
