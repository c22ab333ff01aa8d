// Command nftproxy is a Kubernetes service proxy for Linux nodes. It turns Services and EndpointSlices into one
// nftables program and keeps the kernel's tables up to date with it. This package parses flags, connects the parts and
// sets the exit code; the work is in the other packages.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"nftproxy/daemon/process"
	"nftproxy/look/inspect"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	if err := process.UseCapabilities(); err != nil { // The command says what it cannot do without them.
		fmt.Fprintf(os.Stderr, "nftproxy: %v\n", err)
	}
	code := execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// execute runs one command and returns the exit code: 0, 1 for an error, or 2 for an invalid command line. It prints
// the error, except an exitStatus: a command returns that when it has printed everything itself.
func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newCommand()
	checkBuiltIn(cmd)
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
	if usage, unknown := (usageError{}), (*inspect.UnknownError)(nil); errors.As(err, &usage) || errors.As(err, &unknown) {
		return 2
	}
	return 1
}

// exitStatus is the exit code of a command that has printed everything itself.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// usageError is the error about an invalid command line.
type usageError struct{ error }

func newCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nftproxy",
		Short: "A Kubernetes service proxy that programs nftables over netlink",
		Long: `nftproxy replaces kube-proxy on a Linux node. It follows Services and
EndpointSlices and keeps one nftables table per address family up to date.

On a node:   nftproxy run --kubeconfig FILE         or --nftproxy-manifests, or neither in a pod
Look inside: nftproxy get services                  what this node's kernel holds
To go back:  start kube-proxy, stop nftproxy, then  nftproxy cleanup`,
		Version:       version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError{unknownFlag(cmd, flagError(err))} })
	cmd.AddCommand(
		newRunCommand(),
		newGetCommand(),
		newExplainCommand(), newTopCommand(), newFlowsCommand(),
		newVerifyCommand(), newTraceCommand(),
		newConntrackCommand(),
		newCheckCommand(), newProxiesCommand(), newCleanupCommand(),
		newStatusCommand(), newVersionCommand(), newWaitCommand(),
	)
	markArgs(cmd)
	completeFlags(cmd)
	return cmd
}

// markArgs makes the errors about arguments usage errors, in the command and those below.
func markArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{unknownCommand(cmd, args, err)}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		markArgs(sub)
	}
}

func newVersionCommand() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return printVersion(cmd, o) },
	}
	o.addFlag(cmd)
	return cmd
}

// build is what a binary knows of itself.
type build struct {
	Version string `json:"version"`
	// Commit is that of the source, and Modified says that files differed from it; empty if the build did not know.
	Commit   string `json:"commit"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func printVersion(cmd *cobra.Command, o output) error {
	b := build{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				b.Commit = s.Value
			case "vcs.modified":
				b.Modified = s.Value == "true"
			}
		}
	}
	return o.print(cmd.OutOrStdout(), b, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "nftproxy version %s\n", b.Version)
		return err
	})
}

// version returns the module's version, or the commit that the binary was built from.
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

// flagError says in plain words what is wrong with a flag's value. The library's own
// error is that of the parsing function.
func flagError(err error) error {
	invalid := (*pflag.InvalidValueError)(nil)
	if !errors.As(err, &invalid) {
		return err
	}
	kind := invalid.GetFlag().Value.Type()
	if kind == "string" {
		return errors.Unwrap(invalid) // It says which words the flag takes.
	}
	want := cmp.Or(map[string]string{
		"int":         "not a whole number",
		"uint16":      "not a number of 0 to 65535",
		"float32":     "not a number",
		"bool":        "neither true nor false",
		"duration":    "not a duration, such as 30s, 5m or 1h30m",
		"stringSlice": "not a list separated by commas: a quotation mark has no partner",
	}[kind], "not a "+kind)
	if errors.Is(err, strconv.ErrRange) {
		want = "too large a number"
	}
	return fmt.Errorf("--%s: %q is %s", invalid.GetFlag().Name, invalid.GetValue(), want)
}
