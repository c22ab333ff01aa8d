// Command bench compares nftproxy with other proxies and with the kernel itself, on this
// machine. It says which of the project's targets are met. It needs root; everything runs
// in network namespaces of its own.
//
// It writes tables to the terminal, and the figures as JSON to a directory. Packages control and data measure the
// figures.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"nftproxy/bench/control"
	"nftproxy/bench/proxies"
	"nftproxy/bench/result"
	"nftproxy/test/lib/controlplane"
)

func main() {
	// The cells already report errors of the API server's clients.
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	quick    bool
	limit    time.Duration
	only     string
	sizes    []string
	services []int
	out      string
	json     string
	nftproxy string
	earlier  string
	rounds   int
	flags    []string
	// kubeProxy is a minor release.
	kubeProxy string
	proxies   []string
	check     bool
}

func newCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Compare nftproxy with kube-proxy, nft and the bare kernel",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.quick, "quick", false, "the smallest size and few samples: a few minutes")
	f.DurationVar(&o.limit, "limit", 3*time.Minute, "how long one cell may take; what takes longer is stopped and "+
		"reported as more than that")
	f.StringVar(&o.only, "only", "", "one part: control, data, flows or node (default all)")
	f.StringSliceVar(&o.sizes, "size", nil, `control plane: Services x endpoints of each, such as 1000x10 or "5000x20 `+
		`LB" (default "10000x10")`)
	f.IntSliceVar(&o.services, "services", nil, "data plane: numbers of Services (default 1, 1000 and 10000)")
	f.StringVar(&o.out, "out", "", "directory for the JSON (default docs/bench; of a quick run bin/bench)")
	f.StringVar(&o.json, "json", "report.json", "name of the JSON file in that directory")
	f.StringVar(&o.nftproxy, "nftproxy", filepath.Join("bin", "nftproxy"), "the binary that is measured")
	f.StringArrayVar(&o.flags, "flag", nil, "a flag more for nftproxy run, such as --flag=--nftproxy-counters; the "+
		"build of --earlier does not get it; repeat it for several")
	f.StringVar(&o.earlier, "earlier", "", "another build of nftproxy, measured in place of kube-proxy and turn by turn "+
		"(with --only data or --only node)")
	f.IntVar(&o.rounds, "rounds", 3, "with --earlier and --only node: how often each build has its turn")
	f.StringVar(&o.kubeProxy, "kube-proxy", os.Getenv(controlplane.KubeProxyVariable),
		"the minor release of kube-proxy: 1.36, 1.37, or 1.38 in nftables mode only (default the variable KUBE_PROXY, or "+
			"else 1.37)")
	f.StringArrayVar(&o.proxies, "proxy", nil, "one of the proxies, such as "+strconv.Quote(result.KubeProxyLegacy)+
		"; repeat it for several (default all)")
	f.BoolVar(&o.check, "check", false, "a target that is not met is an error")
	cmd.AddCommand(newShowCommand(), newEjectCommand(), newNodeLossCommand(), newTenantsCommand())
	return cmd
}

// newShowCommand makes tables and pictures of an earlier run's figures.
func newShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show REPORT",
		Short: "Print the tables of a JSON report",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := result.Read(args[0])
			if err != nil {
				return err
			}
			r.Judge()
			return result.Tables(cmd.OutOrStdout(), r)
		},
	}
}

// part is a part of the benchmarks.
type part struct {
	name  string
	cells int
	run   func(context.Context, *recorder) error
	// leftOut lists what a quick run leaves out.
	leftOut []string
}

func (o *options) parts(log io.Writer) ([]part, error) {
	controlPlane, err := o.controlPlane(log)
	if err != nil {
		return nil, err
	}
	node, err := o.node(log)
	if err != nil {
		return nil, err
	}
	dataPlane, err := o.dataPlane(log)
	if err != nil {
		return nil, err
	}
	flows, err := o.flows(log)
	if err != nil {
		return nil, err
	}
	var parts []part
	for _, p := range []part{node, controlPlane, dataPlane, flows} {
		if o.only == "" || o.only == p.name {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		return nil, fmt.Errorf("--only: %q: want control, data, flows or node", o.only)
	}
	return parts, nil
}

func (o *options) setup(log io.Writer) proxies.Setup {
	return proxies.Setup{NFTProxy: o.nftproxy, Earlier: o.earlier, Flags: o.flags, KubeProxy: o.kubeProxy, Only: o.proxies,
		Limit: o.limit, Log: log}
}

func (o *options) controlPlane(log io.Writer) (part, error) {
	c := control.Config{Setup: o.setup(log), Samples: control.Full()}
	p := part{name: "control"}
	if o.quick {
		c.Samples, p.leftOut = control.Quick(), control.LeftOut()
	}
	return p.control(c, o)
}

// node is what a node pays.
func (o *options) node(log io.Writer) (part, error) {
	p := part{name: "node"}
	c := control.Config{Setup: o.setup(log), Samples: control.Full(), Node: true, Rounds: o.rounds}
	if o.quick {
		c.Samples, p.leftOut = control.Quick(), []string{"node: all rates with kube-proxy; nftproxy goes through 10 s of " +
			"each instead of 30"}
	}
	return p.control(c, o)
}

// control makes it a part that package control measures.
func (p part) control(c control.Config, o *options) (part, error) {
	sizes := o.sizes
	switch {
	case len(sizes) > 0:
	case o.quick:
		sizes = []string{result.Small}
	default:
		sizes = []string{result.Usual}
	}
	for _, text := range sizes {
		s, err := control.Find(text)
		if err != nil {
			return p, fmt.Errorf("--size: %w", err)
		}
		c.Sizes = append(c.Sizes, s)
	}
	p.cells = c.Cells()
	p.run = func(ctx context.Context, r *recorder) error { return control.Run(ctx, c, r) }
	return p, nil
}

// run measures, and shows all figures that it could measure.
func (o *options) run(ctx context.Context, w io.Writer) error {
	if o.earlier != "" && o.only != "data" && o.only != "node" {
		return errors.New("--earlier: it goes with --only data or --only node")
	}
	if o.out == "" {
		o.out = filepath.Join("docs", "bench")
		if o.quick || o.earlier != "" { // these figures do not replace those of a whole run
			o.out = filepath.Join("bin", "bench")
		}
	}
	if err := o.setup(nil).Validate(); err != nil {
		return fmt.Errorf("--proxy: %w", err)
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	facts, err := result.Machine()
	if err != nil {
		return err
	}
	ctx, abort := context.WithCancelCause(ctx)
	defer abort(nil)
	r := newRecorder(result.Report{Facts: facts, Started: time.Now(), Quick: o.quick}, filepath.Join(o.out, o.json),
		os.Stderr, abort)
	parts, err := o.parts(r)
	if err != nil {
		return err
	}
	for _, p := range parts {
		r.expect(p.cells)
		r.report.LeftOut = append(r.report.LeftOut, p.leftOut...)
	}
	var failed []error
	for _, p := range parts {
		err := p.run(ctx, r)
		if ctx.Err() != nil {
			failed = append(failed, fmt.Errorf("interrupted, and shown is what was measured by then: %w", context.Cause(ctx)))
			break
		}
		failed = append(failed, err)
	}
	report, err := r.finish()
	failed = append(failed, err, result.Tables(w, report))
	if o.check {
		failed = append(failed, unmet(report))
	}
	return errors.Join(failed...)
}

func unmet(r *result.Report) error {
	n := 0
	for _, t := range r.Targets {
		if t.Verdict == result.NotMet {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d targets are not met", n)
	}
	return nil
}
