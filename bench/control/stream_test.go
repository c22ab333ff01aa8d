package control

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/test/lib/child"
)

// TestCollect: the outcome counts replacements that arrived, that were replaced before
// they arrived, and that are missing.
func TestCollect(t *testing.T) {
	start := time.Now().Add(-time.Minute)
	after := func(milliseconds int) time.Time { return start.Add(time.Duration(milliseconds) * time.Millisecond) }
	seen := func(at ...int) <-chan time.Time {
		c := make(chan time.Time, 1)
		for _, m := range at {
			c <- after(m)
		}
		return c
	}
	one, two, three := spot{1, 0, 0}, spot{2, 0, 0}, spot{3, 0, 0}
	s := &subject{process: child.ReadyForTest(t, "echo ready; sleep 1000")}
	list := []*replacement{
		{at: one, sent: after(0), seen: seen(10)},
		{at: two, sent: after(1), seen: seen()}, // overtaken
		{at: two, sent: after(5), seen: seen(25)},
		{at: one, sent: after(7), seen: seen(12)},
		{at: three, sent: after(8)}, // refused by the API server
	}
	got := s.collect(t.Context(), list)
	if diff := cmp.Diff([]float64{5, 20, 24, 10}, got.lags); diff != "" {
		t.Errorf("lags, from the last on (-want +got):\n%s", diff)
	}
	if got.missing != 0 || !got.last.Equal(after(25)) {
		t.Errorf("missing %d, last %v after the start", got.missing, got.last.Sub(start))
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	list = []*replacement{
		{at: one, sent: after(0), seen: seen()},
		{at: two, sent: after(0), seen: seen(3)},
		{at: one, sent: after(0), seen: seen()},
	}
	got = s.collect(ended, list)
	if got.missing != 2 || len(got.lags) != 3 || got.lags[1] != 3 || got.lags[0] < 1000 {
		t.Errorf("missing %d, lags %v", got.missing, got.lags)
	}
}

// TestWriterOf: all writes of one slice have one writer, and the slices use all writers.
func TestWriterOf(t *testing.T) {
	used := map[int]bool{}
	for service := range 200 {
		first := writerOf(spot{service, 1, 0})
		for endpoint := range 3 {
			if w := writerOf(spot{service, 1, endpoint}); w != first {
				t.Errorf("service %d: writers %d and %d", service, first, w)
			}
		}
		used[first] = true
	}
	if len(used) != writers {
		t.Errorf("%d of %d writers are used", len(used), writers)
	}
}
