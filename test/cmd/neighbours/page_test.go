package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPage: the page is what the results say, and no row of it is bad.
func TestPage(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs")
	want, err := page(docs)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(docs, "neighbours.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("docs/neighbours.md is not what the results in docs/evidence/neighbours say; make neighbours writes both")
	}
	files, err := os.ReadDir(filepath.Join(docs, "evidence", "neighbours"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, n := range neighbours() {
		known[n.name] = true
	}
	for _, n := range clusterNeighbours() {
		known[n.name] = true
	}
	for _, n := range neighbours() {
		for _, name := range n.unset {
			if !known[name] {
				t.Errorf("%s has a setting for %s, which is no neighbour", n.name, name)
			}
		}
	}
	clusters, err := os.ReadDir(filepath.Join(docs, "evidence", "neighbours", "cluster"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range append(files, clusters...) {
		if f.IsDir() || f.Name() == "README.md" {
			continue
		}
		if name := strings.TrimSuffix(f.Name(), ".json"); !known[name] {
			t.Errorf("no neighbour is called %s: remove its result", name)
		}
	}
}

// TestJudge: what the neighbour forbids is told from what fails although it lets it pass.
func TestJudge(t *testing.T) {
	flows := []flow{
		{from: "a", to: "good", like: "open", want: kept},
		{from: "a", to: "masqueraded", like: "open", want: kept},
		{from: "a", to: "lost", like: "open", want: kept},
		{from: "a", to: "closed", like: "shut", want: kept},
		{from: "a", to: "hole", like: "shut", want: kept},
		{from: "a", to: "silent", like: "shut", want: refused},
		{from: "node", to: "unrefused", protocol: "tcp", like: "open", want: refused},
	}
	outcomes := []string{kept, hidden, "timed out", "timed out", kept, "timed out", "timed out"}
	got := map[string]string{}
	for i, f := range flows {
		got[f.key()] = outcomes[i]
	}
	table := judge(flows, got, map[string]string{"open": kept, "shut": "timed out"}, false)
	if table.Flows != 7 || table.AsBefore != 2 || len(table.Faults) != 3 || len(table.Closed) != 2 ||
		len(table.Opened) != 1 {
		t.Errorf("%+v", table)
	}
	if t2 := judge(flows, got, map[string]string{"open": kept, "shut": "timed out"}, true); len(t2.Faults) != 2 ||
		len(t2.Silent) != 1 {
		t.Errorf("%+v", t2)
	}
	if !strings.Contains(strings.Join(table.Faults, " "), "masqueraded") || !strings.HasPrefix(table.Opened[0],
		"a to hole") {
		t.Errorf("%+v", table)
	}
}

// TestVerdict: each kind of fault makes a row bad.
func TestVerdict(t *testing.T) {
	whole := func(change func(*outcome, *result)) verdict {
		r := result{Events: []outcome{{event: event{Name: nameStart}, Table: table{Flows: 2, AsBefore: 2}}}}
		change(&r.Events[0], &r)
		return r.verdict()
	}
	for _, c := range []struct {
		good   bool
		change func(*outcome, *result)
	}{
		{true, func(*outcome, *result) {}},
		{false, func(o *outcome, _ *result) { o.Table.Faults = []string{"x"} }},
		{false, func(o *outcome, _ *result) { o.Table.Opened = []string{"x"} }},
		{true, func(o *outcome, r *result) { o.Table.Opened, r.Opens = []string{"x"}, "its rule" }},
		{false, func(o *outcome, _ *result) { o.Lost = []string{"x"} }},
		{true, func(o *outcome, _ *result) { o.Lost, o.Excuse = []string{"x"}, "its rules" }},
		{false, func(o *outcome, _ *result) { o.Table.Closed = []string{"x"} }},
		{true, func(o *outcome, r *result) { o.Table.Closed, r.Check = []string{"x"}, []string{"y"} }},
		{false, func(_ *outcome, r *result) { r.Silences = "x" }},
		{true, func(_ *outcome, r *result) { r.Silences, r.Check = "x", []string{"y"} }},
	} {
		if v := whole(c.change); v.good != c.good {
			t.Errorf("%+v, want good %v", v, c.good)
		}
	}
	blocked := result{Events: []outcome{{Table: table{Closed: []string{"x"}}}}, Check: []string{"y"}}
	if v := blocked.verdictWithout("this setting: z"); !v.good || !strings.HasSuffix(v.text, "this setting: z") {
		t.Errorf("%+v, want the setting", v)
	}
}

// TestWeigh: what is lost while a neighbour drops all packets decides nothing, what is lost after that does.
func TestWeigh(t *testing.T) {
	n := neighbour{name: "drops", drops: []string{"reloads"}}
	for _, c := range []struct {
		event         string
		during, after int
		lost          int
	}{{"reloads", 3, 0, 0}, {"reloads", 3, 1, 1}, {"another", 1, 0, 1}} {
		none := []tally{{Made: 5}}
		tr := trial{
			n: n, alone: map[string]solitude{nameStart: {open: map[string]string{"way": kept}},
				c.event: {load: none, settled: none}},
			load: &load{streams: []stream{{protocol: "tcp", like: "way"}}, tallies: map[string][]tally{
				c.event: {{5, c.during}}, "reloads (over)": {{5, c.after}},
			}},
		}
		o := outcome{event: event{Name: c.event}, like: c.event}
		if tr.weigh(&o); len(o.Lost) != c.lost {
			t.Errorf("%+v: %v", c, o.Lost)
		}
	}
}

// TestBroken: a connection that an event may have ended counts for that event, and one that had an answer since for
// what came then.
func TestBroken(t *testing.T) {
	for _, c := range []struct {
		last, now moment
		want      string
	}{
		{moment{event: "starts"}, moment{event: "starts"}, "starts"},
		{moment{event: "starts (over)"}, moment{"starts (over)", "starts"}, "starts"},
		{moment{"starts (over)", "starts"}, moment{"starts (over)", "starts"}, "starts (over)"},
		{moment{proxyRestarts, "starts"}, moment{proxyRestarts, "starts"}, proxyRestarts},
	} {
		if got := c.last.brokenBy(c.now); got != c.want {
			t.Errorf("last %+v, now %+v: %s, want %s", c.last, c.now, got, c.want)
		}
	}
}
