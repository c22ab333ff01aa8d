package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

// addUntilStdinCloses adds the flag by which a command that goes on ends with its standard input. What kubectl exec or
// the plugin has started in a container goes on when they end; all that it sees of this is the end of its input.
func addUntilStdinCloses(cmd *cobra.Command) {
	until := cmd.Flags().Bool("until-stdin-closes", false, "end when the standard input does, too (for kubectl exec -i)")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *until {
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			go func() {
				_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // An error is an end, too.
				cancel()
			}()
			cmd.SetContext(ctx)
		}
		return run(cmd, args)
	}
}
