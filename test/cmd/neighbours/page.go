package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The result of each neighbour is kept in a file, so that a run of one changes its own part of the page only.

func resultFile(docs, name string) string {
	return filepath.Join(docs, "evidence", "neighbours", name+".json")
}

// keep writes the result of a neighbour.
func keep(docs, name string, result any) error {
	text, err := json.MarshalIndent(result, "", "\t")
	if err != nil {
		return fmt.Errorf("keep the result of %s: %w", name, err)
	}
	file := resultFile(docs, name)
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, append(text, '\n'), 0o644))
}

// read reads the result of a neighbour, if there is one.
func read(docs, name string, result any) (found bool, err error) {
	text, err := os.ReadFile(resultFile(docs, name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(text, result); err != nil {
		return false, fmt.Errorf("%s: %w", resultFile(docs, name), err)
	}
	return true, nil
}

// verdict is a row's answer to "does it work".
type verdict struct {
	good bool
	text string
}

func (r result) verdict() verdict { return r.verdictWithout("a setting") }

// verdictWithout is the verdict, with these words for the setting that the program lacks if it does.
func (r result) verdictWithout(setting string) verdict {
	var faults []string
	for _, o := range r.Events {
		if n := len(o.Table.Faults); n > 0 {
			faults = append(faults, fmt.Sprintf("%s: %d flows fail that it lets pass", o.Name, n))
		}
		if len(o.Table.Opened) > 0 && r.Opens == "" {
			faults = append(faults, fmt.Sprintf("%s: %d kinds of flows work that it closes", o.Name, len(o.Table.Opened)))
		}
		if n := len(o.Lost); n > 0 && o.Excuse == "" {
			faults = append(faults, fmt.Sprintf("%s: connections are lost on %d ways, and none without nftproxy", o.Name, n))
		}
	}
	if r.Record != nil && len(r.Record.Faults) > 0 {
		faults = append(faults, fmt.Sprintf("with flows, %d lines differ", len(r.Record.Faults)))
	}
	closed, also := r.Events[0].Table.Closed, ""
	if r.Record != nil {
		also = ", also with flows"
	}
	if slices.ContainsFunc(r.Events, func(o outcome) bool { return o.Excuse != "" }) {
		also += ". Its start or end loses connections"
	}
	switch {
	case len(faults) > 0:
		return verdict{false, "does not: " + strings.Join(faults, "; ")}
	case len(closed) > 0 && len(r.Check) == 0:
		return verdict{false, "blocks some Service traffic, and `nftproxy check` does not say so"}
	case len(closed) > 0:
		return verdict{true, "blocks traffic to pods without " + setting}
	case r.Silences != "" && len(r.Check) == 0:
		return verdict{false, "drops refusals, and `nftproxy check` does not say so"}
	case r.Silences != "":
		return verdict{true, "works, but connections of the node that should be refused time out without " + setting + also}
	case r.Setting != "":
		return verdict{true, "works with this setting: " + r.Setting + also}
	}
	return verdict{true, "works" + also}
}

// text is the result for the terminal.
func (r result) text() string {
	var b strings.Builder
	for _, o := range r.Events {
		fmt.Fprintf(&b, "  %-24s %3d flows, %3d as before; lost %d of %d, alone %d of %d\n", o.Name, o.Table.Flows,
			o.Table.AsBefore, o.Beside.Lost, o.Beside.Made, o.Alone.Lost, o.Alone.Made)
		for _, kind := range []struct {
			name string
			list []string
		}{{"closed", o.Table.Closed}, {"silent", o.Table.Silent}, {"opened", o.Table.Opened}, {"FAULT", o.Table.Faults},
			{"lost", o.Lost}} {
			for _, f := range kind.list {
				fmt.Fprintf(&b, "      %s: %s\n", kind.name, f)
			}
		}
	}
	if r.Record != nil {
		fmt.Fprintf(&b, "  record of %d connections: %d lines\n", r.Record.Connections, len(r.Record.Lines))
		for _, f := range r.Record.Faults {
			fmt.Fprintf(&b, "      FAULT: %s\n", f)
		}
	}
	for _, c := range r.Check {
		fmt.Fprintf(&b, "  check: %s\n", c)
	}
	for _, c := range r.Explain {
		fmt.Fprintf(&b, "  explain: %s\n", c)
	}
	return b.String() + "  " + r.verdict().text + "\n"
}

const head = `# Beside other programs

Does nftproxy work beside programs that set packet filter rules or addresses, or listen to packets? Each row is from a
run of the real program ([how](evidence/neighbours/README.md)). The first column links to all results. On a node,
` + "`nftproxy check`" + ` names what needs a setting. *PODS* are the cluster's ranges of pod addresses. *Also with
flows*: with [` + "`--nftproxy-flows=1/1`" + `](flows.md) its own record of the same connections ` +
	`was the same, and nftproxy
saw each once.

`

const notTried = `
## Not tried

- %s
`

// untried are programs that operators ask about, and that have no run.
func untried() []string {
	return []string{
		"kube-router's tunnels (`--overlay-type=full`, or nodes on several networks)",
		"MetalLB's mode for BGP, and its webhook", "kube-vip", "the binary of NodeLocal DNSCache",
		"iptables-legacy under any of these",
		"Calico's CNI plugin, BGP, IPIP and flowtable",
	}
}

// writePage writes the page from the results that there are.
func writePage(docs string) error {
	text, err := page(docs)
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(docs, 0o755), os.WriteFile(filepath.Join(docs, "neighbours.md"), []byte(text), 0o644))
}

func page(docs string) (string, error) {
	rows, without := "", untried()
	var notes []string
	settings, err := remedies(docs)
	if err != nil {
		return "", err
	}
	shown := map[string]bool{} // the runs with a setting that a row has
	for _, n := range neighbours() {
		r := new(result)
		found, err := read(docs, n.name, r)
		switch {
		case err != nil:
			return "", err
		case !found:
			without = append(without, n.program+": "+n.what)
			continue
		case shown[n.name]:
			continue // beside the program without its setting
		}
		v := r.verdict()
		if remedy, is := settings[n.name]; is {
			words := "[this setting](" + resultLink(remedy.Name) + "): " + remedy.Setting
			if shown[remedy.Name] {
				words = "the same setting"
			}
			if with := r.verdictWithout(words); with != v {
				shown[remedy.Name], v = true, with
			}
		}
		rows += row(n.program, n.name, r.What, v.text)
		notes = append(notes, remarks(n.program, r.Notes)...)
	}
	clusters, more, err := clustersSection(docs)
	if err != nil {
		return "", err
	}
	without = append(without, more...)
	table := "## Programs of a node\n\n| Program | How it is set up | nftproxy beside it |\n|---|---|---|\n" + rows +
		list(notes)
	return head + table + clusters + fmt.Sprintf(notTried, strings.Join(without, "\n- ")), nil
}

// remedies are the good results of programs with a setting, by the names of the rows without it.
func remedies(docs string) (map[string]result, error) {
	all := map[string]result{}
	for _, n := range neighbours() {
		var r result
		if found, err := read(docs, n.name, &r); err != nil {
			return nil, err
		} else if !found || !r.verdict().good {
			continue
		}
		for _, name := range n.unset {
			all[name] = r
		}
	}
	return all, nil
}

// row is a line of a table: the program's name leads to the result.
func row(program, name, what, verdict string) string {
	return fmt.Sprintf("| [%s](%s) | %s | %s |\n", program, resultLink(name), what, verdict)
}

// resultLink is where the page finds a result.
func resultLink(name string) string { return "evidence/neighbours/" + filepath.ToSlash(name) + ".json" }

// remarks are the notes on a program, each with its name.
func remarks(name string, notes []string) []string {
	var lines []string
	for _, n := range notes {
		lines = append(lines, "**"+name+"**: "+n)
	}
	return lines
}

// list is a list of Markdown, each line once.
func list(lines []string) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, l := range lines {
		if _, text, _ := strings.Cut(l, "**: "); !seen[text] {
			seen[text] = true
			b.WriteString("\n- " + l)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return b.String() + "\n"
}
