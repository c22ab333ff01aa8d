package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/look/othertables"
	"nftproxy/nft"
	"nftproxy/nft/ejecttable"
	"nftproxy/nft/flowtable"
	"nftproxy/nft/invalidtable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/livetrace"
)

// otherTablesPeriod is the least time between two looks for tables of other nftproxies. A look that takes long, since
// another table has many Services, is followed by a rest of otherTablesRest times as long.
const (
	otherTablesPeriod = 10 * time.Second
	otherTablesRest   = 100
)

// OtherTables follows the tables that nftproxies with another --nftproxy-table keep or have left. It tells people of
// those that have an address and port of ours, or that nobody keeps. It removes those that nobody keeps: once our own
// table in the family is in force and serves all that they serve, or after the time in which a process that has ended
// would be back.
type OtherTables struct {
	table  string
	log    *slog.Logger
	record func(note string)
	// find and remove ask the kernel.
	find   func() ([]othertables.Tables, error)
	remove func(kernel.TableInfo) error
	now    func() time.Time

	mu      sync.Mutex
	inForce map[nft.Family]bool
	// problems are those of the last look, by the name of the table, and told is what of each was logged. abandoned says
	// since when nobody keeps one.
	problems  map[string]string
	told      map[string]string
	abandoned map[string]time.Time
	// failure is the error that was logged last.
	failure string
}

// NewOtherTables makes a follower for a run with that table. record gets what is wrong.
func NewOtherTables(table string, log *slog.Logger, record func(note string)) *OtherTables {
	return &OtherTables{
		table: table, log: log, record: record, remove: removeTable, now: time.Now,
		find: func() (found []othertables.Tables, err error) {
			err = withKernel(func(conn *kernel.Conn) error { found, err = othertables.Find(conn, table); return err })
			return found, err
		},
		inForce: map[nft.Family]bool{}, problems: map[string]string{}, told: map[string]string{},
		abandoned: map[string]time.Time{},
	}
}

// Observe looks when a family's table comes into force: tables of an earlier run go before the process does anything
// else.
func (o *OtherTables) Observe(s proxy.Sync) {
	o.mu.Lock()
	defer o.mu.Unlock()
	begun := false
	for _, f := range nft.Families() {
		if !o.inForce[f] && s.InForce(f) {
			o.inForce[f], begun = true, true
		}
	}
	if begun {
		o.look()
	}
}

// Run looks again and again until the context ends, and returns nil.
func (o *OtherTables) Run(ctx context.Context) error {
	rest := time.NewTimer(otherTablesPeriod)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rest.C:
		}
		began := time.Now()
		o.mu.Lock()
		o.look()
		o.mu.Unlock()
		rest.Reset(max(otherTablesPeriod, otherTablesRest*time.Since(began)))
	}
}

// Note says what is wrong with other tables; empty if nothing is.
func (o *OtherTables) Note() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Values(o.problems)), "\n")
}

func (o *OtherTables) look() {
	found, err := o.find()
	if err == nil {
		found, err = o.removeAbandoned(found)
	}
	o.failed(err)
	if found != nil || err == nil {
		o.report(found)
	}
}

// failed logs an error once while it lasts.
func (o *OtherTables) failed(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != o.failure {
		o.log.Warn("cannot look for tables of other nftproxies, or remove one; will try again", "err", err)
	}
	o.failure = text
}

// removeAbandoned removes what can go, and returns the others.
func (o *OtherTables) removeAbandoned(found []othertables.Tables) (left []othertables.Tables, err error) {
	since := map[string]time.Time{}
	for _, t := range found {
		if !t.Abandoned() {
			left = append(left, t)
			continue
		}
		if since[t.Name] = o.abandoned[t.Name]; since[t.Name].IsZero() {
			since[t.Name] = o.now()
		}
		if t.Alone > 0 && o.now().Sub(since[t.Name]) < kubeProxyRest {
			left = append(left, t)
			continue
		}
		there, tableErr := o.removeTables(&t)
		err = errors.Join(err, tableErr)
		if there {
			left = append(left, t)
		}
	}
	o.abandoned = since
	return left, err
}

// removeTables removes the tables of the families in which ours is in force. there says that some are left.
func (o *OtherTables) removeTables(t *othertables.Tables) (there bool, err error) {
	for _, info := range t.Infos {
		if !o.inForce[info.ID.Family] {
			there = true
			continue
		}
		if err := o.remove(info); err != nil {
			return true, err
		}
		o.log.Info("removed the table of another nftproxy that has ended", "table", info.ID.String())
	}
	return there, nil
}

// report tells people of problems that are new, and of their end.
func (o *OtherTables) report(found []othertables.Tables) {
	problems := map[string]string{}
	for _, t := range found {
		text := t.Problem(o.table)
		if text == "" {
			continue
		}
		problems[t.Name] = text
		// Their numbers change with each Service.
		if kind := fmt.Sprint(t.Kept(), len(t.Shared) > 0); kind != o.told[t.Name] {
			o.told[t.Name] = kind
			o.log.Warn("a table of another nftproxy may take packets from ours", "problem", text, "hint", t.Remedy())
			o.record(text + ": " + t.Remedy())
		}
	}
	for name := range o.problems {
		if problems[name] == "" {
			delete(o.told, name)
			o.log.Info("a table of another nftproxy takes no packets from ours any more", "table", name)
		}
	}
	o.problems = problems
}

// removeTable removes a table and those beside it. A table that another process owns by now stays, without an error.
func removeTable(t kernel.TableInfo) error {
	err := withKernel(func(conn *kernel.Conn) error { return conn.Delete([]kernel.TableInfo{t}) })
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove table %s: %w", t.ID, err)
	}
	_, err = ejecttable.Remove(t.ID.Name)
	_, more := invalidtable.Remove(t.ID.Name, 0)
	_, last := flowtable.Remove(t.ID.Name, 0)
	return errors.Join(err, more, last)
}

func withKernel(do func(*kernel.Conn) error) error {
	conn, err := kernel.Open(kernel.Config{})
	if err != nil {
		return err
	}
	return errors.Join(do(conn), conn.Close())
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
