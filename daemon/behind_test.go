package daemon

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/watch"
)

// TestFollowBehind: an API server that refuses for hours is an error after five minutes and then once an hour; a short
// outage, and its end, are none.
func TestFollowBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newListener()
		start := time.Now()
		var refused atomic.Pointer[watch.Behind] // the race detector does not know the order of time in a bubble
		refused.Store(&watch.Behind{})
		go func() { _ = l.followBehind(t.Context(), func() watch.Behind { return *refused.Load() }) }()
		lines := func(at time.Duration, want int) {
			t.Helper()
			time.Sleep(time.Until(start.Add(at)))
			synctest.Wait()
			if got := strings.Count(l.logged(), `"level":"ERROR"`); got != want {
				t.Errorf("after %s the log has %d errors, want %d:\n%s", at, got, want, l.logged())
			}
		}
		half := 30 * time.Second
		lines(time.Hour+half, 0)
		refused.Store(&watch.Behind{Resources: []string{"services"}, Since: time.Now(), Err: errors.New("Unauthorized")})
		lines(time.Hour+4*time.Minute+half, 0)
		refused.Store(&watch.Behind{})
		lines(2*time.Hour+half, 0)
		refused.Store(&watch.Behind{Resources: []string{"endpointslices", "services"}, Since: time.Now(),
			Err: errors.New("Unauthorized")})
		lines(2*time.Hour+7*time.Minute, 1)
		lines(3*time.Hour, 1)
		lines(3*time.Hour+7*time.Minute, 2)
		lines(12*time.Hour, 10)
		refused.Store(&watch.Behind{})
		lines(24*time.Hour, 10)
		for _, want := range []string{"Unauthorized", "services", "endpointslices"} {
			if !strings.Contains(l.logged(), want) {
				t.Errorf("no line has %q", want)
			}
		}
	})
}
