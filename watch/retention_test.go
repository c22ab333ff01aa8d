package watch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"nftproxy/model/service"
)

func namesFrom(first, n int) []service.Name {
	var list []service.Name
	for i := range n {
		list = append(list, service.NewName("default", fmt.Sprintf("svc-%03d", first+i)))
	}
	return list
}

func retentionBegins() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }

// TestSuspiciousList: more than half, and at least ten.
func TestSuspiciousList(t *testing.T) {
	for _, c := range []struct {
		missing, serving int
		want             bool
	}{
		{0, 0, false}, {9, 9, false}, {10, 10, true}, {10, 19, true}, {10, 20, false}, {11, 20, true},
		{9, 5000, false}, {2500, 5000, false}, {2501, 5000, true}, {5000, 5000, true},
	} {
		if got := suspicious(c.missing, c.serving); got != c.want {
			t.Errorf("%d of %d: %t, want %t", c.missing, c.serving, got, c.want)
		}
	}
}

// TestRetentionPeriod: each Service has its period from the list that first lacked it.
func TestRetentionPeriod(t *testing.T) {
	r, start := newRetention(5*time.Minute), retentionBegins()
	if r.Judge(namesFrom(0, 9), 9, start) || len(r.until) != 0 {
		t.Error("nine are too few")
	}
	if !r.Judge(namesFrom(0, 20), 30, start) || len(r.until) != 20 {
		t.Fatal("20 of 30 were not retained")
	}
	r.Release(namesFrom(0, 1)[0])
	if r.Retains(namesFrom(0, 1)[0]) || !r.Retains(namesFrom(1, 1)[0]) {
		t.Error("the wrong one was released")
	}
	later := start.Add(time.Minute)
	if !r.Judge(namesFrom(1, 29), 29, later) { // 19 of them again
		t.Fatal("the second list was not suspicious")
	}
	if due := r.Next(); !due.Equal(start.Add(5 * time.Minute)) {
		t.Errorf("next at %v", due)
	}
	if due, away := r.Last(); away || !due.Equal(later.Add(5*time.Minute)) {
		t.Errorf("last at %v (away: %t)", due, away)
	}
	if due := r.Due(start.Add(5*time.Minute - 1)); due != nil {
		t.Errorf("too early: %v", due)
	}
	if due := r.Due(start.Add(5 * time.Minute)); !slices.Equal(due, namesFrom(1, 19)) {
		t.Errorf("due first: %v", due)
	}
	if due := r.Due(later.Add(5 * time.Minute)); !slices.Equal(due, namesFrom(20, 10)) {
		t.Errorf("due later: %v", due)
	}
	if !r.Next().IsZero() || len(r.until) != 0 {
		t.Error("something is left")
	}
}

// TestRetentionAway: while the source is away, and for a minute after, nothing goes.
func TestRetentionAway(t *testing.T) {
	for _, c := range []struct{ period, wait time.Duration }{{5 * time.Minute, time.Minute},
		{10 * time.Second, 10 * time.Second}} {
		r, start := newRetention(c.period), retentionBegins()
		r.Judge(namesFrom(0, 10), 10, start)
		r.Away(true, start.Add(time.Second))
		if !r.Next().IsZero() {
			t.Error("something is due while the source is away")
		}
		if due := r.Due(start.Add(time.Hour)); due != nil {
			t.Errorf("removed while the source is away: %v", due)
		}
		back := start.Add(2 * time.Hour)
		r.Away(false, back)
		r.Away(false, back.Add(c.wait/2)) // no news
		if due := r.Next(); !due.Equal(back.Add(c.wait)) {
			t.Errorf("next at %v", due)
		}
		if due := r.Due(back.Add(c.wait - 1)); due != nil {
			t.Errorf("removed at once: %v", due)
		}
		if due := r.Due(back.Add(c.wait)); len(due) != 10 {
			t.Errorf("%d removed at the end, want 10", len(due))
		}
	}
}

// TestRetentionOff: a period of 0 retains nothing.
func TestRetentionOff(t *testing.T) {
	if r := newRetention(0); r.Judge(namesFrom(0, 100), 100, retentionBegins()) || len(r.until) != 0 {
		t.Error("something was retained")
	}
}
