package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nftproxy/daemon/takeover"
	"nftproxy/look/othertables"
	"nftproxy/nft"
	"nftproxy/nft/ejecttable"
	"nftproxy/nft/flowtable"
	"nftproxy/nft/invalidtable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/livetrace"
	"nftproxy/nft/ruleset"
	"nftproxy/node/otherproxy"
	"nftproxy/node/tablekeeper"
)

func newCleanupCommand() *cobra.Command {
	var table string
	var kubeProxy, force, accepting, end, calico bool
	var excludeCIDRs []string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove the tables that run made, or the rules that kube-proxy left",
		Long: `cleanup removes every Service from this node: the tables "ip nftproxy" and
"ip6 nftproxy", "inet nftproxy-eject" of --nftproxy-eject=on, "inet nftproxy-invalid"
of --nftproxy-drop-invalid, and tables that earlier runs with another --nftproxy-table
left.
Start kube-proxy (or another proxy) before cleanup, so that open connections go on.
It also removes what killed traces left on kernels before 5.12.

cleanup removes nothing that a running nftproxy uses: it removes what others left, and
then fails. Stop nftproxy first to remove its tables.

cleanup --kube-proxy removes the rules that kube-proxy left instead, and leaves
nftproxy's: its nftables tables, its chains in the tables of iptables (nft and
legacy), and what its IPVS mode made: virtual servers, the interface kube-ipvs0,
ipsets. It removes nothing while kube-proxy runs or may run, nothing while no
nftproxy serves the node, and no rules of other programs. Start
nftproxy first: it serves the Services from then on. Where a firewall drops or
rejects packets, it leaves those chains of kube-proxy that accept some, and says what
has to take their place; --remove-accepting then removes them. Where Calico's Felix
may go by kube-proxy's nftables tables, it leaves an empty chain in each;
--accept-calico removes them. Open connections that go through IPVS keep what they
use; run the command again later, or end them by --end-connections.

The exit status is 0 if nothing is left. It is 3 if cleanup --kube-proxy has removed
all but what has to stay, and 1 if it refused or failed.`,
		Example: `  nftproxy cleanup
  nftproxy cleanup --nftproxy-table other
  nftproxy cleanup --kube-proxy                    after a change from kube-proxy to nftproxy`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if force && !kubeProxy {
				return usageError{errors.New("--force goes with --kube-proxy")}
			}
			if accepting && !kubeProxy {
				return usageError{errors.New("--remove-accepting goes with --kube-proxy")}
			}
			if (end || len(excludeCIDRs) > 0) && !kubeProxy {
				return usageError{errors.New("--end-connections and --ipvs-exclude-cidrs go with --kube-proxy")}
			}
			if calico && !kubeProxy {
				return usageError{errors.New("--accept-calico goes with --kube-proxy")}
			}
			if kubeProxy {
				of := otherproxy.Removal{Closed: takeover.Closed, EndConnections: end, KeepSign: otherproxy.SignOfFelix}
				if accepting {
					of.Closed = nil
				}
				if calico {
					of.KeepSign = nil
				}
				var err error
				if of.Exclude, err = parseExcludeCIDRs(excludeCIDRs); err != nil {
					return usageError{err}
				}
				return cleanupKubeProxy(cmd, force, of)
			}
			return cleanupTables(cmd, table)
		},
	}
	cmd.Flags().StringVar(&table, ownPrefix+"table", ruleset.DefaultTable, "name of the nftables tables")
	cmd.Flags().BoolVar(&kubeProxy, "kube-proxy", false, "remove kube-proxy's rules, and leave nftproxy's")
	cmd.Flags().BoolVar(&force, "force", false, "with --kube-proxy: do not check that kube-proxy has ended and that "+
		"nftproxy serves the node")
	cmd.Flags().BoolVar(&accepting, "remove-accepting", false, "with --kube-proxy: remove also the chains that accept "+
		"packets (docs/migrate.md#where-a-firewall-drops-packets)")
	cmd.Flags().BoolVar(&end, "end-connections", false, "with --kube-proxy: remove also what open connections through "+
		"IPVS use, which ends them")
	cmd.Flags().BoolVar(&calico, "accept-calico", false, "with --kube-proxy: remove also the empty chains by which "+
		"Calico's Felix may go (docs/migrate.md#calico)")
	addExcludeCIDRs(cmd.Flags(), &excludeCIDRs)
	return cmd
}

