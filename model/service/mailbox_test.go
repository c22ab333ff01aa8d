package service_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

func lit(m *service.Mailbox) bool {
	select {
	case <-m.C():
		return true
	default:
		return false
	}
}

func TestMailbox(t *testing.T) {
	m := service.NewMailbox()
	if _, ok := m.Take(); ok || lit(m) {
		t.Fatal("a new mailbox is not empty")
	}
	start := time.Now()
	update := func(node string, after time.Duration) service.Update {
		return service.Update{Snapshot: snapshots.NewBuilder(service.Node{Name: node}).Snapshot(), Since: start.Add(after)}
	}
	m.Put(update("first", 1*time.Second))
	m.Put(update("second", 2*time.Second))
	if !lit(m) || lit(m) {
		t.Fatal("want one signal for any number of updates")
	}
	u, ok := m.Take()
	if !ok || u.Snapshot.Node.Name != "second" || !u.Since.Equal(start.Add(time.Second)) {
		t.Fatalf("took %v from %s, since %v", ok, u.Snapshot.Node.Name, u.Since.Sub(start))
	}
	if _, ok := m.Take(); ok {
		t.Fatal("took the same twice")
	}
	m.Put(update("third", 3*time.Second))
	if u, ok := m.Take(); !ok || !u.Since.Equal(start.Add(3*time.Second)) {
		t.Fatalf("what has been read still counts: since %v", u.Since.Sub(start))
	}
}

// TestMailboxTriggers: triggers add up until the reader takes them, and the oldest stay
// where there are too many.
func TestMailboxTriggers(t *testing.T) {
	m := service.NewMailbox()
	times := func(from, n int) []time.Time {
		var list []time.Time
		for i := range n {
			list = append(list, time.Unix(int64(from+i), 0))
		}
		return list
	}
	triggers := func(v4, v6 []time.Time) service.Triggers {
		return service.Triggers{PerFamily: ip.PerFamily[[]time.Time]{v4, v6}}
	}
	want := func(want service.Triggers) service.Update {
		t.Helper()
		u, _ := m.Take()
		for i, f := range ip.Families() {
			if got, want := u.Triggers.PerFamily[i], want.PerFamily[i]; !slices.Equal(got, want) {
				t.Errorf("%s: took %d triggers, want %d", f.Name(), len(got), len(want))
			}
		}
		return u
	}
	m.Put(service.Update{Triggers: triggers(times(0, 2), times(5, 1))})
	m.Put(service.Update{Triggers: triggers(times(2, 2), nil), Changes: service.Changes{Services: 5}})
	if u := want(triggers(times(0, 4), times(5, 1))); u.Changes.Services != 5 {
		t.Errorf("took %+v", u.Changes)
	}
	m.Put(service.Update{Triggers: triggers(times(0, 9000), nil)})
	m.Put(service.Update{Triggers: triggers(times(9000, 2000), nil)})
	m.Put(service.Update{Triggers: triggers(times(11_000, 1), times(0, 1))})
	want(triggers(times(0, service.MaxTriggers), times(0, 1))) // a full family takes nothing from the other
}

// TestMailboxLosesNothing: a reader that takes at each signal ends with what
// was put last.
func TestMailboxLosesNothing(t *testing.T) {
	m := service.NewMailbox()
	const last = 1000
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range last + 1 {
			m.Put(service.Update{Snapshot: snapshots.NewBuilder(service.Node{Name: strconv.Itoa(i)}).Snapshot()})
		}
	})
	timeout := time.After(time.Minute)
	for seen := -1; seen < last; {
		select {
		case <-m.C():
			if u, ok := m.Take(); ok {
				n, err := strconv.Atoi(u.Snapshot.Node.Name)
				if err != nil || n < seen {
					t.Fatalf("%s after %d", u.Snapshot.Node.Name, seen)
				}
				seen = n
			}
		case <-timeout:
			t.Fatalf("the last update was lost after %d", seen)
		}
	}
	writers.Wait()
}
