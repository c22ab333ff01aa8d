package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft/kernel"
	"nftproxy/watch"
)

const (
	// rewritesFrom is the number of repairs from which on another program counts as one
	// that rewrites our tables again and again. They follow each other within rewritesWithin
	// and go on for rewritesLong, which the old proxy's last seconds in a rolling update do not.
	rewritesFrom   = 3
	rewritesWithin = 3 * time.Minute
	rewritesLong   = 10 * time.Second
	// rewriterPatience is how long to wait for the next write of a program that cannot be
	// told otherwise, and rewriterAgain the least time between two reports.
	rewriterPatience = 30 * time.Second
	rewriterAgain    = 10 * time.Minute
)

// rewriters finds out who rewrites our tables again and again, on kernels where tables have
// no owner, and tells people: in the log, by an event of the Node, and in a note for /readyz.
type rewriters struct {
	table string
	// others describes the other processes that keep the table.
	others func(table string) ([]string, error)
	// next waits for the next process that writes to the ruleset.
	next   func(context.Context) (kernel.Writer, error)
	report func(who string)

	mu sync.Mutex
	// repairs is the number of repairs that follow each other, from first to last.
	repairs     int
	first, last time.Time
	// who was found last, at a time; looking says that somebody is being looked for.
	who     string
	found   time.Time
	looking bool
}

func (d *daemon) newRewriters(conn *kernel.Conn) *rewriters {
	return &rewriters{
		table: d.ruleset.Table,
		others: func(table string) ([]string, error) {
			keepers, err := tableKeepers()
			if err != nil {
				return nil, err
			}
			return keepers.texts(table, d.keeper), nil
		},
		next: func(ctx context.Context) (kernel.Writer, error) { return conn.NextWriter(ctx, kernel.Config{}) },
		report: func(who string) {
			d.log.Warn("another program changes our tables again and again; we repair them at a bounded rate", "table", d.ruleset.Table, "who", who)
			d.record(watch.Event{Object: watch.NodeObject(d.node), Reason: watch.ReasonTablesRewritten, Note: rewrittenText(d.ruleset.Table, who)})
		},
	}
}

func rewrittenText(table, who string) string {
	return fmt.Sprintf("table %s is changed again and again by %s; nftproxy repairs it two to four times a minute: let one program keep a table (stop one of them, or run it with another --%stable)", table, who, ownPrefix)
}

// observe counts repairs. It looks for the program in the background, until the context ends.
func (r *rewriters) observe(ctx context.Context, s proxy.Sync) {
	if !s.Check || s.Written == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := s.End()
	if now.Sub(r.last) > rewritesWithin {
		r.repairs, r.first, r.who = 0, now, ""
	}
	r.repairs++
	r.last = now
	reported := !r.found.IsZero() && now.Sub(r.found) < rewriterAgain && r.who != ""
	if r.repairs < rewritesFrom || now.Sub(r.first) < rewritesLong || r.looking || reported {
		return
	}
	r.looking = true
	go r.look(ctx)
}

func (r *rewriters) look(ctx context.Context) {
	who := r.find(ctx)
	r.mu.Lock()
	r.who, r.found, r.looking = who, time.Now(), false
	r.mu.Unlock()
	if ctx.Err() == nil {
		r.report(who)
	}
}

// find describes the program: another nftproxy that keeps the table, or else the next
// process that writes to nftables.
func (r *rewriters) find(ctx context.Context) string {
	others, err := r.others(r.table)
	if err == nil && len(others) > 0 {
		return "another nftproxy: " + strings.Join(others, "; ")
	}
	soon, cancel := context.WithTimeout(ctx, rewriterPatience)
	defer cancel()
	w, err := r.next(soon)
	if err != nil {
		return "a program that could not be found"
	}
	return fmt.Sprintf("%s (PID %d)", w.Name, w.PID)
}

// note says who rewrites the tables, as long as that goes on; empty for nobody.
func (r *rewriters) note() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.who == "" || time.Since(r.last) > rewritesWithin {
		return ""
	}
	return rewrittenText(r.table, r.who)
}

// joinNotes joins notes that are not empty, each on a line of its own.
func joinNotes(notes ...string) string {
	return strings.Join(slices.DeleteFunc(notes, func(n string) bool { return n == "" }), "\n")
}

// keepers are the sockets by which processes say which tables they keep: their inodes, by
// their names.
type keepers map[string]string

// of returns the inodes of a table's keepers, sorted, without the socket of that name.
func (k keepers) of(table, except string) []string {
	var inodes []string
	for name, inode := range k {
		if name != except && strings.HasPrefix(name, keeperOf(table)) {
			inodes = append(inodes, inode)
		}
	}
	slices.Sort(inodes)
	return inodes
}

// texts describes the processes that keep a table, without the one with the socket of that
// name.
func (k keepers) texts(table, except string) []string {
	var list []string
	for _, inode := range k.of(table, except) {
		list = append(list, holderText(inode))
	}
	return list
}

// describeKeepers describes all processes that keep a table.
func describeKeepers(table string) ([]string, error) {
	k, err := tableKeepers()
	if err != nil {
		return nil, err
	}
	return k.texts(table, ""), nil
}
