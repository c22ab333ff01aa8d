package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"nftproxy/daemon/takeover"
	"nftproxy/look/preflight"
	"nftproxy/nft/ruleset"
)

// defaultNodePorts are the API server's.
const defaultNodePorts = "30000-32767"

// The exit status of check for a yellow and a red finding.
const (
	statusYellow exitStatus = 1
	statusRed    exitStatus = 2
)

func newCheckCommand() *cobra.Command {
	var table, nodePorts, serviceCIDR string
	var printed output
	var source sourceOptions
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say whether this node is ready for nftproxy, and what to do if not",
		Long: `check looks at this node before nftproxy serves it, and changes nothing:

  - it tries each feature of the kernel that nftproxy uses, in a network namespace
    of its own (this needs CAP_SYS_ADMIN), and compares its version with fixes;
  - it looks at its rights, connection tracking, and the ports of its servers;
  - it names other service proxies, and tables that earlier ones left, and says
    whether Calico's Felix goes by kube-proxy's tables;
  - it names chains of firewalls that drop what they do not know;
  - it looks for the route without which processes of the node reach no cluster IP;
  - it names networks of the node that lie in the cluster's ServiceCIDRs;
  - it names bridges on which a pod does not reach itself through a Service;
  - it looks at settings of the kernel that matter to Service traffic, and says by
    interface and bridge what holds: forwarding, rp_filter, bridge-nf-call-iptables;
  - with --kubeconfig or --master it asks the API server for its version, and says
    what that one lacks.

Each finding is green, yellow (some traffic or feature may not work) or red
(nftproxy cannot serve the node), and says what to do. The exit status is 0 if all
are green, 1 if one is yellow and 2 if one is red.

-o json and -o yaml print an object with level and findings. Each finding has probe,
level, found and do.`,
		Example: `  nftproxy check
  nftproxy check --node-ports 20000-22767          the range that the API server has
  nftproxy check --service-cidr 10.96.0.0/12,fd00:96::/112
  nftproxy check -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o := preflight.Options{
				Table: table, Proc: preflight.DefaultProc,
				Addresses: map[string]string{"health": defaultHealthAddress, "metrics": defaultMetricsAddress,
					"probe": defaultProbeAddress},
			}
			var err error
			if o.NodePorts, err = parseNodePorts(nodePorts); err != nil {
				return usageError{err}
			}
			if o.ServiceCIDRs, err = parseClusterCIDR(serviceCIDR); err != nil {
				return usageError{fmt.Errorf("--service-cidr: %w", err)}
			}
			findings := preflight.Run(cmd.Context(), o)
			if source.from.Kubeconfig != "" || source.from.Master != "" {
				findings = append(findings, preflight.Server(cmd.Context(), source.from))
			}
			return writeCheck(cmd.OutOrStdout(), findings, printed)
		},
	}
	f := cmd.Flags()
	f.StringVar(&table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables of nftproxy")
	f.StringVar(&nodePorts, "node-ports", defaultNodePorts, "the cluster's `range` of node ports (kube-apiserver "+
		"--service-node-port-range)")
	f.StringVar(&source.from.Kubeconfig, "kubeconfig", "", "kubeconfig file, as run has it")
	f.StringVar(&source.from.Master, "master", "", "address of the API server; overrides the address in the kubeconfig")
	f.StringVar(&serviceCIDR, "service-cidr", "", "the cluster's `ranges` of cluster IPs, separated by commas, to "+
		"check the node's route to them (docs/migrate.md#before-check-each-node)")
	printed.addFlag(cmd)
	return cmd
}

// parseNodePorts reads a range as kube-apiserver does: FIRST-LAST, FIRST+MORE or one port.
func parseNodePorts(text string) ([2]uint16, error) {
	r, err := utilnet.ParsePortRange(text)
	if err != nil || r.Base < 1 || r.Size < 1 {
		return [2]uint16{}, fmt.Errorf("--node-ports: %q: want a range of ports, such as %s", text, defaultNodePorts)
	}
	return [2]uint16{uint16(r.Base), uint16(r.Base + r.Size - 1)}, nil
}

type checkReport struct {
	Level    preflight.Level     `json:"level"`
	Findings []preflight.Finding `json:"findings"`
}

// writeCheck prints the findings and returns the exit status.
func writeCheck(out io.Writer, findings []preflight.Finding, o output) error {
	worst := preflight.Worst(findings)
	err := o.print(out, checkReport{worst, findings}, func(w io.Writer) error {
		_, err := io.WriteString(w, checkText(findings, worst))
		return err
	})
	switch {
	case err != nil:
		return err
	case worst == preflight.Red:
		return statusRed
	case worst == preflight.Yellow:
		return statusYellow
	}
	return nil
}

func checkText(findings []preflight.Finding, worst preflight.Level) string {
	var b strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&b, "%-6s  %s: %s\n", f.Level, f.Probe, f.Found)
		if f.Do != "" {
			fmt.Fprintf(&b, "        -> %s\n", f.Do)
		}
	}
	fmt.Fprintf(&b, "\nin all: %s\n", worst)
	return b.String()
}

type proxiesOptions struct {
	output
	table, await string
	timeout      time.Duration
}

func newProxiesCommand() *cobra.Command {
	var o proxiesOptions
	cmd := &cobra.Command{
		Use:   "proxies",
		Short: "Say which service proxies this node has, and whether one can take over from the other",
		Long: `proxies compares the rules of nftproxy and kube-proxy in the kernel of this node:

  PROXY      nftproxy or kube-proxy
  RUNNING    whether the process runs
  FRONTENDS  the number of addresses and ports of Services that the rules have; node
             ports do not count
  RULES      the tables

Two lines below say which frontends of the one the other lacks. The rules of a
kube-proxy that has ended count too: remove them first (nftproxy cleanup
--kube-proxy), or they hide that the new one has not synced.

A line about Calico's Felix, if it is there, says which data plane it has, and which
without kube-proxy's nftables tables.

With --await, the command ends once that proxy has rules for every frontend of the
other. Its exit status is 1 if that does not come true within --timeout.

-o json and -o yaml print an object with proxies, and with felix if it is there.`,
		Example: `  nftproxy proxies
  nftproxy proxies --await kube-proxy     before nftproxy is stopped`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", takeover.NameOurs, takeover.NameTheirs}, o.await) {
				return usageError{unknownValue("await", o.await)}
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables of nftproxy")
	f.StringVar(&o.await, "await", "", "wait until this proxy, nftproxy or kube-proxy, has rules for every frontend of "+
		"the other")
	f.DurationVar(&o.timeout, "timeout", 2*time.Minute, "how long --await waits")
	o.addFlag(cmd)
	return cmd
}

// awaitPeriod is the time between two looks of --await.
const awaitPeriod = time.Second

func (o *proxiesOptions) run(cmd *cobra.Command) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
	defer cancel()
	ticker := time.NewTicker(awaitPeriod)
	defer ticker.Stop()
	for {
		report, err := takeover.LookForProxies(cmd.Context(), o.table)
		if err != nil {
			return err
		}
		done := o.await == "" || report.TakesOver(o.await)
		if !done && ctx.Err() == nil {
			select {
			case <-ticker.C:
				continue
			case <-ctx.Done():
			}
		}
		report.Felix = takeover.LookForFelix()
		err = o.print(cmd.OutOrStdout(), report, func(w io.Writer) error { return writeProxies(w, report) })
		if err == nil && !done {
			return fmt.Errorf("%s does not have rules for every frontend after %s", o.await, o.timeout)
		}
		return err
	}
}

func writeProxies(out io.Writer, r takeover.Proxies) error {
	const most = 10 // frontends in a line
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PROXY\tRUNNING\tFRONTENDS\tRULES")
	for _, p := range r.Proxies {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", p.Name, p.Detail, p.Frontends, cmp.Or(strings.Join(p.Rules, ", "), "-"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i, p := range r.Proxies {
		other := r.Proxies[len(r.Proxies)-1-i]
		if other.Frontends == 0 {
			continue
		}
		text := fmt.Sprintf("%s has rules for every frontend of %s", p.Name, other.Name)
		if n := len(p.Lacks); n > 0 {
			text = fmt.Sprintf("%s lacks %d of the %d frontends of %s: %s", p.Name, n, other.Frontends, other.Name,
				strings.Join(p.Lacks[:min(n, most)], ", "))
			if n > most {
				text += ", ..."
			}
		}
		if _, err := fmt.Fprintln(out, text); err != nil {
			return err
		}
	}
	if r.Felix != nil {
		_, err := fmt.Fprintln(out, "Calico: "+r.Felix.Detail)
		return err
	}
	return nil
}
