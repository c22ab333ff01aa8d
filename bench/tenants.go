package main

import (
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/bench/control"
	"nftproxy/bench/result"
)

// newTenantsCommand measures what one tenant's worst objects cost the others.
func newTenantsCommand() *cobra.Command {
	t := control.Tenants{Period: 200 * time.Millisecond}
	t.Only = []string{result.NFTProxy}
	var size string
	cmd := &cobra.Command{
		Use: "tenants [OPTION...]",
		Short: "Measure how long changes of others take while the largest Service by each option changes five times a " +
			"second",
		RunE: func(cmd *cobra.Command, options []string) (err error) {
			if t.Size, err = control.Find(size); err != nil {
				return err
			}
			t.Options, t.Log = options, cmd.ErrOrStderr()
			return t.Run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&t.NFTProxy, "nftproxy", filepath.Join("bin", "nftproxy"), "the binary that is measured")
	f.StringVar(&size, "size", result.Small, "the Services of others x endpoints of each")
	f.DurationVar(&t.Part, "part", 30*time.Second, "how long others change endpoints: first alone, and then beside the "+
		"tenant's changes")
	f.Float64Var(&t.Rate, "rate", 10, "changes of others a second")
	f.DurationVar(&t.Limit, "limit", time.Minute, "how long to wait for the last of them")
	return cmd
}
