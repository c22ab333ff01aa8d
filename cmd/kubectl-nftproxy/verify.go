package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/model/printable"
)

// verifiedRow is what nftproxy verify says on one node.
type verifiedRow struct {
	Node        string       `json:"node"`
	Error       string       `json:"error,omitempty"`
	Same        bool         `json:"same"`
	Services    int          `json:"services"`
	Missing     int          `json:"missing"`
	Extra       int          `json:"extra"`
	Changed     int          `json:"changed"`
	Differences []difference `json:"differences"`
}

// difference is one of nftproxy verify, with the fields that the plugin reads.
type difference struct {
	Service string `json:"service"`
	Family  string `json:"family"`
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Is      string `json:"is"`
}

type verifyCommand struct {
	*plugin
	output
	chosenNodes
}

// verifyRound: each node lists all objects, and reads its tables twice if they differ.
func verifyRound(progress io.Writer) cluster.Round {
	return cluster.Round{AtOnce: 4, Patience: 2 * time.Minute, Progress: progress}
}

func (p *plugin) newVerifyCommand() *cobra.Command {
	c := &verifyCommand{plugin: p}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare each node's tables with those that the API server's Services ask for",
		Long: `verify runs nftproxy verify on each node: it makes the tables of the Services in the API
server, and compares them with those in the node's kernel. Nodes whose tables are right
hold the same. A row with differences says how many elements and rules are missing,
extra or changed; the first ones stand below.

Each node lists all Services and EndpointSlices, four nodes at a time: in a large cluster
choose some by --node.

The exit status is 0 if all tables are right, and 1 if some are not or a node could not
tell.`,
		Example: `  kubectl nftproxy verify
  kubectl nftproxy verify --node=worker-3 -o yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	c.output.addFlags(cmd)
	c.addNodeFlag(cmd.Flags())
	return cmd
}

func (c *verifyCommand) run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	of, nodes, err := c.nodesOf(ctx, c.nodes)
	if err != nil {
		return err
	}
	rows, err := cluster.Each(ctx, nodes, verifyRound(c.terminal()),
		func(ctx context.Context, n *cluster.Node) verifiedRow { return verifyNode(ctx, of, n) })
	if err != nil {
		return err
	}
	if err := printRows(c.Out, &c.output, verifyColumns(), rows, func(r *verifiedRow) object {
		return object{kind: "VerifiedNode", name: r.Node, fields: r}
	}); err != nil {
		return err
	}
	if !c.forPrograms() {
		c.writeDifferences(rows)
	}
	if slices.ContainsFunc(rows, func(r verifiedRow) bool { return r.Error != "" || !r.Same }) {
		return statusWrong
	}
	return nil
}

func verifyNode(ctx context.Context, of *cluster.Cluster, n *cluster.Node) verifiedRow {
	text, err := of.Ask(ctx, n, "verify", "-o", "json", "--limit", "20")
	if exit := (*cluster.ExitError)(nil); errors.As(err, &exit) && exit.Status == int(statusWrong) {
		err = nil // The answer says what differs.
	}
	var row verifiedRow
	if err == nil {
		err = json.Unmarshal(text, &row)
	}
	if err != nil {
		row = verifiedRow{Error: err.Error(), Differences: []difference{}}
	}
	row.Node = n.Name
	return row
}

func verifyColumns() []column[verifiedRow] {
	number := func(n func(*verifiedRow) int) func(*verifiedRow) string {
		return func(r *verifiedRow) string {
			if r.Error != "" {
				return ""
			}
			return strconv.Itoa(n(r))
		}
	}
	return []column[verifiedRow]{
		{header: "Node", text: func(r *verifiedRow) string { return r.Node }},
		{header: "Right", text: func(r *verifiedRow) string {
			switch {
			case r.Error != "":
				return "unknown"
			case r.Same:
				return "yes"
			}
			return "no"
		}},
		{header: "Services", text: number(func(r *verifiedRow) int { return r.Services })},
		{header: "Missing", text: number(func(r *verifiedRow) int { return r.Missing })},
		{header: "Extra", text: number(func(r *verifiedRow) int { return r.Extra })},
		{header: "Changed", text: number(func(r *verifiedRow) int { return r.Changed })},
	}
}

// writeDifferences writes the first differences of each node.
func (c *verifyCommand) writeDifferences(rows []verifiedRow) {
	for i := range rows {
		r := &rows[i]
		if r.Error != "" {
			fmt.Fprintf(c.Out, "\n%s: %s\n", r.Node, printable.Text(r.Error))
		}
		if len(r.Differences) == 0 {
			continue
		}
		fmt.Fprintf(c.Out, "\n%s:\n", r.Node)
		for _, d := range r.Differences {
			text := fmt.Sprintf("%s: %s %s in %s, of %s", d.Is, d.Kind, d.Name, d.Family, cmp.Or(d.Service, "no Service"))
			fmt.Fprintf(c.Out, "  %s\n", printable.Text(text))
		}
	}
}
