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
	"time"

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
	only := flags.StringSlice("only", nil, "run the neighbours whose name is one of these, or begins with it and a hyphen")
	small := flags.Bool("small", false, "install Debian's packages for the chosen neighbours only, which must be "+
		"without programs in Go")
	s := trialSetup{}
	flags.StringVar(&s.binary, "nftproxy", "bin/nftproxy", "the binary")
	flags.DurationVar(&s.long, "patience", 5*time.Second,
		"`time` after which a connection without an answer counts as lost")
	flags.IntVar(&s.atOnce, "at-once", 200, "`number` of flows of a table that are asked at a time")
	flags.BoolVar(&s.quiet, "quiet", false, "make no load: the table of flows alone decides")
	flags.IntVar(&s.attempts, "attempts", 1, "how often a neighbour is tried until it works")
	flags.StringVar(&s.calico, "calico", "", "`folder` with a checkout of Calico's repository, of which Felix is built; "+
		"without it the neighbours that need it are left out")
	docs := flags.String("docs", "docs", "folder of neighbours.md and of the folder neighbours with the results")
	if err := flags.Parse(args); err != nil {
		return err
	}
	other := func(name string) bool {
		return len(*only) > 0 && !slices.ContainsFunc(*only, func(o string) bool {
			return name == o || strings.HasPrefix(name, o+"-")
		})
	}
	chosen := slices.DeleteFunc(neighbours(), func(n neighbour) bool {
		return other(n.name) || n.calico != "" && s.calico == ""
	})
	clusters := slices.DeleteFunc(clusterNeighbours(), func(n clusterNeighbour) bool { return other(n.name) })
	if len(chosen)+len(clusters) == 0 {
		return fmt.Errorf("no neighbour is called %q, or each needs --calico", *only)
	}
	var err error
	if s.binary, err = filepath.Abs(s.binary); err != nil {
		return err
	}
	errs := []error{tryAll(ctx, chosen, s, *small, *docs)}
	for _, n := range clusters {
		fmt.Printf("%s: %s\n", n.name, n.what)
		r, err := tryOnCluster(ctx, n)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", n.name, err))
			continue
		}
		if !r.Passed {
			errs = append(errs, fmt.Errorf("%s: not all tests passed", n.name))
		}
		errs = append(errs, keep(*docs, filepath.Join("cluster", n.name), r))
	}
	return errors.Join(append(errs, writePage(*docs))...)
}

// tryAll tries neighbours of one node, and keeps their results.
func tryAll(ctx context.Context, chosen []neighbour, s trialSetup, small bool, docs string) (err error) {
	if len(chosen) == 0 {
		return nil
	}
	need, build := packages(), programs()
	if small {
		need, build = scriptPackages(), nil
		for _, n := range chosen {
			need = append(need, n.packages...)
		}
		need = slices.Compact(slices.Sorted(slices.Values(need)))
	}
	if s.tree, err = makeTree(ctx, need, build); err != nil {
		return err
	}
	var errs []error
	for _, n := range chosen {
		fmt.Printf("%s: %s\n", n.name, n.what)
		r, err := tryUntilGood(ctx, n, s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Print(r.text())
		if v := r.verdict(); !v.good {
			errs = append(errs, fmt.Errorf("%s: %s", n.name, v.text))
		}
		errs = append(errs, keep(docs, n.name, r))
	}
	return errors.Join(errs...)
}

// tryUntilGood tries a neighbour, and again where something went wrong, as often as the attempts allow: a machine that
// is busy with other things loses packets that neither program has lost.
func tryUntilGood(ctx context.Context, n neighbour, s trialSetup) (r result, err error) {
	for left := s.attempts; left > 0; left-- {
		if r, err = try(ctx, n, s); err == nil && r.verdict().good || ctx.Err() != nil {
			break
		}
		switch {
		case left == 1:
		case err != nil:
			fmt.Printf("once more, after: %v\n", err)
		default:
			fmt.Print("once more, after:\n", r.text())
		}
	}
	return r, err
}
