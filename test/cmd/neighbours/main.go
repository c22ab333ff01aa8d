package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "neighbours:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := pflag.NewFlagSet("neighbours", pflag.ContinueOnError)
	only := flags.String("only", "", "run the neighbours whose name is this, or begins with it and a hyphen")
	binary := flags.String("nftproxy", "bin/nftproxy", "the binary")
	docs := flags.String("docs", "docs", "folder of neighbours.md and of the folder neighbours with the results")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen := slices.DeleteFunc(neighbours(), func(n neighbour) bool {
		return *only != "" && n.name != *only && !strings.HasPrefix(n.name, *only+"-")
	})
	if len(chosen) == 0 {
		return fmt.Errorf("no neighbour is called %q", *only)
	}
	path, err := filepath.Abs(*binary)
	if err != nil {
		return err
	}
	tree, err := makeTree(ctx, packages())
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range chosen {
		fmt.Printf("%s: %s\n", n.name, n.what)
		r, err := try(ctx, n, tree, path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Print(r.text())
		if v := r.verdict(); !v.good {
			errs = append(errs, fmt.Errorf("%s: %s", n.name, v.text))
		}
		errs = append(errs, r.keep(*docs))
	}
	return errors.Join(append(errs, writePage(*docs))...)
}
