package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// release is a Debian nftRelease with its nft.
type nftRelease struct {
	suite string
	// dies says that its nft dies of tables like ours. parsesAll says that it parses all rules that
	// it prints (see table.learns).
	dies, parsesAll bool
}

func nftReleases() []nftRelease {
	return []nftRelease{{suite: "bullseye", dies: true}, {suite: "bookworm"}, {suite: "trixie", parsesAll: true}}
}

// can says whether the nftRelease's nft is known to do what it is asked.
func (r nftRelease) can(question string, t table) bool {
	switch {
	case r.dies, question == jsonBack: // No nft so far parses the declarations of maps that it prints as JSON.
		return false
	case question == takesBack:
		return r.parsesAll || !t.learns
	}
	return true
}

// What nft is asked to do with each table.
const (
	lists     = "lists the tables"
	listsJSON = "lists the tables as JSON"
	takesBack = "takes its listing back and lists the same again"
	jsonBack  = "takes its JSON back and lists the same again"
)

func questions() []string { return []string{lists, listsJSON, takesBack, jsonBack} }

// outcome is an answer to one question about one table. The error says why it is no.
type nftOutcome struct {
	table table
	err   error
}

// nftColumn is one nft.
type nftColumn struct {
	nftRelease
	version  string
	outcomes map[string][]nftOutcome
	// full is how long nft took to list the last and largest table.
	full time.Duration
}

// tryNFT asks nft about each table.
func tryNFT(ctx context.Context, r nftRelease, cmd netfilter.NFT, tables []table) (nftColumn, error) {
	c := nftColumn{nftRelease: r, outcomes: map[string][]nftOutcome{}}
	for _, t := range tables {
		if err := ctx.Err(); err != nil {
			return c, err
		}
		if err := c.ask(cmd, t); err != nil {
			return c, fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return c, nil
}

// ask asks nft about one table. An error is one of the test.
func (c *nftColumn) ask(cmd netfilter.NFT, t table) (err error) {
	ns, err := testnet.New("matrix")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	if c.version == "" {
		version, err := cmd.Run(ns, "", "--version")
		if err != nil {
			return err
		}
		c.version = strings.TrimPrefix(strings.Fields(version)[1], "v")
	}
	if err := load(ns, cmd, t.program); err != nil {
		return err
	}
	note := func(question string, err error) (ok bool) {
		c.outcomes[question] = append(c.outcomes[question], nftOutcome{t, err})
		return err == nil
	}
	started := time.Now()
	text, err := cmd.Ruleset(ns)
	c.full = time.Since(started)
	if note(lists, err) {
		note(takesBack, same(cmd, text, text, "-f", "-"))
	}
	inJSON, err := cmd.Run(ns, "", "-j", "list", "ruleset")
	if err == nil && !json.Valid([]byte(inJSON)) {
		err = errors.New("no JSON")
	}
	if note(listsJSON, err) {
		note(jsonBack, same(cmd, text, inJSON, "-j", "-f", "-"))
	}
	return nil
}

// load puts a program into a namespace, in tables without an owner: a listing of tables with an owner
// makes tables that end with the nft that loads it.
func load(ns *testnet.Namespace, cmd netfilter.NFT, p *nft.Program) error {
	var empty strings.Builder
	for _, f := range nft.Families() {
		fmt.Fprintf(&empty, "add table %s\n", p.Table(f).ID())
	}
	if err := cmd.Load(ns, empty.String()); err != nil {
		return err
	}
	conn, err := kernel.Open(kernel.Config{NetNS: ns.Fd()})
	if err != nil {
		return err
	}
	batch, _ := nft.State{}.Plan(p, time.Time{})
	return errors.Join(conn.Apply(batch), conn.Close())
}

// same says whether a listing that nft takes makes tables that it lists alike.
func same(cmd netfilter.NFT, want, listing string, args ...string) (err error) {
	ns, err := testnet.New("matrix")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	if _, err := cmd.Run(ns, listing, args...); err != nil {
		return err
	}
	got, err := cmd.Ruleset(ns)
	if err != nil {
		return err
	}
	if diff := cmp.Diff(want, got); diff != "" {
		return fmt.Errorf("another listing (-want +got):\n%s", diff)
	}
	return nil
}

// unexpected are the outcomes that are not the known ones.
func (c nftColumn) unexpected() []error {
	var all []error
	for _, q := range questions() {
		for _, o := range c.outcomes[q] {
			switch can := c.can(q, o.table); {
			case can && o.err != nil:
				all = append(all, fmt.Errorf("nft %s no longer %s: %s: %w", c.version, q, o.table.name, o.err))
			case !can && o.err == nil:
				all = append(all, fmt.Errorf("nft %s %s by now: %s; say so in its release and on the page", c.version, q,
					o.table.name))
			}
		}
	}
	return all
}
