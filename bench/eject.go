package main

import (
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"nftproxy/bench/data"
)

// newEjectCommand measures what --nftproxy-eject costs.
func newEjectCommand() *cobra.Command {
	var e data.Ejection
	cmd := &cobra.Command{
		Use: "eject",
		Short: "Measure the CPU time of a node with --nftproxy-eject=off, report and on in turn, at rest and under new " +
			"connections, or with --services while one endpoint does not answer",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			e.Log = cmd.ErrOrStderr()
			return e.Run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&e.NFTProxy, "nftproxy", filepath.Join("bin", "nftproxy"), "the binary that is measured")
	f.StringVar(&e.Earlier, "earlier", "", "another `build` of nftproxy, measured beside it")
	f.IntVar(&e.Rounds, "rounds", 10, "`number` of rounds, in which each mode has its turn")
	f.DurationVar(&e.Part, "part", 10*time.Second, "`time` at rest, and under load, in each round")
	f.IntVar(&e.Rate, "rate", 1000, "`number` of new connections a second")
	f.IntVar(&e.Services, "services", 0, "`number` of further Services with 10 endpoints, one of which does not answer")
	return cmd
}
