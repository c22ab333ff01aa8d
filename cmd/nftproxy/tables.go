package main

import (
	"fmt"

	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
)

// readTables reads nftproxy's tables of that name from the kernel, without the clients
// that rules remember. It returns nil if there are none.
func readTables(conn *kernel.Conn, name string) (*nft.Model, error) {
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

// noTables is the error of a command that needs the tables.
func noTables(name string) error {
	return fmt.Errorf("this network namespace has no table %s: nftproxy has not run here since the node started, or its tables have another name (--%stable)", name, ownPrefix)
}

// checkTableName checks the flag --nftproxy-table.
func checkTableName(name string) error {
	if !isTableName(name) {
		return fmt.Errorf("--%stable: %q is not a valid table name: want 1 to %d letters, digits, '_' and '-', and a letter first", ownPrefix, name, maxTableName)
	}
	return nil
}
