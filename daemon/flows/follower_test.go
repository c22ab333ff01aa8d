package flows

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/flows"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// entries answers for connection tracking; it fails so many times.
type entries struct{ failures, asked int }

func (e *entries) Find(context.Context, service.Protocol, conntrack.Tuple) (conntrack.Flow, bool, error) {
	if e.asked++; e.asked > 1 && e.failures > 0 {
		e.failures--
		return conntrack.Flow{}, false, errors.New("no memory")
	}
	return conntrack.Flow{}, false, nil
}

func begin(f *Follower, n int, name service.Name, seen time.Time) {
	for i := range n {
		f.locked(func() {
			f.tracker.Begin(flows.Start{Key: flows.Key{Protocol: service.TCP,
				Src: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(i+1)),
				Dst: netip.MustParseAddrPort("10.96.0.1:80")}, At: seen, Seen: seen, Rate: 1}, flows.Owner{Service: name})
		})
	}
}

// TestAskFails: an error about one entry leaves none of the batch behind. What observes may ask for the counts.
func TestAskFails(t *testing.T) {
	const n = 10
	table, finished := &entries{failures: 3}, 0
	var f *Follower
	f = New(Config{Table: table, Observe: func(c flows.Change) {
		f.Counts()
		if c.Finished {
			finished++
		}
	}})
	begin(f, n, "a/b", time.Now().Add(-time.Minute)) // so that all are past Patience
	failed := 0
	for f.Counts().Open > 0 {
		next := f.tracker.Next()
		if next.IsZero() {
			t.Fatalf("%d connections are never asked for", f.Counts().Open)
		}
		timer := time.NewTimer(time.Until(next))
		<-timer.C
		if f.ask(t.Context()) != nil {
			failed++
		}
	}
	if failed != 3 || finished != n || table.asked != n+failed {
		t.Errorf("%d failures, %d of %d finished, %d questions", failed, finished, n, table.asked)
	}
}

// TestEntry: how long ago a connection ended is by the kernel's settings, or by its defaults.
func TestEntry(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "nf_conntrack_tcp_timeout_time_wait"), []byte("30\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := New(Config{Files: conntrack.Files{Settings: dir}})
	f.readTimeouts()
	for state, want := range map[conntrack.TCPState]time.Duration{conntrack.TCPTimeWait: 30 * time.Second,
		conntrack.TCPClosed: 10 * time.Second} {
		if e := f.entry(&conntrack.Flow{TCPState: state, Timeout: 8 * time.Second}); e.Closing != want {
			t.Errorf("state %d: %+v, want %v", state, e, want)
		}
	}
}

// TestTellThinned: one report has all Services since the last one, and the worst of them.
func TestTellThinned(t *testing.T) {
	var told []string
	f := New(Config{Observe: func(flows.Change) {}, Thinned: func(services int, worst service.Name, of int) {
		told = append(told, fmt.Sprint(services, worst, of))
	}})
	now := time.Now()
	begin(f, Most+1, "a/b", now)
	f.mu.Lock()
	f.thinned["c/d"] = 8
	f.mu.Unlock()
	if !f.tellThinned() || f.tellThinned() || len(told) != 1 || told[0] != fmt.Sprint(2, service.Name("c/d"), 8) {
		t.Errorf("told %q", told)
	}
}

// TestNotifyDelaysNothing: a snapshot comes, and reaches the index, while somebody has the lock of the flows.
func TestNotifyDelaysNothing(t *testing.T) {
	f := New(Config{Observe: func(flows.Change) {}, Index: conntrack.NewIndex(conntrack.Options{})})
	b := snapshots.NewBuilder(service.Node{Name: "node-1"})
	f.mu.Lock()
	defer f.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Notify(b.Snapshot())
		f.update(*<-f.snapshots)
	}()
	const hung = 10 * time.Second
	select {
	case <-done:
	case <-time.After(hung):
		t.Error("it waits for the lock of the flows")
	}
}
