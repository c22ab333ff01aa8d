package otherproxy

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestPause: the pauses between two tries grow to a bound, are not all alike, and end with the
// context.
func TestPause(t *testing.T) {
	var total time.Duration
	for try := 1; try < removeTries; try++ {
		distinct := map[time.Duration]bool{}
		var longest time.Duration
		for range 100 {
			p := pauseAfter(try)
			distinct[p], longest = true, max(longest, p)
			if p < shortestPause/2 || p > longestPause || p < min(longestPause, shortestPause<<(try-1))/2 {
				t.Fatalf("try %d: %v", try, p)
			}
		}
		if len(distinct) < 10 {
			t.Errorf("try %d: only %d distinct pauses", try, len(distinct))
		}
		total += longest
	}
	if total > 4*time.Second {
		t.Errorf("%v in all", total)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := pause(ctx, removeTries); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}
