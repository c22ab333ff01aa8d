package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"nftproxy/test/lib/aptget"
	"nftproxy/test/lib/netfilter"
)

// nftOptions are the command's flags.
type nftOptions struct {
	page     string
	clusters int
	services int
}

func parseNFT(args []string) (nftOptions, error) {
	var o nftOptions
	f := pflag.NewFlagSet("matrix nft", pflag.ContinueOnError)
	f.StringVar(&o.page, "page", "", "`file` whose table to replace, such as docs/evidence/kernels.md")
	f.IntVar(&o.clusters, "clusters", 24, "`number` of random clusters to list, of a dozen Services each")
	f.IntVar(&o.services, "services", 2000, "`number` of Services of the full table, with ten endpoints each")
	return o, f.Parse(args)
}

// tryNFTs has the nft commands of Debian's releases list the tables of nftproxy, and take their own listings back. It
// installs nothing: the commands are unpacked into a folder of the user's cache.
func tryNFTs(ctx context.Context, args []string, out io.Writer) error {
	o, err := parseNFT(args)
	if err != nil {
		return err
	}
	tables := append(randomTables(o.clusters), fullTable(o.services))
	fmt.Fprintf(out, "%d tables, with %d kinds of rules\n", len(tables), len(ruleKinds(tables)))
	var columns []nftColumn
	for _, r := range nftReleases() {
		path, err := aptget.FromSuite(r.suite, "nft", "nftables")
		if err != nil {
			return err
		}
		started := time.Now()
		c, err := tryNFT(ctx, r, netfilter.NFTAt(path), tables)
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
func (o nftOptions) report(columns []nftColumn, out io.Writer) error {
	text := nftMatrix(columns)
	fmt.Fprintf(out, "\n%s", text)
	if o.page != "" {
		s := section{Name: "table of make test-nft", Heading: "What each nft can do"}
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
