package main

import (
	"fmt"
)

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
