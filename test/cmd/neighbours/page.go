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

func resultFile(docs, name string) string { return filepath.Join(docs, "neighbours", name+".json") }

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

func (r result) verdict() verdict {
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
	closed, also := r.Events[0].Table.Closed, ""
	if slices.ContainsFunc(r.Events, func(o outcome) bool { return o.Excuse != "" }) {
		also = ". Its start or end loses connections"
	}
	switch {
	case len(faults) > 0:
		return verdict{false, "does not: " + strings.Join(faults, "; ")}
	case len(closed) > 0 && len(r.Check) == 0:
		return verdict{false, "blocks some Service traffic, and `nftproxy check` does not say so"}
	case len(closed) > 0:
		return verdict{true, "blocks some Service traffic, as it blocks direct traffic to the pods or the node: needs a setting"}
	case r.Silences != "" && len(r.Check) == 0:
		return verdict{false, "drops refusals, and `nftproxy check` does not say so"}
	case r.Silences != "":
		return verdict{true, "works, but the node's own TCP connections to Services without endpoints and to unknown ports time out in place of being refused: needs a setting" + also}
	case r.Setting != "":
		return verdict{true, "works with this setting: " + r.Setting + also}
	}
	return verdict{true, "works" + also}
}

// text is the result for the terminal.
func (r result) text() string {
	var b strings.Builder
	for _, o := range r.Events {
		fmt.Fprintf(&b, "  %-24s %3d flows, %3d as before; lost %d of %d, alone %d of %d\n", o.Name, o.Table.Flows, o.Table.AsBefore, o.Beside.Lost, o.Beside.Made, o.Alone.Lost, o.Alone.Made)
		for _, kind := range []struct {
			name string
			list []string
		}{{"closed", o.Table.Closed}, {"silent", o.Table.Silent}, {"opened", o.Table.Opened}, {"FAULT", o.Table.Faults}, {"lost", o.Lost}} {
			for _, f := range kind.list {
				fmt.Fprintf(&b, "      %s: %s\n", kind.name, f)
			}
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

const head = `# Neighbours

You run another program on the nodes that sets packet filter rules or addresses, and want to know whether nftproxy works beside it. Each row below is from a run of
the real program (` + "`make neighbours`" + `, as root; ` + "`NEIGHBOUR=ufw`" + ` for one). The command writes this page; the results are in the folder
[neighbours](neighbours). "PODS" stands for the cluster's ranges of pod addresses.

## What a run does

The program runs in namespaces of its own on a node with pods, a second node and a client outside. First it runs alone: from each place, a TCP
connection and a datagram of both families go directly to a pod on the node, to one on the other node, and to a server on the node. Then it runs
beside nftproxy. After each of the program's events, after a restart of nftproxy, and where nftproxy starts after the program, the same clients
connect to Services: cluster IP, node port (also on localhost), load balancer, external IP; endpoints on the node, on the other node, and the client itself; policies
Cluster and Local; a health check node port; no endpoints, and an unknown port. The endpoint says whether it sees the client's address.

- A flow has to go as without the program, unless the program alone closes the direct way between the same places. Then it has to stay closed.
- A load of new connections, datagrams and open connections runs all the time, on the ways that the program leaves open. If an event with the program
  alone loses no connection, it may lose none beside nftproxy, and so for datagrams.
- Losses of the program alone are counted only on the ways that it leaves open to pods.
- While firewalld reloads, it drops all packets, and how long depends on the machine. What is lost in that time is shown and does not count. What begins once the
  event is over counts.
- Beside CoreDNS the load also asks it by the cluster IPs of the DNS Service. No question may be lost there, whatever the program alone loses. By TCP a question is asked
  again if its connection breaks: where tracking of an open connection begins or ends, its packets reach another server. The node's own questions of the load come from its own address: a process that asks for no
  other gets the cache's as soon as the node has that, and with IPv6 some milliseconds before the node takes answers for it.
- Where keepalived or FRR moves an address between two nodes, the load asks that address from outside, and nothing may be lost either: each of new connections and datagrams has
  an answer, and a connection that breaks is tried again. Open connections end when the address moves, since the other node has other endpoints.
- Beside FRR the client is behind the router. It also asks an address that both nodes announce all the time, of a Service with ` + "`nftproxy.io/balance: flow`" + `: after each event, flows with the
  same ports have to reach the same endpoints as before, and while the router has two routes some of them have to go by each node.
- Istio's rules are in the network of two pods: the one that asks, and the endpoint on the node. A proxy in these pods accepts each TCP connection before it goes on to the Service, so that a
  refusal breaks the connection off. The proxy says which client it sees, as Envoy does, and that has to be right. When the rules or the proxy come and go, open connections of these pods end:
  what began before such an event is over does not count.
- Where the program closes flows, ` + "`nftproxy check`" + ` has to find it on that node.

`
const notTried = `## Not tried

These were not run, so nothing is said about them:

- %s
`

// untried are programs that operators ask about, and that have no run.
func untried() []string {
	return []string{
		"kube-router's tunnels (`--overlay-type=full`, or nodes on several networks; the kernel here has neither IP in IP nor FOU: `ip tunnel add t0 mode ipip local 127.0.0.1 remote 127.0.0.2` fails with `add tunnel \"tunl0\" failed: No such device`)", "kube-router's service proxy (it takes nftproxy's place)", "MetalLB's mode for BGP, and its webhook", "kube-vip",
		"the binary of NodeLocal DNSCache", "iptables-legacy under any of these",
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
	rows, details, without := "", "", untried()
	for _, n := range neighbours() {
		r := new(result)
		found, err := read(docs, n.name, r)
		if err != nil {
			return "", err
		}
		if !found {
			without = append(without, n.name+" ("+n.what+")")
			continue
		}
		rows += fmt.Sprintf("| [%s](#%s) | %s | %s | %s |\n", r.Name, r.Name, r.What, strings.Join(r.Versions, ", "), r.verdict().text)
		details += r.section()
	}
	clusters, more, err := clustersSection(docs)
	if err != nil {
		return "", err
	}
	without = append(without, more...)
	table := "## Results\n\n| Neighbour | How it is set up | Versions | nftproxy beside it |\n|---|---|---|---|\n" + rows + "\n"
	return head + table + fmt.Sprintf(notTried, strings.Join(without, "\n- ")) + details + strings.TrimRight(clusters, "\n") + "\n", nil
}

// section is the part of the page about one neighbour.
func (r result) section() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s. Run on %s, Linux %s.\n\n", r.Name, capital(r.What), r.Date, r.Kernel)
	b.WriteString("| Event | Flows as without it | Closed by it | Lost beside nftproxy | Lost alone |\n|---|---|---|---|---|\n")
	for _, o := range r.Events {
		lost := [2]string{"", ""}
		if o.Beside.Made > 0 {
			lost = [2]string{fmt.Sprintf("%d of %d", o.Beside.Lost, o.Beside.Made), fmt.Sprintf("%d of %d", o.Alone.Lost, o.Alone.Made)}
		}
		fmt.Fprintf(&b, "| %s | %d of %d | %d | %s | %s |\n", o.Name, o.Table.AsBefore, o.Table.Flows, o.Table.Flows-o.Table.AsBefore-len(o.Table.Faults), lost[0], lost[1])
	}
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n\n", title)
		for _, l := range lines {
			fmt.Fprintf(&b, "- %s\n", l)
		}
	}
	for _, o := range r.Events {
		list("Faults, "+o.Name+":", o.Table.Faults)
		why := ""
		if o.Excuse != "" {
			why = " (" + o.Excuse + ")"
		}
		list("Ways that lost connections, "+o.Name+why+":", o.Lost)
	}
	start := r.Events[0].Table
	list("Closed by it after its start:", start.Closed)
	if r.Opens != "" {
		list("Open to Services although the direct way is closed ("+r.Opens+"):", start.Opened)
	}
	list("Without an answer ("+r.Silences+"):", start.Silent)
	list("`nftproxy check` finds:", r.Check)
	list("`nftproxy explain` says of a closed flow:", r.Explain)
	if r.Setting != "" {
		fmt.Fprintf(&b, "\nThe setting: %s.\n", r.Setting)
	}
	list("For operators:", r.Notes)
	return b.String()
}

func capital(text string) string {
	if first, _, _ := strings.Cut(text, " "); strings.Contains(first, ".") {
		return text // the name of a unit or a file
	}
	return strings.ToUpper(text[:1]) + text[1:]
}
