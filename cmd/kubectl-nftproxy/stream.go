package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/model/printable"
)

// streamCommand runs a command on nodes and prints what it prints while it runs.
type streamCommand struct {
	*plugin
	chosenNodes
	from string
}

func (c *streamCommand) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	c.addNodeFlag(f)
	f.StringVar(&c.from, "from", "", "the node of pod/`NAME`")
}

func (p *plugin) newTraceCommand() *cobra.Command {
	c := &streamCommand{plugin: p}
	cmd := &cobra.Command{
		Use:   "trace (svc/NAME[:PORT] | pod/NAME:PORT | ADDRESS:PORT[/PROTOCOL]) [-- FLAGS]",
		Short: "Show each rule that new connections meet, on the client's node",
		Long: `trace runs nftproxy trace on the node of --from, or on the nodes of --node, and prints the
rules of all programs that the first packets of new connections meet there. It ends after
ten packets or 30 s. What follows -- are flags of nftproxy trace.`,
		Example: `  kubectl nftproxy trace svc/web --from pod/client
  kubectl nftproxy trace 10.96.0.10:53/udp --node worker-3 -- --packets 3`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			of, nodes, err := c.chosen(ctx)
			if err != nil {
				return err
			}
			e := &explainCommand{plugin: c.plugin, of: of}
			to, err := e.destination(ctx, args[0], nil)
			if err != nil {
				return err
			}
			return c.stream(ctx, of, nodes, slices.Concat([]string{"trace", to.String()}, args[1:])...)
		},
	}
	c.addFlags(cmd)
	return cmd
}

func (p *plugin) newTopCommand() *cobra.Command {
	c := &streamCommand{plugin: p}
	cmd := &cobra.Command{
		Use:   "top [-- FLAGS]",
		Short: "Show refused and dropped packets, and new connections, by Service",
		Long: `top runs nftproxy top on the node of --from, or on the nodes of --node: it counts for a
second and prints once. What follows -- are flags of nftproxy top.`,
		Example: `  kubectl nftproxy top --node worker-3
  kubectl nftproxy top --from pod/client -- --endpoints`,
		RunE: func(cmd *cobra.Command, args []string) error {
			of, nodes, err := c.chosen(cmd.Context())
			if err != nil {
				return err
			}
			return c.stream(cmd.Context(), of, nodes, append([]string{"top"}, args...)...)
		},
	}
	c.addFlags(cmd)
	return cmd
}

func (p *plugin) newLogsCommand() *cobra.Command {
	c := &streamCommand{plugin: p}
	var follow, previous bool
	var tail int64
	cmd := &cobra.Command{
		Use:   "logs",
		Short: "Print the log of nftproxy on nodes",
		Example: `  kubectl nftproxy logs --node worker-3 -f
  kubectl nftproxy logs --from pod/client --tail 100`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			of, nodes, err := c.chosen(ctx)
			if err != nil {
				return err
			}
			options := &corev1.PodLogOptions{Container: cluster.Container, Follow: follow, Previous: previous}
			if tail >= 0 {
				options.TailLines = &tail
			}
			return c.each(ctx, nodes, func(ctx context.Context, n *cluster.Node, out, _ io.Writer) error {
				if n.Pod == nil {
					return errors.New("no pod of nftproxy")
				}
				log, err := of.Client.CoreV1().Pods(n.Pod.Namespace).GetLogs(n.Pod.Name, options).Stream(ctx)
				if err != nil {
					return fmt.Errorf("read the log: %w", err)
				}
				defer log.Close()
				_, err = io.Copy(out, log)
				return err
			})
		},
	}
	c.addFlags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on while the log grows")
	f.BoolVarP(&previous, "previous", "p", false, "the log of the container before the last restart")
	f.Int64Var(&tail, "tail", 100, "so many of the last lines; -1 for all")
	return cmd
}

// chosen returns the nodes of --node, or that of the pod of --from.
func (c *streamCommand) chosen(ctx context.Context) (*cluster.Cluster, []cluster.Node, error) {
	of, err := c.cluster()
	if err != nil {
		return nil, nil, err
	}
	names := slices.Clone(c.nodes)
	if c.from != "" {
		name, is := strings.CutPrefix(c.from, "pod/")
		if !is {
			return nil, nil, fmt.Errorf("--from %q: want pod/NAME", c.from)
		}
		pod, err := c.pod(ctx, of, name)
		if err != nil {
			return nil, nil, err
		}
		names = append(names, pod.Spec.NodeName)
	}
	if len(names) == 0 {
		return nil, nil, errors.New("want --from or --node: each node has its own")
	}
	_, nodes, err := nodesIn(ctx, of, names)
	return of, nodes, err
}

// stream runs a command of nftproxy on the nodes.
func (c *streamCommand) stream(ctx context.Context, of *cluster.Cluster, nodes []cluster.Node, args ...string) error {
	return c.each(ctx, nodes, func(ctx context.Context, n *cluster.Node, out, errs io.Writer) error {
		return of.Follow(ctx, n, out, errs, append(slices.Clone(args), n.Tables()...)...)
	})
}

// each runs a function for all nodes at once. With several nodes each line begins with the node's name.
func (c *streamCommand) each(ctx context.Context, nodes []cluster.Node,
	run func(ctx context.Context, n *cluster.Node, out, errs io.Writer) error) error {
	var turn sync.Mutex
	var all sync.WaitGroup
	failed := make([]error, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		prefix := ""
		if len(nodes) > 1 {
			prefix = n.Name + ": "
		}
		out := &lineWriter{to: c.Out, prefix: prefix, turn: &turn}
		errs := &lineWriter{to: c.ErrOut, prefix: prefix, turn: &turn}
		all.Go(func() {
			if err := run(ctx, n, out, errs); err != nil && ctx.Err() == nil {
				failed[i] = fmt.Errorf("node %s: %w", n.Name, err)
			}
			out.end()
			errs.end()
		})
	}
	all.Wait()
	exit := (*cluster.ExitError)(nil)
	if len(nodes) == 1 && errors.As(failed[0], &exit) && exit.Stderr == "" {
		return exitStatus(exit.Status) // The command has said what is wrong.
	}
	return errors.Join(failed...)
}

// maxLine bounds how much of a line without an end is kept, in bytes.
const maxLine = 64 << 10

// lineWriter writes whole lines, each behind a prefix, in turn with others. It may be written to after its end.
type lineWriter struct {
	to     io.Writer
	prefix string
	turn   *sync.Mutex

	mu    sync.Mutex
	rest  []byte
	ended bool
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return len(p), nil
	}
	for line := range bytes.Lines(p) {
		w.rest = append(w.rest, line...)
		if line[len(line)-1] == '\n' || len(w.rest) > maxLine {
			w.print()
		}
	}
	return len(p), nil
}

// print prints the line that is there.
func (w *lineWriter) print() {
	w.turn.Lock()
	defer w.turn.Unlock()
	line := printable.Text(string(bytes.TrimSuffix(w.rest, []byte("\n"))))
	_, _ = fmt.Fprintf(w.to, "%s%s\n", w.prefix, line) // An error means that nobody reads.
	w.rest = w.rest[:0]
}

// end prints a last line without an end.
func (w *lineWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.rest) > 0 {
		w.print()
	}
	w.ended = true
}
