package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/cmd/kubectl-nftproxy/servicetest"
	"nftproxy/model/printable"
)

// defaultImage has agnhost, a shell and curl, for all architectures of Kubernetes.
const defaultImage = "registry.k8s.io/e2e-test-images/agnhost:2.66.1"

type testCommand struct {
	*plugin
	output
	image        string
	nodes        []string
	outside      string
	loadBalancer bool
	light        bool
	cleanup      bool
	timeout      time.Duration
}

// The values of --outside.
const (
	outsideAuto = "auto"
	outsideYes  = "yes"
	outsideNo   = "no"
)

func (p *plugin) newTestCommand() *cobra.Command {
	c := &testCommand{plugin: p}
	cmd := &cobra.Command{
		Use:   "test",
		Short: "Try Services of every kind with real connections, and explain what fails",
		Long: `test makes a namespace with servers and clients on two nodes, and connects by every way
into a Service: cluster IPs, names, node ports, external IPs, load balancers, of both
families, by TCP, UDP and SCTP, from pods, from processes of the nodes, and from this
computer. It tries the policies Local, source ranges, health check node ports, session
affinity, a pod's own Service, a Service without endpoints, and endpoints that end and
start under load. It works with every service proxy; where nftproxy runs, each kind of
failure comes with what explain says of it.

What could not be tried is no failure, and the row says why. SCTP is tried if all nodes
of the test have loaded the kernel's module sctp: the test does not have them load it.
Services of type LoadBalancer get addresses of RFC 5737 and RFC 3849 from the test, and a
class that no load balancer has, so nothing is paid for them; --load-balancer makes one
more, whose address the cluster gives.

It removes the namespace at the end, also after Ctrl-C. --cleanup removes what a test has
left that was killed.

The servers run commands for anybody who reaches them, as those of Kubernetes' own tests
do. The pods of the clients use the nodes' network.

-o wide prints a row for each check, and -o json and yaml all of it.

The exit status is 0 if everything went as it should, and 1 if something did not.`,
		Example: `  kubectl nftproxy test
  kubectl nftproxy test --node worker-1 --node worker-7 --light`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	c.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&c.image, "image", defaultImage, "an image with agnhost, a shell and curl")
	f.StringSliceVar(&c.nodes, "node", nil, "try on these nodes, in place of two that are ready")
	f.StringVar(&c.outside, "outside", outsideAuto,
		"connect from this computer, too: auto (if it reaches the nodes' addresses), yes or no")
	f.BoolVar(&c.loadBalancer, "load-balancer", false, "make a Service of type LoadBalancer, which may cost money")
	f.BoolVar(&c.light, "light", false, "leave out endpoints that end and start")
	f.BoolVar(&c.cleanup, "cleanup", false, "only remove what killed tests have left")
	f.DurationVar(&c.timeout, "timeout", 15*time.Minute, "end the test after so long")
	return cmd
}

func (c *testCommand) run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return err
	}
	if !slices.Contains([]string{outsideAuto, outsideYes, outsideNo}, c.outside) {
		return fmt.Errorf("--outside: %q: want auto, yes or no", c.outside)
	}
	of, err := c.cluster()
	if err != nil {
		return err
	}
	if c.cleanup {
		removed, busy, err := servicetest.RemoveAll(ctx, of.Client)
		for _, name := range removed {
			fmt.Fprintf(c.Out, "namespace %s removed\n", printable.Text(name))
		}
		for _, name := range busy {
			fmt.Fprintf(c.Out, "namespace %s stays: its test may still go on\n", printable.Text(name))
		}
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("no result within %s", c.timeout))
	defer cancel()
	o, err := c.options(ctx, of)
	if err != nil {
		return err
	}
	results, err := servicetest.Try(ctx, o)
	if err := errors.Join(err, c.write(results)); err != nil {
		return err
	}
	if slices.ContainsFunc(results, func(r servicetest.Result) bool { return r.State == servicetest.Failed }) {
		return statusWrong
	}
	return nil
}

func (c *testCommand) options(ctx context.Context, of *cluster.Cluster) (o servicetest.Options, err error) {
	o = servicetest.Options{Client: of.Client, Run: of.Run, Image: c.image, LoadBalancer: c.loadBalancer, Light: c.light,
		Settle:   15 * time.Second,
		Progress: c.terminal(), Notes: c.ErrOut}
	list, err := of.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return o, fmt.Errorf("list Nodes: %w", err)
	}
	if o.Nodes, err = nodesToTry(list.Items, c.nodes); err != nil {
		return o, err
	}
	if c.outside == outsideNo {
		o.Inside = "left out by --outside=no"
	} else if c.outside == outsideAuto {
		o.Inside = inside(ctx, list.Items, o.Nodes)
	}
	_, nodes, err := nodesIn(ctx, of, nil)
	if err != nil {
		fmt.Fprintf(c.ErrOut, "no failure will be explained: %s\n", printable.Text(err.Error()))
	} else {
		o.Explain = (&explainCommand{plugin: c.plugin, of: of, nodes: nodes, followed: 1}).connection
	}
	return o, nil
}

// maxTestNodes bounds the connections of a test, which grow with the square of the number of nodes.
const maxTestNodes = 10

