package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"nftproxy/conntrack"
)

func newConntrackSysctlCommand() *cobra.Command {
	var o sysctlOptions
	var output string
	cmd := &cobra.Command{
		Use:   "sysctl",
		Short: "Compare the kernel's settings of connection tracking with the wanted ones",
		Long: `sysctl prints the kernel settings that nftproxy run sets when it starts. For each
it prints the current value, the value that the same flags ask run for, and
whether they differ. sysctl itself changes nothing. run raises limits (>=) but
never lowers them, and leaves a setting without a wanted value alone. Time-outs
are in seconds.

-o json prints an object with entries and limit (how full the table is; both null
if unknown) and settings. Each setting has name, current, wanted (empty if run
leaves it alone), atLeast and differs (true or false) and error.`,
		Example: `  nftproxy conntrack sysctl
  nftproxy conntrack sysctl --conntrack-tcp-timeout-established=2h -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := o.check()
			if err == nil {
				err = checkOutput(output)
			}
			if err != nil {
				return usageError{err}
			}
			return showSysctls(cmd, o, output)
		},
	}
	o.addFlags(cmd.Flags())
	addOutput(cmd, &output)
	return cmd
}

// sysctlList is the JSON that sysctl prints.
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

func showSysctls(cmd *cobra.Command, o sysctlOptions, output string) error {
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
	if output == outputJSON {
		return writeJSON(cmd.OutOrStdout(), result)
	}
	return result.write(cmd.OutOrStdout())
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
