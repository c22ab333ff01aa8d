package main

import (
	"errors"
	"slices"
	"sync"
	"time"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// defaultRetain is the default of --nftproxy-retain-missing: long enough for a restored API
// server to be looked at, and short enough for Services that were really deleted.
const defaultRetain = 5 * time.Minute

// formerServices are those that the rules of an earlier run serve.
type formerServices struct {
	conn  *kernel.Conn
	table string
	// names returns the names, read once.
	names func() ([]service.Name, error)
}

// formerServices returns those of the rules in force, nil if there are none. It begins to
// read their names, beside the wait for the first lists.
func (d *daemon) formerServices(conn *kernel.Conn, inForce bool) watch.Former {
	if !inForce {
		return nil
	}
	f := &formerServices{conn: conn, table: d.ruleset.Table}
	f.names = sync.OnceValues(f.readNames)
	if d.options.retainMissing > 0 {
		go f.names()
	}
	return f
}

// Names is part of watch.Former.
func (f *formerServices) Names() ([]service.Name, error) { return f.names() }

func (f *formerServices) readNames() ([]service.Name, error) {
	want := ruleset.Compile(ruleset.Config{Table: f.table}, service.Snapshot{Node: &service.Node{}})
	var names []service.Name
	for _, family := range nft.Families() {
		set, err := f.conn.ReadSet(want.Table(family), ruleset.NamesSet)
		if err != nil {
			return nil, err
		}
		if set != nil {
			names = append(names, ruleset.NamesIn(set)...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Services is part of watch.Former.
func (f *formerServices) Services(node *service.Node) ([]*service.Service, error) {
	tables, err := readTables(f.conn, f.table)
	if err != nil || tables == nil {
		return nil, err
	}
	var list []*service.Service
	for _, s := range ruleset.ReadBack(tables, f.table, node).Services.All() {
		list = append(list, s)
	}
	return list, nil
}

// logRetention logs a problem about Services that lists lack, and writes its event. It
// returns false for other problems.
func (d *daemon) logRetention(p watch.Problem) bool {
	retained, removed, former := (*watch.RetainedError)(nil), (*watch.RemovedError)(nil), (*watch.FormerError)(nil)
	missing := (*watch.MissingError)(nil)
	switch {
	case errors.As(p, &retained):
		d.log.Warn("a list lacks most Services; they are served on for a while", "missing", retained.Missing, "serving", retained.Serving, "for", retained.Period, "err", p.Err)
	case errors.As(p, &missing):
		d.log.Warn("a list lacks all Services; they are not served on", "services", missing.Services, "err", p.Err)
	case errors.As(p, &removed):
		d.log.Warn("Services that lists have lacked are not served on", "services", removed.Services, "err", p.Err)
	case errors.As(p, &former):
		d.log.Warn("cannot tell which Services an earlier run served", "err", p.Err)
		return true
	default:
		return false
	}
	if e, ok := p.Event(); ok {
		d.record(e)
	}
	return true
}