// nodesToTry are the nodes with the names, or two nodes that are ready, at best such that take any pod.
func nodesToTry(nodes []corev1.Node, names []string) (chosen []corev1.Node, err error) {
	const enough = 2
	if len(names) > maxTestNodes {
		return nil, fmt.Errorf("--node: %d nodes, at most %d can be tried at once", len(names), maxTestNodes)
	}
	for i, name := range names {
		at := slices.IndexFunc(nodes, func(n corev1.Node) bool { return n.Name == name })
		if at < 0 || slices.Contains(names[:i], name) {
			return nil, fmt.Errorf("--node: the cluster has no other node %q", name)
		}
		chosen = append(chosen, nodes[at])
	}
	if names != nil {
		return chosen, nil
	}
	chosen = slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool {
		return !isReadyNode(&n) || n.Spec.Unschedulable || n.Labels[corev1.LabelOSStable] == "windows"
	})
	if len(chosen) == 0 {
		return nil, errors.New("the cluster has no node that is ready and schedulable; --node chooses one")
	}
	slices.SortStableFunc(chosen, func(a, b corev1.Node) int {
		return cmp.Compare(len(a.Spec.Taints), len(b.Spec.Taints))
	})
	return chosen[:min(len(chosen), enough)], nil
}

func isReadyNode(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// inside says why this process is no client outside of the cluster that reaches its nodes; nothing if it is one.
func inside(ctx context.Context, all, tried []corev1.Node) string {
	if os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		return "this is a pod of a cluster"
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return "the addresses of this computer are not known: " + err.Error()
	}
	for i := range all {
		for _, a := range all[i].Status.Addresses {
			if slices.ContainsFunc(own, func(o net.Addr) bool { return strings.HasPrefix(o.String(), a.Address+"/") }) {
				return "this computer is the node " + all[i].Name
			}
		}
	}
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var group errgroup.Group
	for i := range tried {
		for _, a := range tried[i].Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				group.Go(func() error { return answers(ctx, net.JoinHostPort(a.Address, "10250")) })
			}
		}
	}
	if err := group.Wait(); err != nil {
		return "this computer does not reach the kubelets of the nodes: " + err.Error()
	}
	return ""
}

// answers says whether somebody takes or refuses connections.
func answers(ctx context.Context, address string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	if err != nil {
		return err
	}
	return conn.Close()
}

// connection explains one connection, in lines.
func (c *explainCommand) connection(ctx context.Context, failed servicetest.Connection) []string {
	lines, err := c.explainConnection(ctx, failed)
	if err != nil {
		return []string{"It cannot be explained: " + err.Error()}
	}
	return lines
}

func (c *explainCommand) explainConnection(ctx context.Context, failed servicetest.Connection) ([]string, error) {
	at, err := netip.ParseAddrPort(failed.Address)
	if err != nil {
		return nil, nil // The rules know no names.
	}
	from := client{outside: true}
	if failed.Pod != nil {
		from = clientOf(failed.Pod)
	}
	// The names of the Services and pods of the test are not there before it.
	if c.names, err = readNames(ctx, c.of, c.namespace()); err != nil {
		return nil, err
	}
	to := destination{at, failed.Protocol}
	node, source, err := c.start(ctx, from, to)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	c.writeText(&text, c.answer(ctx, node, source, to))
	return slices.Collect(strings.SplitSeq(strings.TrimSpace(text.String()), "\n")), nil
}

func (c *testCommand) write(results []servicetest.Result) error {
	if len(results) == 0 {
		return nil
	}
	if c.forPrograms() || *c.flags.OutputFormat == "wide" {
		err := printRows(c.Out, &c.output, []column[servicetest.Result]{
			{"TEST", false, func(r *servicetest.Result) string { return r.Test }},
			{"FROM", false, func(r *servicetest.Result) string { return r.From }},
			{"TO", false, func(r *servicetest.Result) string { return r.To }},
			{"RESULT", false, func(r *servicetest.Result) string { return r.State }},
			{"DETAIL", false, func(r *servicetest.Result) string { return r.Detail }},
		}, results, func(r *servicetest.Result) object {
			return object{kind: "ServiceTestResult", name: strings.Join([]string{r.Test, r.From, r.To}, "; "), fields: r}
		})
		if !c.forPrograms() {
			writeFailures(c.Out, results)
		}
		return err
	}
	err := printRows(c.Out, &c.output, []column[servicetest.Summary]{
		{"TEST", false, func(s *servicetest.Summary) string { return s.Test }},
		{"RESULT", false, func(s *servicetest.Summary) string { return s.State }},
		{"PASSED", false, func(s *servicetest.Summary) string { return fmt.Sprintf("%d/%d", s.Passed, s.Tried) }},
		{"DETAIL", false, func(s *servicetest.Summary) string { return s.Detail }},
	}, servicetest.Summarize(results), nil)
	writeFailures(c.Out, results)
	return err
}

// writeFailures prints what failed: of each kind of check and client the first, with its explanation.
func writeFailures(w io.Writer, results []servicetest.Result) {
	more := map[[2]string]int{}
	for _, r := range results {
		if r.State == servicetest.Failed {
			more[[2]string{r.Test, r.From}]++
		}
	}
	for _, r := range results {
		kind := [2]string{r.Test, r.From}
		if r.State != servicetest.Failed || more[kind] == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\n", printable.Text(fmt.Sprintf("%s: from %s to %s: %s", r.Test, r.From, r.To, r.Detail)))
		for _, line := range r.Explanation {
			fmt.Fprintf(w, "  %s\n", printable.Text(line))
		}
		if n := more[kind] - 1; n > 0 {
			fmt.Fprintf(w, "  %d more of its connections failed in this test (-o wide lists them)\n", n)
		}
		more[kind] = 0
	}
}
