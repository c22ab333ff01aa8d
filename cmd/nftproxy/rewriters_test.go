package main

import (
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/daemon/proxy"
	"nftproxy/nft/kernel"
)

// repairsEach lets a loop repair its tables n times, a period apart.
func repairsEach(t *testing.T, r *rewriters, n int, period time.Duration) {
	t.Helper()
	for range n {
		r.observe(t.Context(), proxy.Sync{Start: time.Now(), Check: true, Written: 1})
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
				r := &rewriters{
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
				if len(reports) > 0 || r.note() != "" {
					t.Fatalf("after 5 s: %q, note %q", reports, r.note())
				}
				time.Sleep(10 * time.Minute)
				repairsEach(t, r, 40, 20*time.Second)
				if len(reports) < 1 || len(reports) > 2 || reports[0] != c.want {
					t.Errorf("in 13 minutes: %q, want %q at most twice", reports, c.want)
				}
				if note := r.note(); !strings.Contains(note, "is changed again and again by "+c.want) {
					t.Errorf("note %q", note)
				}
				time.Sleep(5 * time.Minute)
				if note := r.note(); note != "" {
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

// TestTwoProxies: two nftproxies with different options keep the same tables, on a kernel
// where tables have no owner. They name each other, write at a bounded rate, and check and
// proxies tell.
func TestTwoProxies(t *testing.T) {
	w := newFormerWorld(t)
	for _, family := range []string{"ip", "ip6"} { // as kernels before 6.9 make them
		w.load(strings.ReplaceAll(oursWithoutOwner, "%s", family+" nftproxy"))
	}
	began := time.Now()
	flags := []string{"--nftproxy-manifests", manifest(t, webManifest("", "10.244.0.1")), "--nftproxy-probe-bind-address="}
	one := start(t, w.ns, append(flags, "--cluster-cidr", "10.0.0.0/8")...)
	two := start(t, w.ns, append(flags, "--cluster-cidr", "10.128.0.0/9")...)
	for _, r := range []*running{one, two} {
		l := r.await("the other proxy", func(l logged) bool { return strings.Contains(l.Msg, "changes our tables again and again") })
		if !strings.Contains(r.log.String(), "another nftproxy: PID ") || !strings.Contains(r.log.String(), "nftproxy run --hostname-override node-1") {
			t.Errorf("the log line does not name the other: %+v\n%s", l, r.log.String())
		}
		repairs := strings.Count(r.log.String(), "repaired our tables")
		if most := 8 + 1 + int(time.Since(began)/(15*time.Second)); repairs > most {
			t.Errorf("%d repairs in %s, want %d at most", repairs, time.Since(began), most)
		}
	}
	if got := w.outputOf("proxies"); !strings.Contains(got, "runs 2 times with table nftproxy: PID ") {
		t.Errorf("proxies says:\n%s", got)
	}
	cmd := exec.Command("nftproxy", "check")
	var out strings.Builder
	cmd.Stdout = &out
	if err := w.ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // The status is that of the other findings, too.
	if !strings.Contains(out.String(), "2 processes keep table nftproxy: PID ") {
		t.Errorf("check says:\n%s", out.String())
	}
}
