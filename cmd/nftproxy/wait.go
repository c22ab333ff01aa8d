package main

import "github.com/spf13/cobra"

// newWaitCommand makes the command wait, for pods whose work is done by an init
// container: the image has no other program that could wait.
func newWaitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait",
		Short: "Do nothing until SIGTERM: the last container of the pods in deploy/cleanup",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			return nil
		},
	}
}