// addExcludeCIDRs adds kube-proxy's flag for IPVS that says what it leaves to others.
func addExcludeCIDRs(f *pflag.FlagSet, ranges *[]string) {
	f.StringSliceVar(ranges, "ipvs-exclude-cidrs", nil, "`CIDRs` of other programs' virtual servers in IPVS, which "+
		"stay (docs/migrate.md#from-ipvs-mode)")
}

func parseExcludeCIDRs(texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, parseErr := netip.ParsePrefix(strings.TrimSpace(text))
		if parseErr != nil {
			err = errors.Join(err, fmt.Errorf("--ipvs-exclude-cidrs: %q: want a CIDR such as 192.0.2.0/24", text))
			continue
		}
		list = append(list, p.Masked())
	}
	return list, err
}

// cleanupTables removes the tables of that name, and those that earlier runs with another name, and traces, left.
func cleanupTables(cmd *cobra.Command, table string) error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	traces, err := livetrace.RemoveLeftOvers()
	for _, id := range traces {
		fmt.Fprintf(cmd.OutOrStdout(), "removed table %s\n", id)
	}
	if err != nil {
		return err
	}
	tables, err := conn.Tables(table)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	former, err := abandonedTables(conn, table)
	if err != nil {
		return err
	}
	if len(tables)+len(former) == 0 {
		removed, err := removeTablesBeside(cmd, table)
		if removed || err != nil || len(traces) > 0 {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "no table %s: nothing to remove\n", table)
		return nil
	}
	// Those that nobody keeps go in any case.
	return errors.Join(removeTables(cmd, conn, former), removeTables(cmd, conn, tables))
}

// abandonedTables returns the tables of other names than that one that no process keeps.
func abandonedTables(conn *kernel.Conn, except string) (list []kernel.TableInfo, err error) {
	others, err := othertables.Find(conn, except)
	for _, t := range others {
		if t.Abandoned() {
			list = append(list, t.Infos...)
		}
	}
	return list, err
}

// removeTables removes tables, unless a running nftproxy keeps one of them.
func removeTables(cmd *cobra.Command, conn *kernel.Conn, tables []kernel.TableInfo) error {
	if err := checkUnused(tables); err != nil {
		return err
	}
	err := conn.Delete(tables)
	if errors.Is(err, syscall.EPERM) {
		for _, t := range tables {
			if t.Owner != 0 {
				return belongs(t, tablekeeper.OwnerText(t.Owner))
			}
		}
	}
	if err != nil {
		return fmt.Errorf("delete tables: %w", err)
	}
	for _, t := range tables {
		fmt.Fprintf(cmd.OutOrStdout(), "removed table %s\n", t.ID)
		if _, err := removeTablesBeside(cmd, t.ID.Name); err != nil {
			return err
		}
	}
	return nil
}

// removeTablesBeside removes the tables beside those of Services.
func removeTablesBeside(cmd *cobra.Command, services string) (removed bool, err error) {
	eject, err := ejecttable.Remove(services)
	if eject {
		fmt.Fprintf(cmd.OutOrStdout(), "removed table inet %s\n", ejecttable.Name(services))
	}
	invalid, more := invalidtable.Remove(services, 0)
	if invalid {
		fmt.Fprintf(cmd.OutOrStdout(), "removed table inet %s\n", invalidtable.Name(services))
	}
	flows, last := flowtable.Remove(services, 0)
	if flows {
		fmt.Fprintf(cmd.OutOrStdout(), "removed table inet %s\n", flowtable.Name(services))
	}
	return eject || invalid || flows, errors.Join(err, more, last)
}

