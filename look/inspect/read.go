package inspect

import (
	"context"
	"errors"
	"fmt"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// ReadTables reads nftproxy's tables of that name from the kernel, without the clients
// that rules remember. It returns nil if there are none, and an error if ReadBack does not understand
// their layout.
func ReadTables(conn *kernel.Conn, name string) (*nft.Model, error) {
	want := ruleset.Compile(ruleset.Config{Table: name}, service.Snapshot{Node: &service.Node{}})
	tables, err := conn.Read(want)
	if err != nil {
		return nil, err
	}
	var found *nft.Model
	for _, f := range nft.Families() {
		c := tables.Table(want.Table(f).ID())
		switch {
		case c == nil:
		case !ruleset.Readable(c):
			return nil, fmt.Errorf("table %s is of another version of nftproxy (layout %d, and this command knows layouts %d "+
				"and %d): use that version's command",
				c.Table, ruleset.LayoutOf(c), ruleset.Layout-1, ruleset.Layout)
		default:
			found = tables
		}
	}
	return found, nil
}

// CountConnections counts the connections to the Services of a snapshot.
func CountConnections(ctx context.Context, c ruleset.Config, s service.Snapshot) (*Connections, error) {
	index := conntrack.NewIndex(conntrack.Options{NodePortAddresses: c.NodePortAddresses, Pod: c.Pod})
	index.Update(s)
	connections := NewConnections(index)
	table, err := conntrack.Open(conntrack.Config{})
	if err != nil {
		return connections, err
	}
	return connections, errors.Join(table.Flows(ctx, conntrack.Filter{}, func(f conntrack.Flow) error {
		connections.Add(f)
		return nil
	}), table.Close())
}
