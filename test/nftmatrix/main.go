// Command nftmatrix has the nft commands of Debian's releases list the tables of nftproxy, and take
// their own listings back, and says what each of them can do. `make test-nft` runs it.
//
// It needs root, for network namespaces. It installs nothing: the commands are unpacked into a
// folder of the user's cache.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/nftcmd"
	"nftproxy/test/section"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "nftmatrix:", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	page     string
	clusters int
	services int
}

func parse(args []string) (options, error) {
	var o options
	f := pflag.NewFlagSet("nftmatrix", pflag.ContinueOnError)
	f.StringVar(&o.page, "page", "", "`file` whose table to replace, such as docs/kernels.md")
	f.IntVar(&o.clusters, "clusters", 24, "`number` of random clusters to list, of a dozen Services each")
	f.IntVar(&o.services, "services", 2000, "`number` of Services of the full table, with ten endpoints each")
	return o, f.Parse(args)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	tables := append(randomTables(o.clusters), fullTable(o.services))
	fmt.Fprintf(out, "%d tables, with %d kinds of rules\n", len(tables), len(ruleKinds(tables)))
	var columns []column
	for _, r := range releases() {
		path, err := aptget.FromSuite(r.suite, "nft", "nftables")
		if err != nil {
			return err
		}
		started := time.Now()
		c, err := try(ctx, r, nftcmd.At(path), tables)
		if err != nil {
			return fmt.Errorf("nft of %s: %w", r.suite, err)
		}
		fmt.Fprintf(out, "nft %s (%s): %s in all, %s for a listing of %s\n", c.version, r.suite,
			time.Since(started).Round(time.Second), c.full.Round(time.Millisecond), tables[len(tables)-1].name)
		columns = append(columns, c)
	}
	return o.report(columns, out)
}

// report prints the table and puts it on its page. An outcome that is not the known one is an error.
func (o options) report(columns []column, out io.Writer) error {
	text := matrix(columns)
	fmt.Fprintf(out, "\n%s", text)
	if o.page != "" {
		s := section.Section{Name: "table of make test-nft", Heading: "What each nft can do"}
		if err := s.Replace(o.page, text); err != nil {
			return err
		}
	}
	var wrong []error
	for _, c := range columns {
		wrong = append(wrong, c.unexpected()...)
	}
	return errors.Join(wrong...)
}
