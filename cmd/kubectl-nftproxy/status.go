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
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/look/nodestatus"
	"nftproxy/model/printable"
)

// nodeRow is what is known of one node.
type nodeRow struct {
	Node string `json:"node"`
	Pod  string `json:"pod,omitempty"`
	// Error is why there is no Status.
	Error  string             `json:"error,omitempty"`
	Status *nodestatus.Status `json:"status,omitempty"`
	// Faults are why the node is not right; none if all is well.
	Faults []string `json:"faults,omitempty"`
}

type statusCommand struct {
	*plugin
	output
	chosenNodes
	wait    bool
	watch   bool
	timeout time.Duration
}

func (p *plugin) newStatusCommand() *cobra.Command {
	c := &statusCommand{plugin: p}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say which nodes are not right, and what differs between nodes",
		Long: `status asks the nftproxy of each node and prints a row for each:

  READY        whether its rules are in the kernel; no-pod and no-answer are nodes that
               could not be asked
  VERSION      nftproxy's version
  UPDATED      how long ago the rules were written or confirmed
  LATENCY      how long the last change took until it was in the kernel
  BEHIND       the lists of the API server that the node does not follow
  SERVICES     the number of Services
  QUARANTINED  the Services whose rules the kernel refused
  LEFT-OUT     the endpoints that get no new connections because they do not answer
  PROBLEMS     the Services that somebody has to look after: conflicts, bad fields and
               annotations, more than a limit

-o wide adds POD, ENDPOINTS, ELEMENTS, STARTED and CONFIG, which is equal for nodes with
the same flags. Below the table are the faults of nodes, the problems of Services, and
what differs between nodes.

The exit status is 0 if all nodes are well and 1 if not. What is wrong with objects and
endpoints is shown and does not count. --wait waits until all nodes are well and the
DaemonSet's update is through; use it after an upgrade. It exits with 1 if that does not
come in time.`,
		Example: `  kubectl nftproxy status
  kubectl nftproxy status --wait --timeout=10m
  kubectl nftproxy status --node=worker-3 -o yaml
  kubectl nftproxy status -o jsonpath='{.items[?(@.faults)].metadata.name}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	c.output.addFlags(cmd)
	f := cmd.Flags()
	c.addNodeFlag(f)
	f.BoolVar(&c.wait, "wait", false, "wait until all is well and the DaemonSet's update is through")
	f.DurationVar(&c.timeout, "timeout", 5*time.Minute, "how long --wait waits")
	f.BoolVarP(&c.watch, "watch", "w", false, "go on, and print the rows that change")
	return cmd
}

const (
	// statusPeriod is the least time between two rounds of --wait and --watch. Nodes tell nobody when they are well, so
	// they are asked again. statusRest is how much longer than a round the rest after it is.
	statusPeriod = 2 * time.Second
	statusRest   = 3
)

// round is what all nodes say at one time.
type round struct {
	rows []nodeRow
	// rollout says what the DaemonSets' updates wait for; empty for nothing.
	rollout string
}

// well says whether no node has a fault.
func (r *round) well() bool {
	return !slices.ContainsFunc(r.rows, func(n nodeRow) bool { return len(n.Faults) > 0 })
}

func (c *statusCommand) run(ctx context.Context) error {
	if c.wait && c.watch {
		return errors.New("--wait cannot be combined with --watch")
	}
	if err := c.check(); err != nil {
		return err
	}
	of, err := c.cluster()
	if err != nil {
		return err
	}
	if c.wait || c.watch {
		return c.repeat(ctx, of)
	}
	r, err := c.ask(ctx, of)
	if err != nil {
		return err
	}
	return c.report(r)
}

// repeat asks until all is well or the time is over, or with --watch until it is interrupted. A round that fails, as
// while the API server is away, is followed by another one.
func (c *statusCommand) repeat(ctx context.Context, of *cluster.Cluster) error {
	deadline := time.Now().Add(c.timeout)
	var last *round
	said := ""
	for {
		begun := time.Now()
		r, err := c.ask(ctx, of)
		switch {
		case ctx.Err() != nil && c.watch:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			said = c.say(said, err.Error())
		case c.watch:
			if err := c.printChanged(r, last); err != nil {
				return err
			}
		case r.well() && r.rollout == "":
			return c.report(r)
		default:
			said = c.say(said, r.progress())
		}
		if err == nil {
			last = r
		}
		rest := max(statusPeriod, statusRest*time.Since(begun))
		if c.wait && time.Now().Add(rest).After(deadline) {
			if last == nil {
				return err
			}
			return cmp.Or(c.report(last), error(statusWrong))
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
}

// say prints a line to stderr, unless it was the last one.
func (c *statusCommand) say(said, text string) string {
	if text != said {
		fmt.Fprintln(c.ErrOut, printable.Text(text))
	}
	return text
}

// progress says what --wait waits for.
func (r *round) progress() string {
	well := 0
	for i := range r.rows {
		if len(r.rows[i].Faults) == 0 {
			well++
		}
	}
	text := fmt.Sprintf("%d of %d nodes are well", well, len(r.rows))
	if r.rollout != "" {
		text += "; " + r.rollout
	}
	return text
}

// ask asks all nodes once.
func (c *statusCommand) ask(ctx context.Context, of *cluster.Cluster) (*round, error) {
	sets, nodes, err := nodesIn(ctx, of, c.nodes)
	if err != nil {
		return nil, err
	}
	r := &round{rollout: rolloutOf(sets)}
	r.rows, err = cluster.Each(ctx, nodes, cluster.DefaultRound(c.terminal()),
		func(ctx context.Context, n *cluster.Node) nodeRow { return askNode(ctx, of, n) })
	return r, err
}

// chosen returns the nodes with the names, all without a name.
func chosen(nodes []cluster.Node, names []string) ([]cluster.Node, error) {
	if len(names) == 0 {
		return nodes, nil
	}
	var list []cluster.Node
	for _, name := range names {
		i := slices.IndexFunc(nodes, func(n cluster.Node) bool { return n.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("--node: nftproxy is not meant for a node %q", name)
		}
		list = append(list, nodes[i])
	}
	return list, nil
}

// rolloutOf says what the updates of DaemonSets wait for; empty for nothing.
func rolloutOf(sets []appsv1.DaemonSet) string {
	var waiting []string
	for i := range sets {
		s := &sets[i]
		switch want := s.Status.DesiredNumberScheduled; {
		case s.Status.ObservedGeneration < s.Generation:
			waiting = append(waiting, s.Name+": its change has not been seen yet")
		case s.Status.UpdatedNumberScheduled < want:
			waiting = append(waiting, fmt.Sprintf("%s: %d of %d pods are updated", s.Name,
				s.Status.UpdatedNumberScheduled, want))
		case s.Status.NumberReady < want:
			waiting = append(waiting, fmt.Sprintf("%s: %d of %d pods are ready", s.Name, s.Status.NumberReady, want))
		}
	}
	return strings.Join(waiting, "; ")
}

func askNode(ctx context.Context, of *cluster.Cluster, n *cluster.Node) nodeRow {
	row := nodeRow{Node: n.Name}
	if n.Pod != nil {
		row.Pod = n.Pod.Name
	}
	answer, err := of.Ask(ctx, n, "status", "-o", "json")
	exit := (*cluster.ExitError)(nil)
	if errors.As(err, &exit) {
		switch {
		case exit.Status == int(statusWrong):
			err = nil // The answer says what is wrong.
		case strings.Contains(exit.Stderr, "unknown command"):
			err = errors.New("nftproxy is older than this plugin, and has no status")
		}
	}
	var s nodestatus.Status
	if err == nil {
		err = json.Unmarshal(answer, &s)
	}
	if err == nil && s.Node == "" {
		err = errors.New("nftproxy's answer is no status")
	}
	if err != nil {
		row.Error, row.Faults = err.Error(), []string{err.Error()}
		return row
	}
	row.Status, row.Faults = &s, s.Faults
	if exit != nil && len(row.Faults) == 0 {
		row.Faults = []string{"nftproxy says that something is wrong, and this plugin does not know what"}
	}
	return row
}

// report prints the rows, and returns the exit status.
func (c *statusCommand) report(r *round) error {
	if err := printRows(c.Out, &c.output, statusColumns(), r.rows, rowObject); err != nil {
		return err
	}
	if !c.forPrograms() {
		writeFaults(c.Out, r.rows)
		writeProblems(c.Out, r.rows)
		writeDifferences(c.Out, r.rows)
		if r.rollout != "" {
			fmt.Fprintf(c.Out, "\nDaemonSet: %s\n", printable.Text(r.rollout))
		}
	}
	if !r.well() {
		return statusWrong
	}
	return nil
}

func rowObject(r *nodeRow) object { return object{kind: "NodeStatus", name: r.Node, fields: r} }

// printChanged prints the rows that differ from those of the last round, all at first.
func (c *statusCommand) printChanged(r, last *round) error {
	changed := r.rows
	if last != nil {
		changed = slices.DeleteFunc(slices.Clone(r.rows), func(n nodeRow) bool {
			i := slices.IndexFunc(last.rows, func(l nodeRow) bool { return l.Node == n.Node })
			return i >= 0 && n.essence() == last.rows[i].essence()
		})
		*c.output.flags.NoHeaders = true
	}
	if len(changed) == 0 {
		return nil
	}
	return printRows(c.Out, &c.output, statusColumns(), changed, rowObject)
}

// essence is what makes a row worth printing again: not the time, and not the last sync.
func (r *nodeRow) essence() string {
	e := fmt.Sprint(r.Pod, r.Error, r.Faults)
	if s := r.Status; s != nil {
		e += fmt.Sprint(s.Version, s.Services, s.TroubledCount, s.LeftOutCount, s.Configuration)
	}
	return e
}

func statusColumns() []column[nodeRow] {
	of := func(text func(*nodestatus.Status) string) func(*nodeRow) string {
		return func(r *nodeRow) string {
			if r.Status == nil {
				return ""
			}
			return text(r.Status)
		}
	}
	number := func(n func(*nodestatus.Status) int) func(*nodeRow) string {
		return of(func(s *nodestatus.Status) string { return strconv.Itoa(n(s)) })
	}
	return []column[nodeRow]{
		{header: "Node", text: func(r *nodeRow) string { return r.Node }},
		{header: "Ready", text: func(r *nodeRow) string {
			switch {
			case r.Pod == "":
				return "no-pod"
			case r.Status == nil:
				return "no-answer"
			case !r.Status.Ready:
				return "no"
			case !r.Status.Healthy:
				return "unhealthy"
			}
			return "yes"
		}},
		{header: "Version", text: of(func(s *nodestatus.Status) string { return s.Version })},
		{header: "Updated", text: of(updated)},
		{header: "Latency", text: of(latency)},
		{header: "Behind", text: of(func(s *nodestatus.Status) string {
			if s.Behind == nil {
				return ""
			}
			return strings.Join(s.Behind.Resources, ",")
		})},
		{header: "Services", text: number(func(s *nodestatus.Status) int { return s.Services })},
		{header: "Quarantined", text: number((*nodestatus.Status).Quarantined)},
		{header: "Left-Out", text: number(func(s *nodestatus.Status) int { return s.LeftOutCount })},
		{header: "Problems", text: number(func(s *nodestatus.Status) int { return s.TroubledCount })},
		{header: "Pod", wide: true, text: func(r *nodeRow) string { return r.Pod }},
		{header: "Endpoints", wide: true, text: number(func(s *nodestatus.Status) int { return s.Endpoints })},
		{header: "Elements", wide: true, text: number(func(s *nodestatus.Status) int { return s.Elements })},
		{header: "Started", wide: true, text: of(func(s *nodestatus.Status) string { return age(s, s.Started) })},
		{header: "Config", wide: true, text: of(func(s *nodestatus.Status) string { return s.Configuration })},
	}
}

// age is the time since then by the node's own clock.
func age(s *nodestatus.Status, then time.Time) string {
	return duration.HumanDuration(s.Time.Sub(then))
}

// updated is the age of the older table.
func updated(s *nodestatus.Status) string {
	var oldest *time.Time
	for _, t := range s.Tables {
		if t.Updated != nil && (oldest == nil || t.Updated.Before(*oldest)) {
			oldest = t.Updated
		}
	}
	if oldest == nil {
		return "never"
	}
	return age(s, *oldest)
}

func latency(s *nodestatus.Status) string {
	if s.LastSync == nil {
		return ""
	}
	d := time.Duration(s.LastSync.LatencySeconds * float64(time.Second))
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second / 10).String()
}

// writeFaults lists why nodes are not right.
func writeFaults(w io.Writer, rows []nodeRow) {
	writeGrouped(w, "Faults", groupLines(rows, func(r *nodeRow) []string { return r.Faults }))
}

// maxProblems bounds the lines about Services.
const maxProblems = 10

// writeProblems lists the Services that somebody has to look after, those of most nodes first.
func writeProblems(w io.Writer, rows []nodeRow) {
	list := groupLines(rows, func(r *nodeRow) (lines []string) {
		if r.Status != nil {
			for i := range r.Status.Troubled {
				lines = append(lines, problemLine(&r.Status.Troubled[i]))
			}
		}
		return lines
	})
	slices.SortStableFunc(list, func(a, b groupedLine) int { return cmp.Compare(len(b.nodes), len(a.nodes)) })
	list = list[:min(len(list), maxProblems)]
	listed := map[string]int{}
	for _, l := range list {
		for _, node := range l.nodes {
			listed[node]++
		}
	}
	most, more := 0, []string(nil)
	for i := range rows {
		if r := &rows[i]; r.Status != nil && r.Status.TroubledCount > listed[r.Node] {
			most, more = max(most, r.Status.TroubledCount-listed[r.Node]), append(more, r.Node)
		}
	}
	if most > 0 {
		text := fmt.Sprintf("up to %d more: nftproxy get services on the node lists them", most)
		list = append(list, groupedLine{text, more})
	}
	writeGrouped(w, "Problems of Services", list)
}

// problemLine says what a Service has, or common parts of the rules, which have no namespace.
func problemLine(s *nodestatus.Service) string {
	why := s.Problems
	if len(why) == 0 {
		why = s.States
	}
	return strings.TrimPrefix(s.Namespace+"/"+s.Name, "/") + ": " + strings.Join(why, "; ")
}

// groupedLine is what is true of some nodes.
type groupedLine struct {
	text  string
	nodes []string
}

// groupLines groups equal lines of nodes.
func groupLines(rows []nodeRow, of func(*nodeRow) []string) (list []groupedLine) {
	at := map[string]int{}
	for i := range rows {
		for _, line := range of(&rows[i]) {
			n, known := at[line]
			if !known {
				n, at[line] = len(list), len(list)
				list = append(list, groupedLine{text: line})
			}
			list[n].nodes = append(list[n].nodes, rows[i].Node)
		}
	}
	return list
}

// writeGrouped lists what is wrong, the nodes of which it is true in front of it.
func writeGrouped(w io.Writer, title string, list []groupedLine) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	for _, l := range list {
		fmt.Fprintf(w, "  %s: %s\n", fewNodes(l.nodes), printable.Text(l.text))
	}
}

// writeDifferences says what is not the same on all nodes, though it is meant to be: versions, flags, Services.
func writeDifferences(w io.Writer, rows []nodeRow) {
	var lines []string
	for _, d := range []struct {
		name string
		of   func(*nodestatus.Status) string
	}{
		{"version", func(s *nodestatus.Status) string { return s.Version }},
		{"configuration", func(s *nodestatus.Status) string { return s.Configuration }},
		{"number of Services", func(s *nodestatus.Status) string { return strconv.Itoa(s.Services) }},
	} {
		nodes := map[string][]string{}
		for _, r := range rows {
			if r.Status != nil && r.Status.Ready {
				nodes[d.of(r.Status)] = append(nodes[d.of(r.Status)], r.Node)
			}
		}
		if len(nodes) < 2 {
			continue
		}
		var values []string
		for value := range nodes {
			values = append(values, value)
		}
		// The value of most nodes comes first.
		slices.SortFunc(values, func(a, b string) int {
			if len(nodes[a]) != len(nodes[b]) {
				return len(nodes[b]) - len(nodes[a])
			}
			return strings.Compare(a, b)
		})
		for i, value := range values {
			values[i] = fmt.Sprintf("%s on %s", printable.Text(value), fewNodes(nodes[value]))
		}
		lines = append(lines, fmt.Sprintf("  %s: %s\n", d.name, strings.Join(values, "; ")))
	}
	if len(lines) > 0 {
		fmt.Fprintf(w, "\nDiffers between nodes:\n%s", strings.Join(lines, ""))
	}
}

// fewNodes names some nodes and counts the others.
func fewNodes(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more nodes", strings.Join(names[:most-1], ", "), len(names)-most+1)
	}
	return strings.Join(names, ", ")
}
