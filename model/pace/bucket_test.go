package pace_test

import (
	"testing"
	"time"

	"nftproxy/model/pace"
)

// TestBucket: a burst of tokens comes first, and then one in each period. A longer rest
// brings back no more than the burst.
func TestBucket(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b := pace.Bucket{Burst: 3, Period: time.Minute}
	taken := func(at time.Duration) (n int) {
		for b.Take(start.Add(at)) {
			n++
		}
		if next := b.Next(start.Add(at)); !next.After(start.Add(at)) || next.After(start.Add(at+time.Minute)) {
			t.Errorf("after %s the next is at %s", at, next)
		}
		return n
	}
	for _, c := range []struct {
		at   time.Duration
		want int
	}{{0, 3}, {59 * time.Second, 0}, {time.Minute, 1}, {90 * time.Second, 0}, {2 * time.Minute, 1}, {time.Hour, 3}, {time.Hour + 3*time.Minute, 3}} {
		if got := taken(c.at); got != c.want {
			t.Errorf("at %s: %d, want %d", c.at, got, c.want)
		}
	}
}
