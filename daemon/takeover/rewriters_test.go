package takeover

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft/kernel"
)

// repairsEach lets a loop repair its tables n times, a period apart.
func repairsEach(t *testing.T, r *Rewriters, n int, period time.Duration) {
	t.Helper()
	for range n {
		r.Observe(t.Context(), proxy.Sync{Start: time.Now(), Check: true, Written: 1})
		time.Sleep(period)
		synctest.Wait()
	}
}

// TestRewriters: a program that goes on to change our tables is named, once in ten minutes,
// and in a note as long as it goes on. An old proxy in its last seconds is not.
func TestRewriters(t *testing.T) {
	for what, c := range map[string]struct {
		others []string
		writer kernel.Writer
		want   string
	}{
		"another nftproxy": {others: []string{"PID 7 (nftproxy run)"}, want: "another nftproxy: PID 7 (nftproxy run)"},
		"another program":  {writer: kernel.Writer{PID: 8, Name: "nft"}, want: "nft (PID 8)"},
		"nobody":           {want: "a program that could not be found"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var reports []string
				r := &Rewriters{
					table: "nftproxy", others: func(string) ([]string, error) { return c.others, nil },
					next: func(ctx context.Context) (kernel.Writer, error) {
						if c.writer.PID != 0 {
							return c.writer, nil
						}
						<-ctx.Done()
						return kernel.Writer{}, errors.New("none")
					},
					report: func(who string) { reports = append(reports, who) },
				}
				repairsEach(t, r, 20, 250*time.Millisecond)
				if len(reports) > 0 || r.Note() != "" {
					t.Fatalf("after 5 s: %q, note %q", reports, r.Note())
				}
				time.Sleep(10 * time.Minute)
				repairsEach(t, r, 40, 20*time.Second)
				if len(reports) < 1 || len(reports) > 2 || reports[0] != c.want {
					t.Errorf("in 13 minutes: %q, want %q at most twice", reports, c.want)
				}
				if note := r.Note(); !strings.Contains(note, "is changed again and again by "+c.want) {
					t.Errorf("note %q", note)
				}
				time.Sleep(5 * time.Minute)
				if note := r.Note(); note != "" {
					t.Errorf("after a rest: note %q", note)
				}
				before := len(reports)
				repairsEach(t, r, 10, time.Minute) // such as a job of cron
				if len(reports) != before+1 {
					t.Errorf("one a minute after a rest: %d reports, want one", len(reports)-before)
				}
			})
		})
	}
}
