package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"nftproxy/test/lib/testnet"
)

const usage = `demo makes a node, pods and clients out of network namespaces, runs nftproxy on
the node with Services from manifests, and sends real connections through it. It
shows how connections spread, a refusal, a pod that reaches itself, a NodePort, a
scale-up, a rolling replacement of all pods under traffic, a canary by weights, a
drain, a hash of clients that survives a lost pod, and a busy pod that gets fewer
new connections. It checks everything it shows, and exits with 0 only if every
check passes. It removes everything it made.

demo needs no root: for an ordinary user it runs in a user namespace of its own.
It does not touch the machine's network.

Flags:
`

// interrupted is the exit code that shells give to a program that SIGINT ended.
const interrupted = 128 + int(syscall.SIGINT)

func main() { os.Exit(command()) }

// command returns the exit code: that of shells for an interruption, 1 for a failure, and
// 2 for an invalid command line.
func command() int {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.Usage = func() {
		fmt.Fprint(flags.Output(), usage)
		flags.PrintDefaults()
	}
	full := flags.Bool("full-table", false, "print all of both nftables tables")
	proxy := flags.String("nftproxy", "", "the nftproxy to run; by default the one in the folder of this program")
	switch err := flags.Parse(os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	case flags.NArg() > 0:
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	// Before anything else: an ordinary user's process runs itself once more in a user
	// namespace, where it may make network namespaces.
	code, done, err := testnet.Reexec()
	if err != nil {
		fmt.Fprintf(os.Stderr, "demo: get permission to make network namespaces: %v\n", err)
		return 1
	}
	if done {
		return code
	}
	if *proxy == "" {
		self, err := os.Executable()
		if err != nil {
			fmt.Fprintf(os.Stderr, "demo: find nftproxy: %v\n", err)
			return 1
		}
		*proxy = filepath.Join(filepath.Dir(self), "nftproxy")
	}
	// The demo removes everything it made also when its terminal or pipe closes.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP,
		syscall.SIGPIPE)
	defer stop()
	switch err := Run(ctx, Config{Out: os.Stdout, Executable: *proxy, FullTable: *full}); {
	case errors.Is(err, ErrInterrupted):
		return interrupted
	case err != nil: // The demo has printed it where it happened.
		return 1
	}
	return 0
}