// checkUnused returns an error if a running nftproxy keeps one of the tables. Kernels before 6.9
// would let another process delete them.
func checkUnused(tables []kernel.TableInfo) error {
	keepers, err := tablekeeper.List()
	if err != nil {
		return err
	}
	for _, t := range tables {
		if by := keepers.Texts(t.ID.Name, ""); t.Ours && t.Owner == 0 && len(by) > 0 {
			return belongs(t, by[0])
		}
	}
	return nil
}

func belongs(t kernel.TableInfo, to string) error {
	return fmt.Errorf("table %s belongs to a running nftproxy, %s: stop it first (in a cluster: kubectl -n kube-system "+
		"delete daemonset nftproxy), then run cleanup again", t.ID, to)
}

// cleanupKubeProxy removes kube-proxy's rules. Unless forced, it first makes sure that
// kube-proxy does not run and that nftproxy serves both families.
func cleanupKubeProxy(cmd *cobra.Command, force bool, of otherproxy.Removal) error {
	found, err := otherproxy.Find()
	if err != nil {
		return fmt.Errorf("look for the rules of kube-proxy: %w", err)
	}
	if len(found) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "no rules of kube-proxy: nothing to remove")
		return nil
	}
	if !force {
		running, err := otherproxy.LookForKubeProxy(cmd.Context())
		if err != nil {
			return fmt.Errorf("look for kube-proxy: %w", err)
		}
		if err := errors.Join(checkStopped(running), checkServed()); err != nil {
			return err
		}
	}
	var left, failed []error
	err = otherproxy.RemoveAll(cmd.Context(), of, func(r otherproxy.Rules, err error) {
		switch {
		case errors.Is(err, otherproxy.ErrInUse):
			left = append(left, fmt.Errorf("%w: run cleanup again later, or add --end-connections", err))
		case err != nil && otherproxy.Final(err):
			left = append(left, err)
		case err != nil:
			failed = append(failed, err)
		default:
			fmt.Fprintf(cmd.OutOrStdout(), "removed kube-proxy's rules in %s\n", r)
			if r.Kind == otherproxy.IPVS && otherproxy.StrictARP() {
				fmt.Fprintln(cmd.OutOrStdout(), takeover.StrictARPHint)
			}
		}
	})
	all := errors.Join(append(slices.Concat(left, failed), err)...)
	if len(left) > 0 && len(failed) == 0 && err == nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: %v\n", all)
		return statusLeft
	}
	return all
}

// statusLeft is the exit status of cleanup --kube-proxy where all that is left has to stay.
const statusLeft exitStatus = 3

func checkStopped(running otherproxy.Running) error {
	switch {
	case running.Yes():
		return fmt.Errorf("kube-proxy %s: stop it first (docs/migrate.md), then run cleanup again", running)
	case !running.No():
		return fmt.Errorf("kube-proxy %s: run cleanup on the node itself or in a pod with hostPID: true, or make sure that "+
			"no kube-proxy runs here, in a program such as k3s neither (docs/migrate.md, Whether kube-proxy runs), and add "+
			"--force", running)
	}
	return nil
}

// checkServed returns an error if a family has no table of a running nftproxy. A table that
// an ended one left goes out of date.
func checkServed() error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return err
	}
	defer conn.Close()
	tables, err := conn.OurTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	keepers, err := tablekeeper.List()
	if err != nil {
		return err
	}
	served := map[nft.Family]bool{}
	for _, t := range tables {
		served[t.ID.Family] = served[t.ID.Family] || keepers.Used(t.ID.Name, t.Owner)
	}
	for _, f := range nft.Families() {
		if !served[f] {
			return fmt.Errorf("there is no table of a running nftproxy for %s: without kube-proxy's rules, no proxy would "+
				"serve this node; start nftproxy first, or add --force", f)
		}
	}
	return nil
}
