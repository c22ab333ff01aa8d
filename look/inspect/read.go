package inspect

import (
	"context"
	"errors"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// ReadTables reads nftproxy's tables of that name from the kernel, without the clients
// that rules remember. It returns nil if there are none.
func ReadTables(conn *kernel.Conn, name string) (*nft.Model, error) {
	want := ruleset.Compile(ruleset.Config{Table: name}, service.Snapshot{Node: &service.Node{}})
	tables, err := conn.Read(want)
	if err != nil {
		return nil, err
	}
	for _, f := range nft.Families() {
		if tables.Table(want.Table(f).ID()) != nil {
			return tables, nil
		}
	}
	return nil, nil
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
