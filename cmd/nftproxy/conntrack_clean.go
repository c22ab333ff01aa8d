package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/model/service"
)

func newConntrackCleanCommand() *cobra.Command {
	var o flowOptions
	var c cleaning
	cmd := &cobra.Command{
		Use:   "clean [NAME | NAMESPACE/NAME ...]",
		Short: "Remove stale flows",
		Long: `clean removes the flows that list --stale shows, and prints them. The next packet
of such a flow goes to a live endpoint or, if there is none, is refused. clean
touches nothing else. With --dry-run it prints the same and removes nothing.

Without --kubeconfig, --master and --nftproxy-manifests, clean knows the Services
from the tables in the kernel, which have only the endpoints that get new
connections. Then it also removes UDP flows to endpoints that are terminating, or
that topology or a traffic policy leaves out now. With
--nftproxy-conntrack-clean-established it also breaks established connections to
such endpoints.

--all-service-flows removes valid flows as well: those of a Service that is named, or
with --yes those of all. UDP flows may then get another endpoint, and
established TCP connections break.

-o json and -o yaml print an object with source, dryRun, removed and flows. removed is
a number; it does not count flows that ended by themselves meanwhile. flows is the same
as in the output of list.`,
		Example: `  nftproxy conntrack clean --dry-run
  nftproxy conntrack clean kube-dns -n kube-system
  nftproxy conntrack clean shop/cart --protocol udp --all-service-flows`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, names []string) error {
			source, filter, err := o.parse(names)
			if err == nil {
				err = c.check(filter.Services.Services)
			}
			if err != nil {
				return usageError{err}
			}
			filter.Stale = !c.all
			return c.clean(cmd, source, filter, o.output)
		},
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.BoolVar(&c.dryRun, "dry-run", false, "print the flows that clean would remove, and remove nothing")
	f.BoolVar(&c.all, "all-service-flows", false, "remove valid flows of Services as well; TCP connections break")
	f.BoolVar(&c.yes, "yes", false, "confirm --all-service-flows for all Services")
	return cmd
}

type cleaning struct {
	dryRun, all, yes bool
}

// check refuses to remove more than somebody may have meant.
func (c *cleaning) check(services []service.Name) error {
	for _, name := range services {
		if namespace, bare := name.Split(); namespace == "" {
			return fmt.Errorf("%q may be the name of several Services: want NAMESPACE/NAME, or -n NAMESPACE", bare)
		}
	}
	if c.all && len(services) == 0 && !c.yes && !c.dryRun {
		return errors.New("--all-service-flows breaks the connections to many Services on this node: name one, or add --yes")
	}
	return nil
}

type cleanResult struct {
	Source  string            `json:"source"`
	DryRun  bool              `json:"dryRun"`
	Removed int               `json:"removed"`
	Flows   []inspect.FlowRow `json:"flows"`
}

func (c *cleaning) clean(cmd *cobra.Command, source *inspect.FlowSource, filter inspect.FlowFilter,
	o output) error {
	ctx, notes := cmd.Context(), cmd.ErrOrStderr()
	table, rows, err := source.Flows(ctx, filter, notes)
	if err != nil {
		return err
	}
	defer table.Close()
	if rows, err = source.Confirm(ctx, rows, filter); err != nil {
		return err
	}
	result := cleanResult{Source: source.Kind(), DryRun: c.dryRun, Flows: rows}
	if !c.dryRun {
		flows := make([]conntrack.Flow, len(rows))
		for i := range rows {
			flows[i] = rows[i].Flow
		}
		if result.Removed, err = table.Delete(ctx, flows); err != nil {
			return fmt.Errorf("%w, after %d of %s were removed", err, result.Removed, inspect.Plural(len(rows), "flow"))
		}
	}
	err = o.print(cmd.OutOrStdout(), result, func(w io.Writer) error { return writeFlows(w, rows) })
	if err != nil || o.structured() {
		return err
	}
	result.summarise(notes)
	return nil
}

func (r *cleanResult) summarise(w io.Writer) {
	switch gone := len(r.Flows) - r.Removed; {
	case r.DryRun:
		fmt.Fprintf(w, "nftproxy: dry run: nothing was removed, %s would have been\n", inspect.Plural(len(r.Flows), "flow"))
	case gone > 0:
		fmt.Fprintf(w, "nftproxy: removed %s; %d more had ended by themselves\n", inspect.Plural(r.Removed, "flow"), gone)
	default:
		fmt.Fprintf(w, "nftproxy: removed %s\n", inspect.Plural(r.Removed, "flow"))
	}
}

func newConntrackSysctlCommand() *cobra.Command {
	var o sysctlOptions
	var printed output
	cmd := &cobra.Command{
		Use:   "sysctl",
		Short: "Compare the kernel's settings of connection tracking with the wanted ones",
		Long: `sysctl prints the kernel settings that nftproxy run sets when it starts. For each
it prints the current value, the value that the same flags ask run for, and
whether they differ. sysctl itself changes nothing. run raises limits (>=) but
never lowers them, and leaves a setting without a wanted value alone. Time-outs
are in seconds.

-o json and -o yaml print an object with entries and limit (how full the table is; both
null if unknown) and settings. Each setting has name, current, wanted (empty if run
leaves it alone), atLeast and differs (true or false) and error.`,
		Example: `  nftproxy conntrack sysctl
  nftproxy conntrack sysctl --conntrack-tcp-timeout-established=2h -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.check(); err != nil {
				return usageError{err}
			}
			return showSysctls(cmd, o, printed)
		},
	}
	o.addFlags(cmd.Flags())
	printed.addFlag(cmd)
	return cmd
}

type sysctlList struct {
	Entries  *int         `json:"entries"`
	Limit    *int         `json:"limit"`
	Settings []settingRow `json:"settings"`
}

type settingRow struct {
	Name    string `json:"name"`
	Current string `json:"current"`
	Wanted  string `json:"wanted"`
	AtLeast bool   `json:"atLeast"`
	Differs bool   `json:"differs"`
	Error   string `json:"error"`
}

func showSysctls(cmd *cobra.Command, o sysctlOptions, printed output) error {
	var result sysctlList
	for _, s := range o.Plan(o.files()) {
		row := settingRow{Name: s.Name, Current: s.Current, Wanted: s.Wanted, AtLeast: s.AtLeast, Differs: s.Differs()}
		if s.Err != nil {
			row.Error = s.Err.Error()
		}
		result.Settings = append(result.Settings, row)
	}
	if entries, limit, err := countEntries(cmd); err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "nftproxy: cannot count the entries of the table: %v\n", err)
	} else {
		result.Entries, result.Limit = &entries, &limit
	}
	return printed.print(cmd.OutOrStdout(), result, result.write)
}

func countEntries(cmd *cobra.Command) (entries, limit int, err error) {
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return 0, 0, err
	}
	defer table.Close()
	return table.Count(cmd.Context())
}

func (l *sysctlList) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tCURRENT\tWANTED\tDIFFERS")
	for _, s := range l.Settings {
		wanted, differs := cmp.Or(s.Wanted, "-"), "no"
		if s.AtLeast && s.Wanted != "" {
			wanted = ">=" + wanted
		}
		switch {
		case s.Error != "":
			differs = "? " + s.Error
		case s.Differs:
			differs = "yes"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", s.Name, cmp.Or(s.Current, "-"), wanted, differs)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if l.Entries != nil {
		fmt.Fprintf(w, "\n%d of %d entries are in use.\n", *l.Entries, *l.Limit)
	}
	return nil
}
