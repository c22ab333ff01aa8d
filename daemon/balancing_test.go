package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"nftproxy/daemon/balance"
)

// TestBalanceObserver: the log says once that counts or turns are rare, once that they are often again, and each
// failure once.
// In between it says nothing.
func TestBalanceObserver(t *testing.T) {
	var out bytes.Buffer
	counted := 0
	observe := balanceObserver(slog.New(slog.NewTextHandler(&out, nil)), func(balance.Report) { counted++ })
	next := func(d time.Duration) balance.Report { return balance.Report{Next: d} }
	round := func(d time.Duration) balance.Report { return balance.Report{Next: time.Second, Round: d} }
	failed := balance.Report{Next: 30 * time.Second, Err: errors.New("no memory")}
	for i, c := range []struct {
		report balance.Report
		want   string
	}{
		{next(time.Second), ""}, {next(10 * time.Second), ""}, {next(11 * time.Second), "seldom"},
		{next(9 * time.Second), ""}, {next(11 * time.Second), ""}, {failed, "no memory"}, {failed, ""},
		{next(5 * time.Second), ""}, {next(4 * time.Second), "often again"}, {next(6 * time.Second), ""},
		{failed, "no memory"}, {next(time.Second), ""}, {next(time.Minute), "seldom"},
		{round(time.Minute), ""}, {round(5 * time.Second), ""}, {round(time.Second), "often again"},
		{round(10 * time.Second), ""}, {round(11 * time.Second), "seldom"}, {next(time.Second), "often again"},
	} {
		out.Reset()
		observe(c.report)
		if got := out.String(); (c.want == "") != (got == "") || !strings.Contains(got, c.want) || counted != i+1 {
			t.Errorf("report %d, %+v: the log has %q, want %q", i, c.report, got, c.want)
		}
	}
}
