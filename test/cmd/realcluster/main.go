// Command realcluster brings up a real Kubernetes cluster of several nodes on
// this computer, with nftproxy as its only service proxy, tries it, and removes
// it without a trace. It needs root. `make cluster` runs it.
//
// The cluster belongs to a process of its own (serve), which the other commands
// start and speak to. Packages cluster and workload do the work.
//
// It also runs Kubernetes' own tests of sig-network there: it makes the images that
// they ask for, leaves out what a cluster on one computer cannot run, and says how
// many tests passed, failed and were skipped, and why. It changes no test.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"nftproxy/test/cmd/realcluster/cluster"
	"nftproxy/test/cmd/realcluster/workload"
)

func main() {
	// What clients of the API server have to say is in their errors.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if exit, ok := err.(*exec.ExitError); ok { // of exec's command, which has said why; other errors say what has ended
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "realcluster:", err)
		os.Exit(1)
	}
}

// The command by which a machine starts.
const initCommand = "machine-init"

// defaultDir is not in /tmp, which may be memory.
const defaultDir = "/var/tmp/nftproxy-cluster"

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "realcluster",
		Short:         "A real Kubernetes cluster on this computer",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	dir := root.PersistentFlags().String("dir", defaultDir, "`folder` for all files of the cluster")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if os.Geteuid() != 0 && cmd.Name() != "help" {
			return errors.New("a cluster needs root")
		}
		return nil
	}
	var options upOptions
	up := &cobra.Command{
		Use: "up", Short: "Bring the cluster up", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return up(cmd.Context(), *dir, options, os.Stdout) },
	}
	serve := &cobra.Command{
		Use: "serve", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), *dir, options) },
	}
	prepareOnly := &cobra.Command{
		Use: "prepare", Short: "Build and unpack what up needs, so that it needs neither a compiler nor the network",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return prepareFor(cmd.Context(), *dir, options, os.Stdout) },
	}
	options.register(prepareOnly)
	options.register(up)
	options.register(serve)
	execute := &cobra.Command{
		Use: "exec COMMAND...", Short: "Run a command outside of the nodes, such as kubectl, as administrator",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return outside(cmd.Context(), *dir, args) },
	}
	execute.Flags().SetInterspersed(false) // flags after the command are the command's
	root.AddCommand(up, prepareOnly, serve, newSuiteCommand(dir), newOutageCommand(dir), newNodeLossCommand(dir),
		newMoveCommand(dir),
		&cobra.Command{
			Use: "smoke", Short: "Try the cluster: one line for each test; the exit status is 1 if one fails",
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return ask(cmd.Context(), *dir, "/smoke", os.Stdout) },
		},
		&cobra.Command{
			Use: "trouble", Short: "Try the cluster by kubectl nftproxy test, and put one trouble after the other in, " +
				"which it has to name",
			Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return ask(cmd.Context(), *dir, "/trouble", os.Stdout) },
		},
		newMigrateCommand(dir),
		&cobra.Command{
			Use: "down", Short: "End the cluster and remove all that it left", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return down(cmd.Context(), *dir) },
		},
		execute,
		&cobra.Command{
			Use: initCommand, Hidden: true, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error { return cluster.InitMachine(args[0]) },
		},
	)
	return root
}

// upOptions say which cluster to bring up.
type upOptions struct {
	nodes int
	suite bool
	proxy proxyChoice
	// network is the name of the pods' network.
	network string
	// policies is the name of the network policy engine; "" is none.
	policies string
	// announcer is the name of the program that gives load balancers their addresses and announces them; "" is none.
	announcer string
	// controllerFlags are further flags of kube-controller-manager.
	controllerFlags []string
}

