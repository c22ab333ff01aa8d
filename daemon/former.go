package daemon

import (
	"slices"
	"sync"

	"nftproxy/look/inspect"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/watch"
)

// formerServices are those that the rules of an earlier run serve.
type formerServices struct {
	conn  *kernel.Conn
	table string
	// names returns the names, read once.
	names func() ([]service.Name, error)
}

// former returns those of the rules in force, nil if there are none. It begins to
// read their names, beside the wait for the first lists.
func former(c Config, conn *kernel.Conn, inForce bool) watch.Former {
	if !inForce {
		return nil
	}
	f := &formerServices{conn: conn, table: c.Rules.Table}
	f.names = sync.OnceValues(f.readNames)
	if c.RetainMissing > 0 {
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
	tables, err := inspect.ReadTables(f.conn, f.table)
	if err != nil || tables == nil {
		return nil, err
	}
	var list []*service.Service
	for _, s := range ruleset.ReadBack(tables, f.table, node).Services.All() {
		list = append(list, s)
	}
	return list, nil
}
