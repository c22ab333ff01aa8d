package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/cmd/kubectl-nftproxy/flowmap"
	"nftproxy/model/flows"
	"nftproxy/model/printable"
)

// flowQuery is what flows and map share: which nodes tell of which flows.
type flowQuery struct {
	*plugin
	output
	scope
	services []string
	from, to string
	result   string
}

func (q *flowQuery) addFlags(cmd *cobra.Command) {
	q.output.addFlags(cmd)
	f := cmd.Flags()
	q.addScopeFlags(f)
	f.StringSliceVar(&q.services, "service", nil, "only these Services of the namespace")
	f.StringVar(&q.from, "from", "", "only these clients: an address, a CIDR, or `KIND/NAME` such as pod/NAME or "+
		"deploy/NAME in the namespace, or node/NAME")
	f.StringVar(&q.to, "to", "", "only these endpoints, in the same words; an address may be the one that the client "+
		"sent to")
	f.StringVar(&q.result, "result", "", "only flows with this result: waiting, answered, refused, unanswered or dropped")
}

// check refuses what no node can answer.
func (q *flowQuery) check() error {
	if q.result != "" && !slices.Contains(flows.Results(), flows.Result(q.result)) {
		return fmt.Errorf("--result %q: want one of %v", q.result, flows.Results())
	}
	if q.allNamespaces && len(q.services) > 0 {
		return errors.New("--service cannot be combined with --all-namespaces")
	}
	return nil
}

// flowSource is where flows come from, and which ones.
type flowSource struct {
	of    *cluster.Cluster
	nodes []cluster.Node
	*residents
	// args are the flags for the nodes. all says that nodes cannot choose by them alone, so that shown has to. window
	// spares nodes what is older than is used; empty for no window.
	args   []string
	all    bool
	window string
	shown  func(*flows.Flow) bool
}

// source connects, and finds out what is asked for.
func (q *flowQuery) source(ctx context.Context) (*flowSource, error) {
	of, nodes, err := q.nodesOf(ctx, nil)
	if err != nil {
		return nil, err
	}
	namespace := q.namespace()
	s := &flowSource{of: of, residents: newResidents(of, nodes, namespace)}
	if s.nodes, err = chosen(nodes, q.nodes); err != nil {
		return nil, err
	}
	if !q.allNamespaces {
		s.args = append([]string{"-n", namespace}, q.services...)
	}
	if q.result != "" {
		s.args = append(s.args, "--result", q.result)
	}
	from, err := s.end(ctx, "from", q.from, namespace)
	if err != nil {
		return nil, err
	}
	to, err := s.end(ctx, "to", q.to, namespace)
	if err != nil {
		return nil, err
	}
	s.shown = func(f *flows.Flow) bool {
		return (q.allNamespaces || strings.HasPrefix(string(f.Service), namespace+"/")) &&
			(from == nil || from[f.Client.Addr().Unmap()]) && (to == nil || to[f.Endpoint.Addr().Unmap()])
	}
	return s, nil
}

// end reads one end. Nodes know an address or CIDR themselves; for another one the addresses are returned.
func (s *flowSource) end(ctx context.Context, flag, text, namespace string) (map[netip.Addr]bool, error) {
	if text == "" {
		return nil, nil
	}
	_, addrErr := netip.ParseAddr(text)
	if _, err := netip.ParsePrefix(text); err == nil || addrErr == nil {
		s.args = append(s.args, "--"+flag, text)
		return nil, nil
	}
	list, err := s.residents.of(ctx, text, namespace)
	if err != nil {
		return nil, fmt.Errorf("--%s %q: %w", flag, text, err)
	}
	s.all = true
	return list, nil
}

// The states of a node that tells of no flows.
const (
	flowsOff     = "off"
	flowsTooOld  = "too-old"
	flowsCannot  = "cannot"
	flowsUnknown = "no-answer"
)

// silence is why a node tells of no flows; the zero one for a node that does.
type silence struct{ Node, State, Error string }

