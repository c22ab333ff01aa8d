package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nftproxy/daemon"
	"nftproxy/look/inspect"
	"nftproxy/look/verify"
	"nftproxy/model/printable"
)

// The exit status of verify where the tables differ, and where it could not tell.
const (
	statusDifferent exitStatus = 1
	statusUnknown   exitStatus = 2
)

// verifyOptions are the flags that run does not have.
type verifyOptions struct {
	output
	nameOptions
	limit int
	like  int
}

func newVerifyCommand() *cobra.Command {
	var run runOptions
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify [NAME | NAMESPACE/NAME ...]",
		Short: "Compare the kernel's tables with those that the Services ask for",
		Long: `verify reads Services from the API server or from manifests and makes the tables
that nftproxy run would make of them. It reads the tables that the kernel has, and
prints how they differ. It changes nothing, and needs no running nftproxy.

verify takes all flags of run, and needs those that run has on this node. In a
container whose first process is nftproxy run, and without any flag of run,
verify takes the flags of that process. --like names another process.

Each line says what is missing, extra or changed: an element of a set or map, a
rule, a chain, a set, or a table. Elements stand under the name of their Service.
These are no differences:
  clients that session affinity remembers, and the sizes of sets
  the order of the endpoints of a Service port
  chains and sets that nothing leads to, and a rule for packets that met earlier
  rules: run keeps them for ten seconds

A Service is NAME with -n NAMESPACE, or NAMESPACE/NAME; a NAME alone is that of any
namespace. Differences of other Services do not count then, but those of the rules
that Services share do.

If something differs, verify reads the tables again after two seconds and reports
what differs both times. So a change that is on its way to the kernel does not
count. A part that the kernel refused shows as missing: verify cannot know of it.
The log of run names it, and so does the event RefusedByKernel of its Service.

Exit status: 0 if nothing differs, 1 if something does, 2 if verify cannot tell
(the objects or the tables cannot be read, or a flag is wrong).

-o json and -o yaml print an object with same, source (kubernetes or manifests),
services (their number), missing, extra, changed, differences, omitted, idle,
inFlight and notes. Each difference has service, family, kind (table, set, chain,
rule or element), name, is (missing, extra or changed), want and have. Later
versions may add fields; they do not change these.`,
		Example: `  nftproxy verify --kubeconfig /etc/kubernetes/proxy.conf --cluster-cidr 10.244.0.0/16
  nftproxy verify --nftproxy-manifests ./services --hostname-override node-1 -o json
  kubectl -n kube-system exec POD -- /nftproxy verify cart -n shop`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := o.config(cmd.Flags())
			selected, bad := o.selected(names)
			if err = errors.Join(err, bad); err != nil {
				return usageError{err}
			}
			report, err := verify.Node(cmd.Context(), sourceOf(c), selected, c.DropsInvalid(), o.limit, cmd.ErrOrStderr(),
				verify.Settle)
			if err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: cannot tell: %v\n", err)
				return statusUnknown
			}
			if err := o.print(cmd.OutOrStdout(), report, printableText(report.WriteText)); err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: %v\n", err)
				return statusUnknown
			}
			if !report.Same {
				return statusDifferent
			}
			return nil
		},
	}
	run.addFlags(cmd)
	hideOtherFlags(cmd.Flags())
	o.addFlags(cmd)
	return cmd
}

// hideOtherFlags hides the flags of run that do not change the rules. verify takes them, so
// that the flags of run can be given as they are.
func hideOtherFlags(f *pflag.FlagSet) {
	shown := []string{
		"config", "kubeconfig", "master", ownPrefix + "manifests", "hostname-override", "cluster-cidr", "detect-local-mode",
		"pod-bridge-interface", "pod-interface-name-prefix", "nodeport-addresses", ownPrefix + "table",
		"masquerade-all", "iptables-masquerade-bit", ownPrefix + "counters", ownPrefix + "answer-ping",
		dropInvalidFlag, noMasqueradeFlag, ownPrefix + "masquerade-to-node", balanceFlag, dnsTimeoutsFlag, flowsFlag,
	}
	f.VisitAll(func(g *pflag.Flag) { g.Hidden = g.Hidden || !slices.Contains(shown, g.Name) })
}

func (o *verifyOptions) addFlags(cmd *cobra.Command) {
	o.addFlag(cmd)
	o.addNamespace(cmd)
	f := cmd.Flags()
	const manyLines = 200
	f.IntVar(&o.limit, "limit", manyLines, "list at most so many differences; all are counted")
	f.IntVar(&o.like, "like", 0, "take the flags of the nftproxy run with this process `ID` (default 1 without flags "+
		"of run)")
}

// config is what the rules in the kernel should be by.
func (o *verifyOptions) config(f *pflag.FlagSet) (*daemon.Config, error) {
	if err := notNegative("limit", o.limit); err != nil {
		return nil, err
	}
	given, err := o.flagsOfRun(f)
	if err != nil {
		return nil, err
	}
	return given.config(nil)
}

// sourceOf has the objects that a run by this configuration would follow.
func sourceOf(c *daemon.Config) inspect.Source {
	return inspect.Source{Source: c.Source, Objects: c.Objects, Node: c.Node, Rules: c.Rules}
}

// printableText prints a text with escapes in the place of characters that do not print.
func printableText(write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		var b strings.Builder
		if err := write(&b); err != nil {
			return err
		}
		for line := range strings.Lines(b.String()) {
			if _, err := fmt.Fprintln(w, printable.Text(strings.TrimSuffix(line, "\n"))); err != nil {
				return err
			}
		}
		return nil
	}
}

// flagsOfRun returns the flags that a run would have: those given, or those of a process.
func (o *verifyOptions) flagsOfRun(f *pflag.FlagSet) (commandLine, error) {
	given := newCommandLine(f, outputFlag, "limit", "like", "namespace")
	switch {
	case o.like < 0:
		return nil, fmt.Errorf("--like: %d is no process ID", o.like)
	case o.like > 0 && len(given) > 0:
		return nil, errors.New("--like cannot be combined with flags of run")
	case o.like > 0:
		like, err := runFlagsOf(o.like)
		if err != nil {
			return nil, fmt.Errorf("--like: %w", err)
		}
		return like, nil
	case len(given) > 0:
		return given, nil
	}
	const first = 1
	if like, err := runFlagsOf(first); err == nil {
		return like, nil
	}
	if os.Getenv("KUBERNETES_SERVICE_HOST") == "" {
		return nil, errors.New("no Services to compare with: give the flags of run, such as --kubeconfig or " +
			"--nftproxy-manifests")
	}
	return given, nil
}

// runFlagsOf returns the command line of a process, which must be an nftproxy run.
func runFlagsOf(pid int) (commandLine, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return nil, err
	}
	words := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
	if len(words) < 2 || filepath.Base(words[0]) != "nftproxy" || words[1] != "run" {
		return nil, fmt.Errorf("process %d is no nftproxy run", pid)
	}
	return commandLine(words[2:]), nil
}
