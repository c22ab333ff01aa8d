package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"nftproxy/look/inspect"
	"nftproxy/look/othertables"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/invalidtable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/node/hostaddr"
	"nftproxy/node/tablekeeper"
	"nftproxy/watch"
)

// settlePeriod is the time between the two looks of Node. A running proxy needs less for a
// change: it notices within a second that another program has changed its tables.
const settlePeriod = 2 * time.Second

// Settle waits until changes that are on their way have come to the kernel.
func Settle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settlePeriod):
		return nil
	}
}

// Node compares the tables of this node with those that the source asks for, and the table that drops invalid packets
// with whether it is wanted: twice if need be, and calls settle (which
// is Settle, but in tests) in between. Differences of Services that are not selected do not count, but those of what
// Services share. At most limit differences are listed.
func Node(ctx context.Context, source inspect.Source, selected inspect.Selection, dropInvalid bool, limit int,
	notes io.Writer, settle func(context.Context) error) (Report, error) {
	addrs, err := hostaddr.List(ctx)
	if err != nil {
		return Report{}, err
	}
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return Report{}, fmt.Errorf("open nftables: %w", err)
	}
	defer conn.Close()
	found, err := source.Follow(ctx, addrs, incomplete(source.Kind() == "kubernetes"))
	if err != nil {
		return Report{}, err
	}
	services, differences, inFlight, err := compareTwice(ctx, source, selected, dropInvalid, found, conn, settle)
	if err = errors.Join(found.End(), err); err != nil {
		return Report{}, err
	}
	fmt.Fprintf(notes, "nftproxy: %s, from %s\n", inspect.Plural(services, "service"), source)
	r := differences.Report(limit)
	r.Source, r.Services, r.InFlight = source.Kind(), services, inFlight
	if inFlight > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("a first look found %s that a second one, %s later, did not: changes were on "+
			"their way to the kernel", inspect.Plural(inFlight, "difference"), settlePeriod))
	}
	if !r.Same {
		r.Notes = append(r.Notes, remarks(conn, source.Rules.Table, differences)...)
	}
	return r, nil
}

// wantAndHave compiles the snapshot and reads the tables. Whether the rules count and set labels was
// decided by trials when the proxy started. The tables tell the first; the second is tried again
// where they have a mark that the flags do not ask for. So are time-outs where the flags ask for some, and flows where
// the tables tell of none.
func wantAndHave(config ruleset.Config, conn *kernel.Conn,
	snapshot service.Snapshot) (*nft.Program, *nft.Model, error) {
	want := ruleset.Compile(config, snapshot)
	have, err := conn.Read(want)
	if err != nil {
		return want, have, err
	}
	if slotted := ruleset.WithSlots(snapshot, have, config.Table); slotted.Services != snapshot.Services {
		snapshot, want = slotted, ruleset.Compile(config, slotted)
	}
	found := ruleset.ReadBackConfig(have, config.Table)
	config.Uncounted = found.Uncounted
	config.Unlabelled = config.MasqueradeMark == 0 && found.MasqueradeMark != 0 && conn.TryLabels() != nil
	without := false
	if config.DNSTimeouts != (service.Timeouts{}) {
		if err := conn.TryTimeouts(); errors.Is(err, kernel.ErrUndecided) {
			return want, have, err
		} else if err != nil {
			without, config.DNSTimeouts = true, service.Timeouts{}
		}
	}
	config.Unlogged = config.Flows.Rate() > 0 && found.Flows.Rate() == 0 && conn.TryFlows() != nil
	if config.Uncounted || config.Unlabelled || config.Unlogged || without {
		want = ruleset.Compile(config, snapshot)
	}
	return want, have, nil
}

// compareTwice returns the differences that two looks find. After a first look without any,
// there is no second one.
func compareTwice(ctx context.Context, source inspect.Source, selected inspect.Selection, dropInvalid bool,
	found *inspect.Objects, conn *kernel.Conn, settle func(context.Context) error) (services int, result *Differences,
	inFlight int, err error) {
	var first *Differences
	config := source.Rules
	for {
		snapshot := found.Newest()
		want, have, err := wantAndHave(config, conn, snapshot)
		if err != nil {
			return 0, nil, 0, err
		}
		now := Compare(want, have)
		others, err := othertables.Find(conn, config.Table)
		if err != nil {
			return 0, nil, 0, err
		}
		now.addTables(config.Table, others)
		invalid, err := invalidtable.Look(config.Table, 0)
		if err != nil {
			return 0, nil, 0, err
		}
		now.addInvalid(config.Table, dropInvalid, invalid)
		if err := now.limit(selected, snapshot, source.String()); err != nil {
			return 0, nil, 0, err
		}
		switch {
		case first != nil:
			lasting := now.Lasting(first)
			return snapshot.Services.Len(), lasting, max(0, first.Len()-lasting.Len()), nil
		case now.Len() == 0:
			return snapshot.Services.Len(), now, 0, nil
		}
		first = now
		if err := settle(ctx); err != nil {
			return 0, nil, 0, err
		}
		addrs, err := hostaddr.List(ctx)
		if err != nil {
			return 0, nil, 0, err
		}
		found.SetHostAddresses(addrs)
		if err := found.ReadAdjustments(config.Table); err != nil {
			return 0, nil, 0, err
		}
	}
}

// incomplete returns the function that judges problems: those by which objects are missing
// that run may have. Without a Node, only those of an API server tell the node's addresses.
func incomplete(nodeKnown bool) func(watch.Problem) error {
	return func(p watch.Problem) error {
		await := (*watch.AwaitError)(nil)
		switch {
		case errors.As(p, &await) && await.Without != "":
			return await
		case errors.Is(p, watch.ErrNoNode) && nodeKnown:
			return fmt.Errorf("%w (is --hostname-override the same as for run?)", p)
		case errors.Is(p, watch.ErrNoPodCIDRs):
			return p
		}
		return inspect.Unlisted(p)
	}
}

// remarks say what may be behind the differences.
func remarks(conn *kernel.Conn, table string, found *Differences) []string {
	var list []string
	if slices.ContainsFunc(found.list, func(d difference) bool { return d.kind != Element }) {
		list = append(list, "rules, chains or sets of the node differ: has run other flags, or is it another version?")
	}
	tables, tablesErr := conn.Tables(table)
	keepers, err := tablekeeper.List()
	if err = cmp.Or(tablesErr, err); err != nil {
		return append(list, fmt.Sprintf("unknown whether nftproxy runs: %v", err))
	}
	if !slices.ContainsFunc(tables, func(t kernel.TableInfo) bool { return keepers.Used(t.ID.Name, t.Owner) }) {
		return append(list, "no running nftproxy keeps the tables: nothing repairs the differences")
	}
	return append(list, "nftproxy runs here: its log, or the event RefusedByKernel, names parts that the kernel has "+
		"refused; they are missing then")
}
