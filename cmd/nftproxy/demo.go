package main

import (
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"nftproxy/internal/demo"
	"nftproxy/internal/testnet/userns"
)

// interrupted is the exit code of a program that SIGINT ended, as a shell has it.
const interrupted exitStatus = 128 + exitStatus(syscall.SIGINT)

func newDemoCommand() *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See the proxy at work on real traffic, without a cluster",
		Long: `demo makes a node, pods and clients out of network namespaces, runs nftproxy on
the node with services from manifests, and sends real connections through it:
how they spread, a refusal, hairpin, a NodePort, a scale-up, and a rolling
replacement of all pods under traffic. It checks everything it shows, and exits
with 0 only if all of it came out as it should. It removes what it made.

It runs as root or as an ordinary user, then in a user namespace of its own, and
does not touch the machine's network.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			code, done, err := userns.Reexec()
			if err != nil {
				return fmt.Errorf("get permission to make network namespaces: %w", err)
			}
			if done {
				return exitStatus(code).asError()
			}
			// A closed terminal or pipe is to leave nothing behind either.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP, syscall.SIGPIPE)
			defer stop()
			err = demo.Run(ctx, demo.Config{Out: cmd.OutOrStdout(), Executable: "/proc/self/exe", FullTable: full})
			switch {
			case errors.Is(err, demo.ErrInterrupted):
				return interrupted
			case err != nil: // which demo has shown in its place
				return exitStatus(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&full, "full-table", false, "print all of both nftables tables")
	return cmd
}

// exitStatus is the code to exit with when everything has been said already.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func (s exitStatus) asError() error {
	if s == 0 {
		return nil
	}
	return s
}
