package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"nftproxy/cmd/kubectl-nftproxy/cluster"
	"nftproxy/cmd/kubectl-nftproxy/migration"
	"nftproxy/cmd/kubectl-nftproxy/servicetest"
	"nftproxy/model/printable"
)

type migrateCommand struct {
	*plugin
	to, nodes string
	atOnce    int
	timeout   time.Duration
	dryRun    bool
	probe     bool
	image     string
	marks     bool
	calico    bool
}

// lookPeriod is the time between two looks at what a node is waited for.
const lookPeriod = time.Second

func (p *plugin) newMigrateCommand() *cobra.Command {
	c := &migrateCommand{plugin: p}
	cmd := &cobra.Command{
		Use:   "migrate --to (nftproxy | kube-proxy)",
		Short: "Move the nodes from kube-proxy to nftproxy, or back, a few at a time and without losing a connection",
		Long: `migrate moves the nodes of a running cluster from kube-proxy to nftproxy, or back, by the
steps of docs/migrate.md. It wants nftproxy to be installed (Helm or kustomize), best for
labelled nodes, of which there is none yet: by deploy/overlays/trial, or the chart with
--set-string 'nodeSelector.nftproxy\.io/trial=true'. kube-proxy has to be a DaemonSet.

To nftproxy: it runs nftproxy check on all nodes that are Ready and have kube-proxy, and stops
if a finding is red, marks or calico (docs/migrate.md). Then it takes one node, and then
--at-once nodes at a time; those that are not Ready come last, and it stops there. nftproxy
starts beside kube-proxy, its rules are compared with the Services and with those of kube-proxy,
kube-proxy ends, and its rules are removed. To kube-proxy: the same with the names exchanged.
Before kube-proxy ends, and at the end, it tries Services of each kind on the nodes, as
kubectl nftproxy test --light does.

It stops at the first node that is not right, and says why. Nothing is remembered: to go on
after a stop, an interrupt or a kill, run the same command again, and to go back, run it with
the other proxy. Each node keeps working, but its first proxy's rules become outdated if you
stop between hand over and clean up: go on or back within minutes.

On Nodes it sets the labels nftproxy.io/trial and nftproxy.io/kube-proxy; of the DaemonSets it
changes the node selector and the node affinity, and until all nodes are back the update
strategy of nftproxy's. So each pod of kube-proxy restarts once, one node after the other.
Some steps run pods on a node for a moment.

Exit statuses: 0 if all is done, 1 if it stopped at a node that is not right or if rules of
kube-proxy have to stay on a node for now, 2 if it could not be carried out.`,
		Example: `  kubectl nftproxy migrate --to nftproxy --dry-run
  kubectl nftproxy migrate --to nftproxy --nodes kubernetes.io/hostname=worker-1
  kubectl nftproxy migrate --to nftproxy
  kubectl nftproxy migrate --to kube-proxy`,
		Args: cobra.NoArgs,
		RunE: c.run,
	}
	f := cmd.Flags()
	f.StringVar(&c.to, "to", "", "the `proxy` that the nodes are to have, nftproxy or kube-proxy")
	f.StringVar(&c.nodes, "nodes", "", "only nodes with these labels, a `selector` as of kubectl get -l")
	f.IntVar(&c.atOnce, "at-once", 5, "how many nodes are changed at a time, after the first")
	f.DurationVar(&c.timeout, "timeout", 5*time.Minute, "how long a step may take on a node")
	f.BoolVar(&c.probe, "probe", true, "try Services on the nodes, with pods of the image of --image")
	f.StringVar(&c.image, "image", defaultImage, "an image with agnhost, a shell and curl")
	f.BoolVar(&c.marks, "accept-marks", false, "go on although nftproxy check has a yellow finding marks")
	f.BoolVar(&c.calico, "accept-calico", false, "go on although Calico's Felix may change its data plane")
	f.BoolVar(&c.dryRun, "dry-run", false, "say what each node has and what would be done, and change nothing")
	return cmd
}

func (c *migrateCommand) options() (o migration.Options, err error) {
	if c.to != migration.Nftproxy && c.to != migration.KubeProxy {
		return o, fmt.Errorf("--to %q: want %s or %s", c.to, migration.Nftproxy, migration.KubeProxy)
	}
	if c.atOnce < 1 || c.timeout < lookPeriod {
		return o, fmt.Errorf("want --at-once of 1 or more, and --timeout of %s or more", lookPeriod)
	}
	selector, err := labels.Parse(c.nodes)
	if err != nil {
		return o, fmt.Errorf("--nodes: %w", err)
	}
	return migration.Options{To: c.to, Nodes: selector, AtOnce: c.atOnce, Patience: c.timeout, Period: lookPeriod,
		AcceptMarks: c.marks, AcceptCalico: c.calico, Out: c.Out}, nil
}

func (c *migrateCommand) run(cmd *cobra.Command, _ []string) error {
	ctx := cmd.Context()
	o, err := c.options()
	if err != nil {
		return err
	}
	of, err := c.cluster()
	if err != nil {
		return err
	}
	if c.probe {
		o.Probe = c.tryServices(of)
	}
	do := migration.Run
	if c.dryRun {
		do = migration.Plan
	}
	err = do(ctx, of, o)
	if obstacle := (*migration.ObstacleError)(nil); err == nil || errors.As(err, &obstacle) || c.dryRun {
		return err
	}
	stopped := (*migration.StoppedError)(nil)
	if errors.As(err, &stopped) {
		fmt.Fprintf(c.ErrOut, "kubectl nftproxy: stopped at %s\n", printable.Text(err.Error()))
		err = statusWrong
	}
	other := migration.KubeProxy
	if c.to == other {
		other = migration.Nftproxy
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(c.ErrOut, "To go on, run the same command again; to go back, run\n"+
		"kubectl nftproxy migrate --to %s. Do not wait for longer than minutes: rules of a stopped proxy become outdated.\n",
		other)
	return err
}

// tryServices says whether Services work on nodes.
func (c *migrateCommand) tryServices(of *cluster.Cluster) func(context.Context, []string) error {
	return func(ctx context.Context, nodes []string) error {
		t := &testCommand{plugin: c.plugin, image: c.image, outside: outsideNo, light: true,
			nodes: nodes[:min(len(nodes), maxTestNodes)]}
		o, err := t.options(ctx, of)
		if err != nil {
			return err
		}
		o.Progress, o.Notes = nil, nil
		results, err := servicetest.Try(ctx, o)
		for _, s := range servicetest.Summarize(results) {
			if s.State == servicetest.Failed {
				err = errors.Join(err, fmt.Errorf("%s: %d of %d checks failed: %s", s.Test, s.Tried-s.Passed, s.Tried, s.Detail))
			}
		}
		if err != nil {
			err = fmt.Errorf("%w\nkubectl nftproxy test --light --node %s says more; --probe=false goes on without", err,
				strings.Join(t.nodes, ","))
		}
		return err
	}
}
