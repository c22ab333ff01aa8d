// Command matrix tries nftproxy on what Debian's releases have, and says what works on which:
//
//	matrix kernels   the tests that need a kernel and no API server, on each kernel in a VM (make test-kernels)
//	matrix run       a command as root on one of these kernels, among this computer's files, such as a real cluster
//	matrix nft       each nft command lists our tables and takes its own listings back (make test-nft)
//
// The kernels need no rights and no hardware support for virtual machines; as root the command installs qemu where that
// is missing. The nft commands need root, for network namespaces. Apart from that it changes nothing on this computer
// but for a folder of the user's cache.
//
// The command is also the first process of its virtual machines (guest).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"
)

// The names of the command in a virtual machine, which the kernel calls it by.
const (
	initName = "init"
	modprobe = "modprobe"
)

func main() {
	if name := filepath.Base(os.Args[0]); name == initName || name == modprobe {
		if err := guest(); err != nil {
			fmt.Fprintln(os.Stderr, name+":", err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "matrix:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case "kernels":
			return tryKernels(ctx, args[1:], out)
		case "run":
			return tryCommand(ctx, args[1:], out)
		case "nft":
			return tryNFTs(ctx, args[1:], out)
		}
	}
	return errors.New("say what to try: matrix kernels, matrix run or matrix nft")
}
