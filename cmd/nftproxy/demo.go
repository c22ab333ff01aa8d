package main

import (
	"errors"
	"fmt"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"nftproxy/demo"
)

// interrupted is the exit code that shells give to a program that SIGINT ended.
const interrupted exitStatus = 128 + exitStatus(syscall.SIGINT)

func newDemoCommand() *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show the proxy at work on real traffic, without a cluster",
		Long: `demo makes a node, pods and clients out of network namespaces, runs nftproxy on
the node with Services from manifests, and sends real connections through it. It
shows how connections spread, a refusal, a pod that reaches itself, a NodePort, a
scale-up, and a rolling replacement of all pods under traffic. It checks
everything it shows, and exits with 0 only if every check passes. It removes
everything it made.

demo needs no root: for an ordinary user it runs in a user namespace of its own.
It does not touch the machine's network.`,
		Example: `  nftproxy demo
  nftproxy demo --full-table`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			code, done, err := demo.Reexec()
			if err != nil {
				return fmt.Errorf("get permission to make network namespaces: %w", err)
			}
			if done {
				return exitStatus(code).asError()
			}
			// The demo removes everything it made also when its terminal or pipe closes.
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP, syscall.SIGPIPE)
			defer stop()
			err = demo.Run(ctx, demo.Config{Out: cmd.OutOrStdout(), Executable: "/proc/self/exe", FullTable: full})
			switch {
			case errors.Is(err, demo.ErrInterrupted):
				return interrupted
			case err != nil: // The demo has printed it where it happened.
				return exitStatus(1)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&full, "full-table", false, "print all of both nftables tables")
	return cmd
}

// exitStatus is the exit code of a command that has printed everything itself.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func (s exitStatus) asError() error {
	if s == 0 {
		return nil
	}
	return s
}
