package livetrace

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// leftOverAge is how long after its trace's end a table counts as left over. A clock may be
// set back meanwhile.
const leftOverAge = time.Minute

// RemoveLeftOvers removes the tables that killed traces left in the network namespace of the
// calling thread, and returns them, also those that it removed before an error. Kernels with
// owners of tables (Linux 5.12) have none. On older ones a table counts as left over one minute
// after its trace's time: until then the trace may be under way.
func RemoveLeftOvers() (removed []nft.TableID, err error) {
	conn, err := nftables.New(nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	defer func() { err = errors.Join(err, conn.CloseLasting()) }()
	return removeLeftOvers(conn)
}

func removeLeftOvers(conn *nftables.Conn) (removed []nft.TableID, err error) {
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("look for tables of earlier traces: %w", err)
	}
	for _, table := range tables {
		end, ours := endOf(table.Name)
		if !ours || time.Since(end) <= leftOverAge || table.Owner != 0 {
			continue
		}
		id := nft.TableID{Family: nft.Family(table.Family), Name: table.Name}
		conn.DelTable(table)
		err := conn.Flush()
		if errors.Is(err, unix.ENOENT) {
			continue // another process was faster
		}
		if err != nil {
			return removed, fmt.Errorf("remove table %s of an earlier trace: %w", id, err)
		}
		removed = append(removed, id)
	}
	return removed, nil
}
