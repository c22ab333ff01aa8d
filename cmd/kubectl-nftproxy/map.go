package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/cmd/kubectl-nftproxy/flowmap"
)

type mapCommand struct {
	flowQuery
	window time.Duration
	links  int
}

// The values of -o that are pictures.
const (
	outputDOT = "dot"
	outputSVG = "svg"
)

func (p *plugin) newMapCommand() *cobra.Command {
	c := &mapCommand{flowQuery: flowQuery{plugin: p}}
	cmd := &cobra.Command{
		Use:   "map",
		Short: "Show who talks to whom through Services: as a table, as DOT or as a picture",
		Long: `map asks each node for the connections to Services of the namespace that it has followed,
and joins them: a row, or an arrow, for each workload of clients, port of a Service and
workload of endpoints. A workload is the Deployment, StatefulSet, CronJob or other owner
of a pod, as far as you may read it.

  RATE      new connections a second, within --window
  ANSWER    half of the first answers came within this time
  FAILED    the share of new connections that were refused, dropped or unanswered
  CAUSE     why most of those failed, in the words of nftproxy flows

-o wide adds within which time 95% were answered, how many connections are open, bytes
from clients and to them, and how many followed connections all of this rests on. All
numbers are estimated from the sample of --nftproxy-flows=1/N; times are right to 10 %.

-o svg draws a picture for a browser, and -o dot is for Graphviz, which draws chains of
calls. Red arrows have failures, and orange ones take 100 ms or more. Clients that have
no name are shown by their addresses, the eight busiest ones.`,
		Example: `  kubectl nftproxy map -n shop
  kubectl nftproxy map -n shop -o svg > shop.svg
  kubectl nftproxy map -A -o dot --window 1m | dot -Tpdf > all.pdf`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	c.addFlags(cmd)
	f := cmd.Flags()
	f.Lookup("output").Usage = "svg, dot, wide, json, yaml, name, jsonpath=..., custom-columns=... and the others of " +
		"kubectl get"
	f.DurationVar(&c.window, "window", 5*time.Minute, "connections that began within this time, and open ones")
	f.IntVar(&c.links, "links", 100, "show at most so many links; 0: all")
	return cmd
}

func (c *mapCommand) run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	s, err := c.source(ctx)
	if err != nil {
		return err
	}
	s.window = c.window.String()
	tally := flowmap.NewTally(c.window, s.shown)
	silent, err := s.ask(ctx, 0, c.terminal(), tally.Add)
	if err != nil {
		return err
	}
	if err := s.read(ctx, tally.Addresses()); err != nil {
		return err
	}
	links, left := flowmap.Bound(tally.Links(s.workload), c.links)
	notes := append(silentLines(silent), s.notes...)
	for _, text := range []string{tally.Note(), left} {
		if text != "" {
			notes = append(notes, text)
		}
	}
	where := "namespace " + c.namespace()
	if c.allNamespaces {
		where = "all namespaces"
	}
	picture := &flowmap.Picture{Links: links, Notes: notes, Title: fmt.Sprintf("Connections to Services of %s within %s, "+
		"by %d of %d nodes", where, c.window, len(s.nodes)-len(silent), len(s.nodes))}
	if err := c.print(c.Out, picture, silent); err != nil {
		return err
	}
	for _, text := range notes {
		c.note(text)
	}
	if len(links) == 0 {
		fmt.Fprintln(c.ErrOut, "No connections found")
	}
	return exitOf(silent)
}

func (c *mapCommand) check() error {
	switch {
	case c.window < time.Second:
		return fmt.Errorf("--window %s: want 1s or more", c.window)
	case c.links < 0:
		return fmt.Errorf("--links %d: want 0 or more", c.links)
	}
	switch *c.flags.OutputFormat {
	case outputDOT, outputSVG:
		return c.flowQuery.check()
	}
	return cmp.Or(c.flowQuery.check(), c.output.check())
}

func (c *mapCommand) print(w io.Writer, p *flowmap.Picture, silent []silence) error {
	switch *c.flags.OutputFormat {
	case outputDOT:
		return p.WriteDOT(w)
	case outputSVG:
		return p.WriteSVG(w)
	}
	var rows []linkRow
	for i := range p.Links {
		rows = append(rows, newLinkRow(&p.Links[i]))
	}
	if c.forPrograms() {
		for _, n := range silent {
			rows = append(rows, linkRow{Node: n.Node, State: n.State, Error: n.Error})
		}
	}
	return printRows(w, &c.output, linkColumns(), rows, linkObject)
}

