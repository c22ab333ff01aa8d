package service_test

import (
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"nftproxy/model/service"
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
		return service.Update{Snapshot: service.NewBuilder(service.Node{Name: node}).Snapshot(), Since: start.Add(after)}
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
	triggers := func(from, n int) []service.Trigger {
		var list []service.Trigger
		for i := range n {
			list = append(list, service.Trigger{Time: time.Unix(int64(from+i), 0), V6: i%2 == 1})
		}
		return list
	}
	m.Put(service.Update{Triggers: triggers(0, 2)})
	m.Put(service.Update{Triggers: triggers(2, 2), Changes: service.Changes{Services: 5}})
	if u, _ := m.Take(); !slices.Equal(u.Triggers, triggers(0, 4)) || u.Changes.Services != 5 {
		t.Errorf("took %+v", u)
	}
	m.Put(service.Update{Triggers: triggers(0, 9000)})
	m.Put(service.Update{Triggers: triggers(9000, 2000)})
	m.Put(service.Update{Triggers: triggers(11_000, 1)})
	if u, _ := m.Take(); !slices.Equal(u.Triggers, triggers(0, service.MaxTriggers)) {
		t.Errorf("took %d triggers, the last %v", len(u.Triggers), u.Triggers[len(u.Triggers)-1])
	}
}

// TestMailboxLosesNothing: a reader that takes at each signal ends with what
// was put last.
func TestMailboxLosesNothing(t *testing.T) {
	m := service.NewMailbox()
	const last = 1000
	var writers sync.WaitGroup
	writers.Go(func() {
		for i := range last + 1 {
			m.Put(service.Update{Snapshot: service.NewBuilder(service.Node{Name: strconv.Itoa(i)}).Snapshot()})
		}
	})
	timeout := time.After(20 * time.Second)
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
