// Command kubectl-nftproxy is a plugin of kubectl that asks the nftproxy of a whole cluster: which nodes are not right,
// why a pod does not reach a Service, what to send to a colleague. It works as kubectl nftproxy and by its own name, on
// Linux, macOS and Windows. It reads no kernel and holds no rules: nftproxy's pods do, and it runs commands in them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/model/printable"
)

func main() {
	// What clients of the API server log is in their errors, too.
	klog.SetLogger(klog.Logger{})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A second signal ends what still cleans up after the first.
	context.AfterFunc(ctx, stop)
	code := execute(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}

// The exit statuses of all commands, besides 0.
const (
	statusWrong  exitStatus = 1 // something is wrong, and the output says what
	statusFailed exitStatus = 2 // the command could not tell, or its command line is invalid
)

// exitStatus is the exit code of a command that has printed everything itself.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// execute runs one command and returns the exit code.
func execute(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	cmd := newCommand(streams)
	cmd.SetArgs(args)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	err := cmd.ExecuteContext(ctx)
	if status := exitStatus(0); errors.As(err, &status) {
		return int(status)
	}
	if err != nil {
		fmt.Fprintf(streams.ErrOut, "kubectl nftproxy: %s\n", printable.Text(err.Error()))
		return int(statusFailed)
	}
	return 0
}

// plugin is what all commands share.
type plugin struct {
	genericiooptions.IOStreams
	connection     *genericclioptions.ConfigFlags
	proxyNamespace string
}

func newCommand(streams genericiooptions.IOStreams) *cobra.Command {
	p := &plugin{IOStreams: streams, connection: genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag()}
	cmd := &cobra.Command{
		Use:   "kubectl-nftproxy",
		Short: "Ask the nftproxy of all nodes of a cluster",
		Long: `kubectl nftproxy asks the nftproxy of all nodes of a cluster. It finds their pods by the
label app.kubernetes.io/name=nftproxy in the namespace of --proxy-namespace, and runs
nftproxy's commands in them, as kubectl exec does. Nothing needs to be installed on a
node, and nothing is opened there.

deploy/plugin has the rights that you need.

Exit statuses: 0 if all is well, 1 if something is wrong and the output says what, 2 if
the command could not be carried out.`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl nftproxy"},
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	p.connection.AddFlags(f)
	f.StringVar(&p.proxyNamespace, "proxy-namespace", cluster.DefaultNamespace, "namespace of nftproxy's DaemonSet")
	// What few need of kubectl's flags is there and not in the help.
	for _, name := range []string{"as", "as-group", "as-uid", "as-user-extra", "cache-dir", "certificate-authority",
		"client-certificate", "client-key", "disable-compression", "insecure-skip-tls-verify", "password", "server",
		"tls-server-name", "token", "user", "username"} {
		if g := f.Lookup(name); g != nil {
			g.Hidden = true
		}
	}
	cmd.AddCommand(p.newStatusCommand(), p.newGetCommand(), p.newExplainCommand(), p.newVerifyCommand(),
		p.newFlowsCommand(), p.newMapCommand(),
		p.newTraceCommand(), p.newTopCommand(), p.newLogsCommand(), p.newSysdumpCommand(), p.newTestCommand(),
		p.newMigrateCommand())
	return cmd
}

// terminal is where progress is shown; nil if nobody looks.
func (p *plugin) terminal() io.Writer {
	if f, is := p.ErrOut.(*os.File); is && term.IsTerminal(int(f.Fd())) {
		return f
	}
	return nil
}

// nodesOf connects, and returns the nodes with the names; all without a name.
func (p *plugin) nodesOf(ctx context.Context, names []string) (*cluster.Cluster, []cluster.Node, error) {
	of, err := p.cluster()
	if err != nil {
		return nil, nil, err
	}
	_, nodes, err := nodesIn(ctx, of, names)
	return of, nodes, err
}

// nodesIn returns nftproxy's DaemonSets beside the nodes.
func nodesIn(ctx context.Context, of *cluster.Cluster, names []string) ([]appsv1.DaemonSet, []cluster.Node, error) {
	sets, err := of.DaemonSets(ctx)
	if err != nil {
		return nil, nil, err
	}
	nodes, err := of.Nodes(ctx, sets)
	if err != nil {
		return nil, nil, err
	}
	nodes, err = chosen(nodes, names)
	return sets, nodes, err
}

// cluster connects to the API server.
func (p *plugin) cluster() (*cluster.Cluster, error) {
	config, err := p.connection.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	return cluster.New(config, p.proxyNamespace)
}
