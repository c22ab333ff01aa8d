package main

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"

	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/livetrace"
)

// formerTables removes the tables that an earlier run with another --nftproxy-table left.
// Otherwise they would serve the Services of that time for ever. It handles each
// family once, when our own table is in force there, so that there is no gap.
type formerTables struct {
	conn  *kernel.Conn
	table string
	log   *slog.Logger
	done  map[nft.Family]bool
	// failure is the error that was logged last.
	failure string
}

func (d *daemon) newFormerTables(conn *kernel.Conn) *formerTables {
	return &formerTables{conn: conn, table: d.ruleset.Table, log: d.log, done: map[nft.Family]bool{}}
}

// observe removes a family's tables after the first sync that is in force there, and
// repeats that after each further sync until it succeeds.
func (o *formerTables) observe(s proxy.Sync) {
	for _, f := range nft.Families() {
		if o.done[f] || !s.InForce(f) {
			continue
		}
		err := o.remove(f)
		o.done[f] = err == nil
		if err != nil && err.Error() != o.failure {
			o.failure = err.Error()
			o.log.Warn("could not remove the table of an earlier run with another --nftproxy-table; will try again", "err", err)
		}
	}
}

func (o *formerTables) remove(f nft.Family) error {
	found, err := abandonedTables(o.conn, o.table)
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(t kernel.TableInfo) bool { return t.ID.Family != f })
	for _, t := range found {
		err := o.conn.Delete([]kernel.TableInfo{t})
		if errors.Is(err, syscall.EPERM) {
			continue // Another process owns it by now.
		}
		if err != nil {
			return fmt.Errorf("remove table %s: %w", t.ID, err)
		}
		o.log.Info("removed the table of an earlier run with another --nftproxy-table", "table", t.ID.String())
	}
	return nil
}

// removeTraces removes the tables that killed traces left on kernels without owners of tables.
// They do nothing, so a failure does not matter to the proxy.
func (d *daemon) removeTraces() {
	removed, err := livetrace.RemoveLeftOvers()
	for _, id := range removed {
		d.log.Info("removed the table of a trace that was killed", "table", id.String())
	}
	if err != nil {
		d.log.Warn("could not remove the tables of traces that were killed", "err", err)
	}
}

// abandonedTables lists the tables with other names that nftproxy has made and that
// no running nftproxy uses. A used table has an owner, or on kernels without owners
// a process that keeps it (see keepTable).
func abandonedTables(conn *kernel.Conn, except string) ([]kernel.TableInfo, error) {
	tables, err := conn.OurTables()
	if err != nil {
		return nil, err
	}
	used, err := usedTables()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(tables, func(t kernel.TableInfo) bool {
		return t.ID.Name == except || used(t)
	}), nil
}

// usedTables returns a function that says whether a running nftproxy uses a table.
func usedTables() (used func(kernel.TableInfo) bool, err error) {
	keepers, err := tableKeepers()
	if err != nil {
		return nil, err
	}
	return func(t kernel.TableInfo) bool { return t.Owner != 0 || len(keepers.of(t.ID.Name, "")) > 0 }, nil
}

// keeperPrefix begins the names of the abstract sockets by which processes say which
// tables they keep. A socket is visible in the network namespace, as the tables are.
// It disappears with its process, however that ends.
const keeperPrefix = "@nftproxy-table-"

// keepTable says that this process keeps its tables, until end is called or the
// process ends.
func (d *daemon) keepTable() (end func()) {
	name := d.ruleset.Table
	d.keeper = keeperOf(name) + rand.Text()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: d.keeper})
	if err != nil {
		d.log.Warn("cannot mark our tables as in use: a run with another --nftproxy-table may remove them", "table", name, "err", err)
		return func() {}
	}
	return func() { _ = socket.Close() } // It has no data to lose.
}

// keeperOf returns the beginning of the sockets' names for a table. It has a hash,
// since the table's name may be longer than a socket's name can be.
func keeperOf(table string) string {
	return fmt.Sprintf("%s%x-", keeperPrefix, sha256.Sum256([]byte(table)))
}

// tableKeepers returns the sockets of all processes that keep a table.
func tableKeepers() (keepers, error) {
	f, err := os.Open("/proc/thread-self/net/unix")
	if err != nil {
		return nil, fmt.Errorf("look for other processes: %w", err)
	}
	defer f.Close()
	inodes := keepers{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// The columns are: Num RefCount Protocol Flags Type St Inode Path.
		words := strings.Fields(lines.Text())
		if len(words) == 8 && strings.HasPrefix(words[7], keeperPrefix) {
			inodes[words[7]] = words[6]
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("look for other processes: %w", err)
	}
	return inodes, nil
}
