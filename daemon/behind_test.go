package daemon

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/watch"
)

// TestFollowBehind: an API server that refuses for hours is an error after five minutes and then once an hour; a short outage,
// and its end, are none.
func TestFollowBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		r := reporter{log: slog.New(slog.NewTextHandler(&out, nil))}
		start := time.Now()
		var refused watch.Behind // written while the other goroutine sleeps
		go r.followBehind(t.Context(), func() watch.Behind { return refused })
		lines := func(at time.Duration, want int) {
			t.Helper()
			time.Sleep(time.Until(start.Add(at)))
			synctest.Wait()
			if got := strings.Count(out.String(), "level=ERROR"); got != want {
				t.Errorf("after %s the log has %d errors, want %d:\n%s", at, got, want, out.String())
			}
		}
		half := 30 * time.Second
		lines(time.Hour+half, 0)
		refused = watch.Behind{Resources: []string{"services"}, Since: time.Now(), Err: errors.New("Unauthorized")}
		lines(time.Hour+4*time.Minute+half, 0)
		refused = watch.Behind{}
		lines(2*time.Hour+half, 0)
		refused = watch.Behind{Resources: []string{"endpointslices", "services"}, Since: time.Now(), Err: errors.New("Unauthorized")}
		lines(2*time.Hour+7*time.Minute, 1)
		lines(3*time.Hour, 1)
		lines(3*time.Hour+7*time.Minute, 2)
		lines(12*time.Hour, 10)
		refused = watch.Behind{}
		lines(24*time.Hour, 10)
		for _, want := range []string{"Unauthorized", "services", "endpointslices"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("no line has %q", want)
			}
		}
	})
}
