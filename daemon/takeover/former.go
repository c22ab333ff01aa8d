package takeover

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"syscall"

	"nftproxy/daemon/proxy"
	"nftproxy/nft"
	"nftproxy/nft/ejecttable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/livetrace"
)

// FormerTables removes the tables that an earlier run with another --nftproxy-table left.
// Otherwise they would serve the Services of that time for ever. It handles each
// family once, when our own table is in force there, so that there is no gap.
type FormerTables struct {
	conn  *kernel.Conn
	table string
	log   *slog.Logger
	done  map[nft.Family]bool
	// failure is the error that was logged last.
	failure string
}

// NewFormerTables makes an observer for a run with that table.
func NewFormerTables(conn *kernel.Conn, table string, log *slog.Logger) *FormerTables {
	return &FormerTables{conn: conn, table: table, log: log, done: map[nft.Family]bool{}}
}

// Observe removes a family's tables after the first sync that is in force there, and
// repeats that after each further sync until it succeeds.
func (o *FormerTables) Observe(s proxy.Sync) {
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

func (o *FormerTables) remove(f nft.Family) error {
	found, err := AbandonedTables(o.conn, o.table)
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
		if _, err := ejecttable.Remove(t.ID.Name); err != nil {
			return err
		}
		o.log.Info("removed the table of an earlier run with another --nftproxy-table", "table", t.ID.String())
	}
	return nil
}

// RemoveTraces removes the tables that killed traces left on kernels without owners of tables.
// They do nothing, so a failure does not matter to the proxy.
func RemoveTraces(log *slog.Logger) {
	removed, err := livetrace.RemoveLeftOvers()
	for _, id := range removed {
		log.Info("removed the table of a trace that was killed", "table", id.String())
	}
	if err != nil {
		log.Warn("could not remove the tables of traces that were killed", "err", err)
	}
}

// AbandonedTables lists the tables with other names that nftproxy has made and that
// no running nftproxy uses. A used table has an owner, or on kernels without owners
// a process that keeps it (see Keep).
func AbandonedTables(conn *kernel.Conn, except string) ([]kernel.TableInfo, error) {
	tables, err := conn.OurTables()
	if err != nil {
		return nil, err
	}
	used, err := UsedTables()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(tables, func(t kernel.TableInfo) bool {
		return t.ID.Name == except || used(t)
	}), nil
}

// UsedTables returns a function that says whether a running nftproxy uses a table.
func UsedTables() (used func(kernel.TableInfo) bool, err error) {
	keepers, err := TableKeepers()
	if err != nil {
		return nil, err
	}
	return func(t kernel.TableInfo) bool { return t.Owner != 0 || len(keepers.of(t.ID.Name, "")) > 0 }, nil
}
