// Command nftproxy is a Kubernetes service proxy for Linux nodes: it turns
// Services and EndpointSlices into one nftables program and keeps the kernel
// after it. It parses, wires and exits; the work is in the packages.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command and returns the exit code: 0, 1 for an error, which
// it prints, or 2 for a command line that it does not understand. A command
// that has said everything itself ends with an exitStatus.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newCommand()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if status := exitStatus(0); errors.As(err, &status) {
		return int(status)
	}
	fmt.Fprintf(stderr, "nftproxy: %v\n", err)
	if usage := (usageError{}); errors.As(err, &usage) {
		return 2
	}
	return 1
}

// usageError is a command line that makes no sense.
type usageError struct{ error }

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nftproxy",
		Short: "A Kubernetes service proxy that programs nftables over netlink",
		Long: `nftproxy replaces kube-proxy on a Linux node: it follows Services and
EndpointSlices and keeps one nftables table per family in step with them.

Start here:  nftproxy demo                          see it work, no cluster needed
On a node:   nftproxy run --kubeconfig FILE         or in-cluster, or --manifests
To go back:  start kube-proxy, stop nftproxy, then  nftproxy cleanup`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	cmd.AddCommand(newRunCommand(), newConntrackCommand(), newCleanupCommand(), newDemoCommand())
	return cmd
}

// version is the module's version or the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return "devel"
}
