package scenario_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/scenario"
)

// pagesDirectory has the pages that TestPages writes.
const pagesDirectory = "../../docs/services"

// page is one page of docs/services: a feature of Services.
type page struct {
	// file is the page's name without ".md".
	file, title, lead string
	sections          []section
}

// section shows one scenario on a page.
type section struct{ scenario, title string }

// TestPages checks that docs/services says what the scenario files say, and that each
// scenario is on exactly one page. With -update it writes the pages.
func TestPages(t *testing.T) {
	pages := readPages(t)
	scenarios := readScenarios(t)
	want := map[string]string{"README.md": indexPage(pages)}
	seen := map[string]string{}
	for _, p := range pages {
		for _, sec := range p.sections {
			if other, twice := seen[sec.scenario]; twice {
				t.Errorf("scenario %s is on the pages %s and %s", sec.scenario, other, p.file)
			}
			if seen[sec.scenario] = p.file; scenarios[sec.scenario] == nil {
				t.Fatalf("page %s shows the scenario %s, which is no file", p.file, sec.scenario)
			}
		}
		text, err := p.render(scenarios)
		if err != nil {
			t.Fatal(err)
		}
		want[p.file+".md"] = text
	}
	for name := range scenarios {
		if seen[name] == "" {
			t.Errorf("scenario %s is on no page: name it in testdata/pages.txt", name)
		}
	}
	comparePages(t, want)
}

// readScenarios reads all scenario files, by name.
func readScenarios(t *testing.T) map[string]*scenario.Scenario {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	scenarios := map[string]*scenario.Scenario{}
	for _, file := range files {
		s, err := scenario.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		scenarios[s.Name] = s
	}
	return scenarios
}

func comparePages(t *testing.T, want map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		path := filepath.Join(pagesDirectory, name)
		if updating() {
			if err := os.WriteFile(path, []byte(want[name]), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(string(have), want[name]); diff != "" {
			t.Errorf("docs/services/%s is stale: run go test ./test/scenario -run TestPages -update (-have +want):\n%.2000s",
				name, diff)
		}
	}
	files, err := os.ReadDir(pagesDirectory)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, known := want[f.Name()]; !known {
			t.Errorf("docs/services/%s is no page that testdata/pages.txt names", f.Name())
		}
	}
}

// readPages reads testdata/pages.txt, which explains itself.
func readPages(t *testing.T) []page {
	t.Helper()
	b, err := os.ReadFile("testdata/pages.txt")
	if err != nil {
		t.Fatal(err)
	}
	var pages []page
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if head, found := strings.CutPrefix(line, "= "); found {
			file, title, _ := strings.Cut(head, " ")
			pages = append(pages, page{file: file, title: title})
			continue
		}
		if len(pages) == 0 {
			t.Fatalf("pages.txt: %q stands before the first page", line)
		}
		p := &pages[len(pages)-1]
		name, title, found := strings.Cut(line, ": ")
		switch {
		case p.lead == "":
			p.lead = line
		case !found:
			t.Fatalf("pages.txt: line %q: want SCENARIO: HEADING", line)
		default:
			p.sections = append(p.sections, section{scenario: name, title: title})
		}
	}
	return pages
}

// written begins each page.
const written = "<!-- Written from test/scenario/testdata by: go test ./test/scenario -run TestPages -update -->\n\n"

// indexPage is docs/services/README.md.
func indexPage(pages []page) string {
	var b strings.Builder
	b.WriteString(written)
	b.WriteString(`# Services by example

Each page shows one feature of Services by an example: the objects, and what happens to each connection. Further cases
are links to files that have the objects, the connections and the ruleset as nft prints it.

| Feature | In short | Cases |
|---|---|---|
`)
	examples := 0
	for _, p := range pages {
		first, _, _ := strings.Cut(p.lead, ". ")
		fmt.Fprintf(&b, "| [%s](%s.md) | %s | %d |\n", p.title, p.file, strings.TrimSuffix(first, ".")+".", len(p.sections))
		examples += len(p.sections)
	}
	fmt.Fprintf(&b, `
Each of the %d cases is a file in [test/scenario/testdata](../../test/scenario/testdata). Tests write the pages from these files and
send the packets through a kernel, with a real API server, and beside the real kube-proxy.

## How to read the tables

A line is one connection attempt: who sends the first packet, where to, and what happens to it.

| Words | Meaning |
|---|---|
| goes to A | the packet reaches the endpoint A, which sees the client's own address |
| goes to A or B | each new connection goes to one of them at random |
| masqueraded | the endpoint sees an address of the node instead of the client's |
| stays there | session affinity: the client's next connections go to the same endpoint |
| refused | the client learns of the refusal at once: TCP by a reset, other protocols by ICMP port unreachable |
| dropped | the packet goes nowhere and the client gets no answer |
| not translated | the packet goes unchanged to its own destination |
| answered by the node | the node answers a ping, and the answer comes from the address that was asked |
| HTTP 200 | the answer of a health check node port |

## The cluster of the examples

All examples begin with the same node.

- The node is *test-node*, with the addresses 192.168.0.2 (its first), 192.168.1.2, 192.168.99.11, 2001:db8::1 (its first) and 2001:db8:1::2.
- Its zone is *zone-a*. Its pods have addresses of 10.180.0.0/24 and fd00:10:180::/64.
- An address in the cluster CIDRs 10.0.0.0/8 and fd00:10::/32 is a pod's, unless an example has other flags.
- The ServiceCIDRs are 172.30.0.0/16 and fd00:172:30::/112.
- The ruleset in a file leaves out what [an empty cluster](../../test/scenario/testdata/empty.txtar) has in the same form.
`, examples)
	return b.String()
}
