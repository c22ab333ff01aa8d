package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/internal/service"
	"nftproxy/watch"
)

// listener is a daemon that does nothing but tell, and what it told.
type listener struct {
	*daemon
	mu     sync.Mutex
	log    bytes.Buffer
	events []watch.Event
}

func newListener() *listener {
	l := &listener{}
	l.daemon = &daemon{node: "node-1", log: slog.New(slog.NewJSONHandler(l, nil)), record: func(e watch.Event) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.events = append(l.events, e)
	}}
	return l
}

func (l *listener) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.log.Write(b)
}

// lines returns the log by level and message.
func (l *listener) lines(t *testing.T) []string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for d := json.NewDecoder(bytes.NewReader(l.log.Bytes())); d.More(); {
		var line struct{ Level, Msg string }
		if err := d.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line.Level+" "+line.Msg)
	}
	return lines
}

// TestOccupancyLogger: a full table is told of once while it is full.
func TestOccupancyLogger(t *testing.T) {
	l := newListener()
	observe := l.occupancyLogger()
	full := conntrack.Occupancy{Entries: 1000, Limit: 1000, Full: true}
	for _, o := range []conntrack.Occupancy{
		{Entries: 900, Limit: 1000}, full, full, {Full: true, Err: errors.New("no answer")}, full,
		{Entries: 10, Limit: 1000}, {Entries: 11, Limit: 1000}, {Err: errors.New("no answer")}, full,
	} {
		observe(o)
	}
	want := []string{
		"WARN the conntrack table is full: new connections are dropped",
		"INFO the conntrack table has room again",
		"WARN the conntrack table is full: new connections are dropped",
	}
	if diff := cmp.Diff(want, l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	for _, words := range []string{`"entries":1000`, `"limit":1000`, "--conntrack-min", "net.netfilter.nf_conntrack_max"} {
		if !bytes.Contains(l.log.Bytes(), []byte(words)) {
			t.Errorf("the log lacks %s:\n%s", words, l.log.String())
		}
	}
	if len(l.events) != 2 || l.events[0].Object != watch.NodeObject("node-1") || l.events[0].Reason != watch.ReasonConntrackFull {
		t.Errorf("events: %+v", l.events)
	}
}

// TestReportSysctls: each setting is in the log, and the Node gets one event
// for each reason.
func TestReportSysctls(t *testing.T) {
	l := newListener()
	failed := func(name, current, wanted string, err error) conntrack.Setting {
		return conntrack.Setting{Name: name, Current: current, Wanted: wanted, Err: fmt.Errorf("set %s to %s: %w", name, wanted, err)}
	}
	l.reportSysctls([]conntrack.Setting{
		{Name: "fine", Current: "1", Wanted: "1"},
		{Name: "changed", Current: "2", Wanted: "2", Set: true},
		{Name: "left alone, and missing", Err: fs.ErrNotExist},
		failed("a", "1", "2", unix.EROFS), failed("b", "3", "4", unix.EROFS), failed("c", "", "6", conntrack.ErrHostOnly),
	})
	want := []string{
		"INFO kernel setting changed",
		"WARN a kernel setting is not as asked for; going on",
		"WARN a kernel setting is not as asked for; going on",
		"WARN a kernel setting is not as asked for; going on",
	}
	if diff := cmp.Diff(want, l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	notes := map[string]bool{}
	for _, e := range l.events {
		if e.Object != watch.NodeObject("node-1") || e.Reason != watch.ReasonSysctl {
			t.Errorf("event %+v", e)
		}
		notes[e.Note] = true
	}
	if diff := cmp.Diff(map[string]bool{
		"read-only file system: cannot set a=2 (is 1), b=4 (is 3)":      true,
		conntrack.ErrHostOnly.Error() + ": cannot set c=6 (is unknown)": true,
	}, notes); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// missingTable is what a kernel without ctnetlink answers, until it has it.
type missingTable struct {
	mu     sync.Mutex
	loaded bool
}

func (m *missingTable) Flows(context.Context, conntrack.Filter, func(conntrack.Flow) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loaded {
		return nil
	}
	return fmt.Errorf("dump conntrack table: %w (is the kernel module nf_conntrack_netlink missing?)", unix.EINVAL)
}

func (m *missingTable) Delete(context.Context, []conntrack.Flow) (int, error) { return 0, nil }

// TestConntrackMissing: the clean-up goes on trying and says so once.
func TestConntrackMissing(t *testing.T) {
	l, table, runs := newListener(), &missingTable{}, make(chan conntrack.Run, 100)
	cleaner := conntrack.NewCleaner(table, conntrack.NewIndex(conntrack.Options{}), func(r conntrack.Run) {
		l.logPass(r)
		runs <- r
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- cleaner.Run(ctx) }()
	cleaner.Notify(service.NewBuilder(service.Node{Name: "node-1"}).Snapshot(), true)
	for range 2 {
		if r := <-runs; !errors.Is(r.Err, unix.EINVAL) {
			t.Errorf("%+v", r)
		}
	}
	table.mu.Lock()
	table.loaded = true
	table.mu.Unlock()
	for r := range runs {
		if r.Err == nil {
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"WARN cleaning conntrack"}, l.lines(t)); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if !bytes.Contains(l.log.Bytes(), []byte("nf_conntrack_netlink missing")) {
		t.Errorf("the log does not say what is missing:\n%s", l.log.String())
	}
}