func (o *upOptions) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.IntVar(&o.nodes, "nodes", 3, "`number` of nodes, which are in three zones by turns")
	f.BoolVar(&o.suite, "e2e", false, "give the nodes the images of Kubernetes' own tests, too")
	f.StringVar(&o.proxy.name, "proxy", nftproxy, "service `proxy` of the cluster, nftproxy or kube-proxy")
	f.StringVar(&o.proxy.mode, "kube-proxy-mode", "", "`mode` of kube-proxy, such as nftables; empty is its default")
	f.StringVar(&o.network, "cni", "", "`network` of the pods in place of the cluster's own: "+
		strings.Join(networkNames()[1:], ", "))
	f.StringVar(&o.policies, "policies", "", "run a network policy `engine` on each node: "+
		strings.Join(policyEngines()[1:], ", ")+"; the first without a value")
	f.Lookup("policies").NoOptDefVal = netpol
	f.StringVar(&o.announcer, "announcer", "",
		"run a `program` that gives load balancers their addresses and announces them: "+strings.Join(announcers()[1:], ", "))
	f.StringArrayVar(&o.controllerFlags, "controller-flag", nil, "a further `flag` of kube-controller-manager, such as "+
		"--controller-flag=--leader-elect=false; repeat it for several")
}

// flags are the options as arguments of serve.
func (o *upOptions) flags() []string {
	flags := []string{"--nodes=" + strconv.Itoa(o.nodes), "--proxy=" + o.proxy.name, "--kube-proxy-mode=" + o.proxy.mode,
		"--cni=" + o.network, "--policies=" + o.policies, "--announcer=" + o.announcer}
	for _, f := range o.controllerFlags {
		flags = append(flags, "--controller-flag="+f)
	}
	return flags
}

// newMigrateCommand makes the command migrate.
func newMigrateCommand(dir *string) *cobra.Command {
	var by string
	cmd := &cobra.Command{
		Use: "migrate", Short: "Go from kube-proxy to nftproxy and back under load, on a cluster of up --proxy kube-proxy",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch by {
			case "page":
				return ask(cmd.Context(), *dir, "/migrate", os.Stdout)
			case "plugin":
				return ask(cmd.Context(), *dir, "/migrate-by-plugin", os.Stdout)
			}
			return fmt.Errorf("--by %q: want page or plugin", by)
		},
	}
	cmd.Flags().StringVar(&by, "by", "page", "`page`: by the steps of docs/migrate.md; plugin: by kubectl nftproxy "+
		"migrate, which is killed in each step")
	return cmd
}

// newOutageCommand makes the command outage.
func newOutageCommand(dir *string) *cobra.Command {
	var o workload.OutageOptions
	cmd := &cobra.Command{
		Use: "outage", Short: "Take the API server away for a while, under load, and name the cause of each failed request",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), *dir, outagePath(o), os.Stdout)
		},
	}
	cmd.Flags().DurationVar(&o.Away, "away", 30*time.Second, "`time` until the API server is started again")
	cmd.Flags().BoolVar(&o.Cut, "cut", false, "cut the API server off from the nodes in place of killing it: the "+
		"controllers go on using it")
	cmd.Flags().DurationVar(&o.After, "after", 90*time.Second, "`time` under load after its return")
	return cmd
}

// newNodeLossCommand makes the command node-loss.
func newNodeLossCommand(dir *string) *cobra.Command {
	var o workload.NodeLossOptions
	cmd := &cobra.Command{
		Use: "node-loss", Short: "Take its network from a node under load, and count the slow and failed requests of each " +
			"second (CSV)", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), *dir, nodeLossPath(o), os.Stdout)
		},
	}
	cmd.Flags().StringVar(&o.Eject, "eject", "", "first set --nftproxy-eject to this `mode`; empty changes nothing, as "+
		"for kube-proxy")
	cmd.Flags().IntVar(&o.Rate, "rate", 200, "`number` of new connections a second, half of them to each of two Services")
	cmd.Flags().IntVar(&o.Kept, "kept", 20, "`number` of clients of each Service that keep their connection, with a "+
		"request a second each")
	cmd.Flags().DurationVar(&o.Away, "away", 90*time.Second, "`time` until the node has its network again")
	cmd.Flags().BoolVar(&o.APIServer, "api-server", false, "cut the API server off from all nodes meanwhile, as if it "+
		"were on the lost one")
	return cmd
}