// linkRow is a link for programs, or a node that tells of no flows.
type linkRow struct {
	Node  string `json:"node,omitempty"`
	State string `json:"state,omitempty"`
	Error string `json:"error,omitempty"`
	*linkFields
}

// linkFields are estimates for all connections. Numbers of connections are those of the window, and open ones.
type linkFields struct {
	Client flowmap.Party `json:"client"`
	flowmap.Port
	// Endpoint is nil if the rules led nowhere.
	Endpoint    *flowmap.Party `json:"endpoint"`
	PerSecond   float64        `json:"connectionsPerSecond"`
	New         float64        `json:"connections"`
	Open        float64        `json:"open"`
	FailedShare float64        `json:"failedShare"`
	Causes      []string       `json:"causes"`
	// Half and Most are within which times half and 95 % of the answers came; nil if there was none.
	Half      *float64 `json:"answerSeconds"`
	Most      *float64 `json:"answerSeconds95"`
	BytesFrom float64  `json:"bytesFrom"`
	BytesTo   float64  `json:"bytesTo"`
	Followed  int      `json:"followed"`
	link      *flowmap.Link
}

func newLinkRow(l *flowmap.Link) linkRow {
	f := &linkFields{link: l, Client: l.Client, Port: l.Port, PerSecond: l.PerSecond, New: l.New, Open: l.Open,
		FailedShare: l.FailedShare(), Causes: append([]string{}, l.Causes()...), BytesFrom: l.BytesFrom,
		BytesTo: l.BytesTo, Followed: l.Followed}
	if l.Endpoint != (flowmap.Party{}) {
		f.Endpoint = &l.Endpoint
	}
	for share, to := range map[float64]**float64{0.5: &f.Half, 0.95: &f.Most} {
		if d, known := l.Answer(share); known {
			*to = new(d.Seconds())
		}
	}
	return linkRow{linkFields: f}
}

func linkObject(r *linkRow) object {
	if r.linkFields == nil {
		return object{kind: "FlowsNode", name: r.Node, fields: r}
	}
	namespace, _, _ := strings.Cut(string(r.Service), "/")
	return object{kind: "Link", namespace: namespace, fields: r,
		name: strings.Join([]string{r.link.Client.String(), r.link.Port.String(), r.link.Endpoint.String()}, " ")}
}

func linkColumns() []column[linkRow] {
	of := func(text func(*flowmap.Link) string) func(*linkRow) string {
		return func(r *linkRow) string { return text(r.link) }
	}
	answer := func(share float64) func(*linkRow) string {
		return of(func(l *flowmap.Link) string {
			if d, known := l.Answer(share); known {
				return flowmap.Seconds(d)
			}
			return ""
		})
	}
	return []column[linkRow]{
		{header: "Client", text: of(func(l *flowmap.Link) string { return l.Client.String() })},
		{header: "Service", text: of(func(l *flowmap.Link) string { return l.Port.String() })},
		{header: "Endpoint", text: of(func(l *flowmap.Link) string { return l.Endpoint.String() })},
		{header: "Rate", text: of(func(l *flowmap.Link) string { return flowmap.Rate(&l.Stats) })},
		{header: "Answer", text: answer(0.5)},
		{header: "Failed", text: of(func(l *flowmap.Link) string { return cmp.Or(flowmap.Failed(&l.Stats), "0%") })},
		{header: "Cause", text: of(func(l *flowmap.Link) string { return few(l.Causes()[:min(1, len(l.Causes()))], "") })},
		{header: "Answer-95%", wide: true, text: answer(0.95)},
		{header: "Open", wide: true, text: of(func(l *flowmap.Link) string { return flowmap.Number(l.Open) })},
		{header: "From", wide: true, text: of(func(l *flowmap.Link) string { return flowmap.Bytes(l.BytesFrom) })},
		{header: "To", wide: true, text: of(func(l *flowmap.Link) string { return flowmap.Bytes(l.BytesTo) })},
		{header: "Followed", wide: true, text: of(func(l *flowmap.Link) string { return strconv.Itoa(l.Followed) })},
	}
}