// ask asks all nodes for flows, the last ones if last is not 0, and gives each answer to add, one after the other.
func (s *flowSource) ask(ctx context.Context, last int, progress io.Writer, add func(*flowmap.Answer)) ([]silence,
	error) {
	if s.all {
		last = 0
	}
	args := slices.Concat([]string{"flows", "-o", "json", "--last", strconv.Itoa(last)}, s.args)
	// Older nodes do not know these flags, and do not need them.
	var optional []string
	if s.window != "" {
		optional = append(optional, "--since="+s.window)
	}
	if last == 0 {
		optional = append(optional, "--gzip")
	}
	var mu sync.Mutex
	silent, err := cluster.Each(ctx, s.nodes, cluster.DefaultRound(progress),
		func(ctx context.Context, n *cluster.Node) silence {
			known := slices.Clone(optional)
			a, err := s.askOne(ctx, n, slices.Concat(args, known)...)
			for err != nil {
				before := len(known)
				known = slices.DeleteFunc(known, func(flag string) bool {
					name, _, _ := strings.Cut(flag, "=")
					return strings.Contains(err.Error(), "unknown flag: "+name)
				})
				if len(known) == before {
					break
				}
				a, err = s.askOne(ctx, n, slices.Concat(args, known)...)
			}
			if err != nil {
				return silenceOf(n.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			add(a)
			return silence{}
		})
	silent = slices.DeleteFunc(silent, func(s silence) bool { return s == silence{} })
	if err == nil && len(silent) == len(s.nodes) && !slices.ContainsFunc(silent, func(s silence) bool {
		return s.State != flowsOff
	}) {
		return nil, errors.New("no node follows connections: start nftproxy with --nftproxy-flows=1/256 (docs/flows.md)")
	}
	return silent, err
}

// askOne asks one node.
func (s *flowSource) askOne(ctx context.Context, n *cluster.Node, args ...string) (*flowmap.Answer, error) {
	text, err := s.of.Ask(ctx, n, args...)
	if err != nil {
		return nil, err
	}
	var a flowmap.Answer
	if text, err = unzipped(text); err == nil {
		err = json.Unmarshal(text, &a)
	}
	a.Node = n.Name
	return &a, err
}

// mostUnzipped bounds the flows of a node, in bytes.
const mostUnzipped = 64 << 20

// unzipped returns the text that a node has compressed, or one that it has not.
func unzipped(text []byte) ([]byte, error) {
	if !bytes.HasPrefix(text, []byte{0x1f, 0x8b}) { // RFC 1952; no JSON begins with it
		return text, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(z, mostUnzipped+1))
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("unzip the node's flows: %w", err)
	case len(text) > mostUnzipped:
		return nil, fmt.Errorf("the node's flows have more than %d MiB", mostUnzipped>>20)
	}
	return text, nil
}

// silenceOf says what a node's error means.
func silenceOf(node string, err error) silence {
	switch text := err.Error(); {
	case strings.Contains(text, "follows no connections"):
		return silence{node, flowsOff, "nftproxy follows no connections: --nftproxy-flows is off"}
	case strings.Contains(text, "cannot follow connections"):
		return silence{node, flowsCannot, text}
	case strings.Contains(text, `unknown command "flows"`):
		return silence{node, flowsTooOld, "nftproxy is older than this plugin, and has no flows"}
	default:
		return silence{node, flowsUnknown, text}
	}
}

// saySilent names the nodes that tell of no flows, those with the same reason in one line, on stderr.
func (q *flowQuery) saySilent(list []silence) {
	for _, line := range silentLines(list) {
		q.note(line)
	}
}

func silentLines(list []silence) (lines []string) {
	nodes, order := map[string][]string{}, []string(nil)
	for _, s := range list {
		if nodes[s.Error] == nil {
			order = append(order, s.Error)
		}
		nodes[s.Error] = append(nodes[s.Error], s.Node)
	}
	for _, text := range order {
		lines = append(lines, fewNodes(nodes[text])+": "+text)
	}
	return lines
}

func (q *flowQuery) note(text string) {
	fmt.Fprintf(q.ErrOut, "kubectl nftproxy: %s\n", printable.Text(text))
}

// exitOf is the exit status after a question to all nodes: those whose flows are off are well.
func exitOf(list []silence) error {
	if slices.ContainsFunc(list, func(s silence) bool { return s.State != flowsOff }) {
		return statusWrong
	}
	return nil
}

type flowsCommand struct {
	flowQuery
	follow bool
	last   int
}

func (p *plugin) newFlowsCommand() *cobra.Command {
	c := &flowsCommand{flowQuery: flowQuery{plugin: p}}
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "Show which pods connect to which Services, and what came of it",
		Long: `flows asks each node for the connections to Services of the namespace that it has
followed, puts them into one order, and names pods and workloads by the addresses, as far
as you may read them. Nodes follow connections if nftproxy runs with
--nftproxy-flows=1/N. A node that tells of none is a row: its RESULT is off, cannot (its
kernel or another program is in the way), too-old (its nftproxy has no flows) or no-answer.

  TIME      when the first packet came, by the node's clock
  NODE      the node that followed it
  CLIENT    the client's pod or node, or its address before any NAT
  SERVICE   namespace/name and the port's name or number
  ENDPOINT  where the rules led it; - if nowhere
  RESULT    as nftproxy flows has it, with the cause
  ANSWER    the time to the first answer
  LASTED    how long it lasted; - if it has not ended
  FROM, TO  bytes from the client and to it

-o wide adds the way in, how many connections the flow stands for (WEIGHT), the workloads
and the addresses. A pod on its node's network has the node's name. Names are those of
now: an address may have been another pod's when the connection began.

--follow asks up to 32 nodes, and shows flows when their result is known, and again when
they end.`,
		Example: `  kubectl nftproxy flows -n shop --service cart
  kubectl nftproxy flows -n shop --from deploy/web --result refused
  kubectl nftproxy flows -A --node worker-3 --follow -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	c.addFlags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&c.follow, "follow", "f", false, "go on with flows as they come")
	f.IntVar(&c.last, "last", 100, "show so many of the last flows; with --follow of each node; 0: all")
	return cmd
}

// flowRow is a flow with names, or a node without flows.
type flowRow struct {
	Node string `json:"node"`
	// State and Error are of a node that tells of no flows.
	State string `json:"state,omitempty"`
	Error string `json:"error,omitempty"`
	*flows.Flow
	ClientName       string `json:"clientName,omitempty"`
	ClientWorkload   string `json:"clientWorkload,omitempty"`
	EndpointName     string `json:"endpointName,omitempty"`
	EndpointWorkload string `json:"endpointWorkload,omitempty"`
}

func (r *flowRow) object() object {
	if r.Flow == nil {
		return object{kind: "FlowsNode", name: r.Node, fields: r}
	}
	namespace, _, _ := strings.Cut(string(r.Service), "/")
	return object{kind: "Flow", namespace: namespace, name: fmt.Sprintf("%s-%d", r.Node, r.ID), fields: r}
}

func flowObject(r *flowRow) object { return r.object() }

// maxFlows bounds how many are kept for --last=0.
const maxFlows = 100_000

// latest keeps the flows that began last.
type latest struct {
	most int
	rows []flowRow
	// left is how many went.
	left int
}

func (l *latest) add(a *flowmap.Answer, shown func(*flows.Flow) bool) {
	for i := range a.Flows {
		if f := &a.Flows[i]; shown(f) {
			one := *f // the others of the answer go
			l.rows = append(l.rows, flowRow{Node: a.Node, Flow: &one})
		}
	}
	if len(l.rows) > 2*l.most {
		l.trim()
	}
}

func (l *latest) trim() {
	slices.SortFunc(l.rows, func(a, b flowRow) int {
		return cmp.Or(a.Begin.Compare(b.Begin), strings.Compare(a.Node, b.Node), cmp.Compare(a.ID, b.ID))
	})
	if n := len(l.rows) - l.most; n > 0 {
		l.left += n
		l.rows = slices.Clone(l.rows[n:])
	}
}

func (c *flowsCommand) run(ctx context.Context) error {
	if err := cmp.Or(c.check(), c.output.check()); err != nil {
		return err
	}
	if c.last < 0 {
		return fmt.Errorf("--last %d: want 0 or more", c.last)
	}
	s, err := c.source(ctx)
	if err != nil {
		return err
	}
	if c.follow {
		return c.goOn(ctx, s)
	}
	l := &latest{most: cmp.Or(c.last, maxFlows)}
	silent, err := s.ask(ctx, c.last, c.terminal(), func(a *flowmap.Answer) { l.add(a, s.shown) })
	if err != nil {
		return err
	}
	l.trim()
	if err := s.read(ctx, addressesOf(l.rows)); err != nil {
		return err
	}
	for i := range l.rows {
		l.rows[i].name(s.residents)
	}
	for _, n := range silent {
		l.rows = append(l.rows, flowRow{Node: n.Node, State: n.State, Error: n.Error})
	}
	if err := printRows(c.Out, &c.output, flowColumns(), l.rows, flowObject); err != nil {
		return err
	}
	c.saySilent(silent)
	for _, text := range s.notes {
		c.note(text)
	}
	switch {
	case c.last == 0 && l.left > 0:
		c.note(fmt.Sprintf("%d older flows are left out: choose fewer by --service, --from or --node", l.left))
	case len(l.rows) == 0:
		fmt.Fprintln(c.ErrOut, "No flows found")
	}
	return exitOf(silent)
}

func addressesOf(rows []flowRow) (list []netip.Addr) {
	for i := range rows {
		list = append(list, rows[i].Client.Addr().Unmap())
		if rows[i].Endpoint.IsValid() {
			list = append(list, rows[i].Endpoint.Addr().Unmap())
		}
	}
	return list
}

func (r *flowRow) name(by *residents) {
	client, endpoint := by.known[r.Client.Addr().Unmap()], by.known[r.Endpoint.Addr().Unmap()]
	r.ClientName, r.ClientWorkload = client.itself.String(), client.workload.String()
	r.EndpointName, r.EndpointWorkload = endpoint.itself.String(), endpoint.workload.String()
}

func flowColumns() []column[flowRow] {
	of := func(text func(*flowRow) string) func(*flowRow) string {
		return func(r *flowRow) string {
			if r.Flow == nil {
				return ""
			}
			return text(r)
		}
	}
	address := func(a netip.AddrPort) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	return []column[flowRow]{
		{header: "Time", text: of(func(r *flowRow) string { return r.Begin.Local().Format("15:04:05.000") })},
		{header: "Node", text: func(r *flowRow) string { return r.Node }},
		{header: "Client", text: of(func(r *flowRow) string { return cmp.Or(r.ClientName, address(r.Client)) })},
		{header: "Service", text: of(func(r *flowRow) string {
			return flowmap.Port{Service: r.Service, Port: r.Port, Protocol: r.Protocol}.String()
		})},
		{header: "Endpoint", text: of(func(r *flowRow) string { return cmp.Or(r.EndpointName, address(r.Endpoint)) })},
		{header: "Result", text: func(r *flowRow) string {
			if r.Flow == nil {
				return r.State
			}
			return r.Outcome()
		}},
		{header: "Answer", text: of(func(r *flowRow) string {
			if r.AnswerSeconds == nil {
				return ""
			}
			return flowmap.Seconds(time.Duration(*r.AnswerSeconds * float64(time.Second)))
		})},
		{header: "Lasted", text: of(func(r *flowRow) string {
			if !r.Ended {
				return ""
			}
			return flowmap.Seconds(time.Duration(r.Seconds * float64(time.Second)))
		})},
		{header: "From", text: of(func(r *flowRow) string { return strconv.FormatUint(r.BytesFrom, 10) })},
		{header: "To", text: of(func(r *flowRow) string { return strconv.FormatUint(r.BytesTo, 10) })},
		{header: "Way", wide: true, text: of(func(r *flowRow) string { return string(r.Way) })},
		{header: "Weight", wide: true, text: of(func(r *flowRow) string { return strconv.Itoa(r.Weight) })},
		{header: "Client-Workload", wide: true, text: func(r *flowRow) string { return r.ClientWorkload }},
		{header: "Client-Address", wide: true, text: of(func(r *flowRow) string { return address(r.Client) })},
		{header: "Address", wide: true, text: of(func(r *flowRow) string { return address(r.Address) })},
		{header: "Endpoint-Workload", wide: true, text: func(r *flowRow) string { return r.EndpointWorkload }},
		{header: "Endpoint-Address", wide: true, text: of(func(r *flowRow) string { return address(r.Endpoint) })},
	}
}

// maxLineOfFlow bounds one flow as JSON, in bytes.
const maxLineOfFlow = 64 << 10

// goOn shows flows as they come, until ctx ends. A node that ends with an error is a row, and the others go on.
func (c *flowsCommand) goOn(ctx context.Context, s *flowSource) error {
	if most := cluster.DefaultRound(nil).AtOnce; len(s.nodes) > most {
		return fmt.Errorf("--follow asks up to %d nodes, not %d: choose some by --node", most, len(s.nodes))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rows := make(chan flowRow)
	var all sync.WaitGroup
	for i := range s.nodes {
		n := &s.nodes[i]
		all.Go(func() {
			if err := s.follow(ctx, n, c.last, rows); err != nil && ctx.Err() == nil {
				silent := silenceOf(n.Name, err)
				sendRow(ctx, rows, flowRow{Node: n.Name, State: silent.State, Error: silent.Error})
			}
		})
	}
	go func() { all.Wait(); close(rows) }()
	var silent []silence
	for r := range rows {
		if r.Flow == nil {
			silent = append(silent, silence{r.Node, r.State, r.Error})
			c.saySilent(silent[len(silent)-1:])
		} else {
			s.lookUp(ctx, r.Client.Addr().Unmap())
			s.lookUp(ctx, r.Endpoint.Addr().Unmap())
			r.name(s.residents)
		}
		if err := printNext(c.Out, &c.output, flowColumns(), r, flowObject); err != nil {
			return err
		}
	}
	return exitOf(silent)
}

func sendRow(ctx context.Context, rows chan<- flowRow, r flowRow) {
	select {
	case rows <- r:
	case <-ctx.Done():
	}
}

// last sends the last flows of a node that cannot choose them itself, and returns the Seq up to which it looked.
func (s *flowSource) last(ctx context.Context, n *cluster.Node, last int, rows chan<- flowRow) (uint64, error) {
	a, err := s.askOne(ctx, n, slices.Concat([]string{"flows", "-o", "json", "--last", "0"}, s.args)...)
	if err != nil || len(a.Flows) == 0 {
		return 0, err
	}
	seen := a.Flows[len(a.Flows)-1].Seq
	list := slices.DeleteFunc(a.Flows, func(f flows.Flow) bool { return !s.shown(&f) })
	for _, f := range list[max(0, len(list)-last):] {
		sendRow(ctx, rows, flowRow{Node: n.Name, Flow: &f})
	}
	return seen, nil
}

// follow sends the flows of one node, from its last ones on, as they come.
func (s *flowSource) follow(ctx context.Context, n *cluster.Node, last int, rows chan<- flowRow) error {
	var seen uint64
	if s.all && last > 0 {
		var err error
		if seen, err = s.last(ctx, n, last, rows); err != nil {
			return err
		}
		last = 0 // so that none is missed meanwhile
	}
	var said bytes.Buffer
	errs := &lineWriter{to: &said, turn: &sync.Mutex{}}
	read, write := io.Pipe()
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		args := slices.Concat([]string{"flows", "-o", "json", "--follow", "--last", strconv.Itoa(last)}, s.args)
		err := s.of.Follow(ctx, n, write, errs, args...)
		errs.end()
		_ = write.CloseWithError(cmp.Or(err, io.EOF))
		close(ended)
	}()
	lines := bufio.NewScanner(read)
	lines.Buffer(nil, maxLineOfFlow)
	var err error
	for lines.Scan() && err == nil {
		var f flows.Flow
		if err = json.Unmarshal(lines.Bytes(), &f); err == nil && f.Seq > seen && s.shown(&f) {
			sendRow(ctx, rows, flowRow{Node: n.Name, Flow: &f})
		}
	}
	err = cmp.Or(err, lines.Err())
	_ = read.Close()
	cancel()
	<-ended
	if text := strings.TrimSpace(said.String()); err != nil && text != "" {
		return errors.New(text)
	}
	return err
}