// newMoveCommand makes the command move-address.
func newMoveCommand(dir *string) *cobra.Command {
	var o workload.MoveOptions
	cmd := &cobra.Command{
		Use: "move-address", Short: "Have the address of a load balancer move to another node under load, on a cluster of " +
			"up --announcer, and count as node-loss does", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd.Context(), *dir, movePath(o), os.Stdout)
		},
	}
	cmd.Flags().StringVar(&o.Policy, "policy", "Cluster", "externalTrafficPolicy of the Service, Cluster or Local")
	cmd.Flags().StringVar(&o.Lose, "lose", workload.Losses()[0], "`what` the node loses that announces the address: "+
		strings.Join(workload.Losses(), ", "))
	cmd.Flags().StringVar(&o.Eject, "eject", "", "first set --nftproxy-eject to this `mode`; empty changes nothing, as "+
		"for kube-proxy")
	cmd.Flags().IntVar(&o.Rate, "rate", 200, "`number` of new connections a second, half of them by each family")
	cmd.Flags().IntVar(&o.Kept, "kept", 20, "`number` of clients of each family that keep their connection, with a "+
		"request a second each")
	cmd.Flags().DurationVar(&o.Away, "away", 60*time.Second, "`time` under load after the loss")
	return cmd
}

func adminKubeconfig(dir string) string {
	return filepath.Join(dir, "control-plane", "admin.kubeconfig")
}

// up prepares what a cluster needs, starts the process that holds it, and copies
// its progress until the cluster is up.
func up(ctx context.Context, dir string, o upOptions, out io.Writer) error {
	if err := o.proxy.check(); err != nil {
		return err
	}
	if _, err := additions(ctx, o); err != nil {
		return err
	}
	if _, err := os.Stat(socket(dir)); err == nil {
		return fmt.Errorf("%s has a cluster; remove it by `make cluster-down`", dir)
	}
	if err := prepareFor(ctx, dir, o, out); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(dir, "cluster.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	progress, write, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"serve", "--dir=" + dir}, o.flags()...)...)
	cmd.Stderr, cmd.Stdout = log, write
	// It must outlive this process and its terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	if err := write.Close(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	done, err := copyUntilDone(out, progress)
	if err != nil {
		return err
	}
	if !done {
		return errors.Join(fmt.Errorf("the cluster did not come up; %s has its files", dir), cmd.Wait())
	}
	return nil
}

// prepareFor prepares what a cluster needs.
func prepareFor(ctx context.Context, dir string, o upOptions, out io.Writer) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := prepare(ctx, dir, o, out); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	return nil
}

// outside runs a command in the namespace outside of the nodes.
func outside(ctx context.Context, dir string, args []string) error {
	cmd, err := outsideCommand(ctx, dir, args)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}

// countNodes asks the API server how many nodes there are.
func countNodes(ctx context.Context, dir string) (int, error) {
	cmd, err := outsideCommand(ctx, dir, []string{"kubectl", "get", "nodes", "-o", "name"})
	if err != nil {
		return 0, err
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("count the nodes: %w", err)
	}
	return len(strings.Fields(string(out))), nil
}

// outsideCommand is a command for the namespace outside of the nodes.
func outsideCommand(ctx context.Context, dir string, args []string) (*exec.Cmd, error) {
	path, err := os.ReadFile(filepath.Join(dir, outsideFile))
	if err != nil {
		return nil, fmt.Errorf("there is no cluster: %w", err)
	}
	tools, err := filepath.Abs(toolsDir())
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + string(path), "--"}, args...)...)
	cmd.Env = append(os.Environ(),
		"KUBECONFIG="+adminKubeconfig(dir),
		"PATH="+tools+":"+os.Getenv("PATH"))
	return cmd, nil
}

// down ends the process that holds the cluster, if it runs, and removes the files.
func down(ctx context.Context, dir string) error {
	if err := stopServer(ctx, dir); err != nil {
		return err
	}
	return cluster.Remove(dir)
}
