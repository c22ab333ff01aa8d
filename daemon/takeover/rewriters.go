package takeover

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft/kernel"
	"nftproxy/node/tablekeeper"
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

// Rewriters finds out who rewrites our tables again and again, on kernels where tables have
// no owner, and tells people: in the log, by an event of the Node, and in a note for /readyz.
type Rewriters struct {
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

// NewRewriters makes an observer for a table that the socket keeper keeps. report gets who rewrites it, and a text.
func NewRewriters(conn *kernel.Conn, table, keeper string, report func(who, text string)) *Rewriters {
	return &Rewriters{
		table:  table,
		others: func(table string) ([]string, error) { return tablekeeper.Describe(table, keeper) },
		next:   func(ctx context.Context) (kernel.Writer, error) { return conn.NextWriter(ctx, kernel.Config{}) },
		report: func(who string) { report(who, rewrittenText(table, who)) },
	}
}

func rewrittenText(table, who string) string {
	return fmt.Sprintf("table %s is changed again and again by %s; nftproxy repairs it two to four times a minute: let "+
		"one program keep a table (stop one of them, or run it with another --nftproxy-table)", table, who)
}

// Observe counts repairs. It looks for the program in the background, until the context ends.
func (r *Rewriters) Observe(ctx context.Context, s proxy.Sync) {
	if !s.Repaired() {
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

func (r *Rewriters) look(ctx context.Context) {
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
func (r *Rewriters) find(ctx context.Context) string {
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

// Note says who rewrites the tables, as long as that goes on; empty for nobody.
func (r *Rewriters) Note() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.who == "" || time.Since(r.last) > rewritesWithin {
		return ""
	}
	return rewrittenText(r.table, r.who)
}
