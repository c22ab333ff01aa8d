package main

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/conntrack"
	"nftproxy/daemon/proxy"
	"nftproxy/watch"
)

// TestLogBound: each message takes at most a hundred lines at once and ten a minute later,
// and its lines count the ones that were left out. Other messages do not wait.
func TestLogBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(newBoundedHandler(slog.NewTextHandler(&out, nil), logBurst, logPeriod))
		const storm = 10 * time.Minute
		written := 0
		for start := time.Now(); time.Since(start) < storm; time.Sleep(10 * time.Millisecond) {
			log.With("from", "here").Info("storm", "n", written)
			written++
		}
		log.Info("something else")
		time.Sleep(time.Hour)
		synctest.Wait() // for the race detector, which does not know the order of time in a bubble
		lines, leftOut := 0, 0
		for line := range strings.Lines(out.String()) {
			if !strings.Contains(line, "msg=storm") {
				continue
			}
			lines++
			if !strings.Contains(line, "from=here") {
				t.Errorf("without its attributes: %s", line)
			}
			if _, n, ok := strings.Cut(line, "left_out="); ok {
				var more int
				if _, err := fmt.Sscan(n, &more); err != nil {
					t.Fatal(err)
				}
				leftOut += more
			}
		}
		if most := logBurst + int(storm/logPeriod) + 1; lines > most || lines < logBurst {
			t.Errorf("%d lines, want %d to %d", lines, logBurst, most)
		}
		if lines+leftOut != written {
			t.Errorf("%d lines and %d left out, want %d together", lines, leftOut, written)
		}
		for _, want := range []string{"msg=\"something else\"", fmt.Sprintf("n=%d", written-1)} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the log lacks %s", want)
			}
		}
	})
}

// TestLogKinds: messages that are all different fill neither the memory nor the log.
func TestLogKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out listener // locks its log
		handler := newBoundedHandler(slog.NewTextHandler(&out, nil), logBurst, logPeriod)
		for i := range 10000 {
			slog.New(handler).Info(fmt.Sprint("message ", i))
		}
		if n := len(handler.bounds.kinds); n > maxLogKinds+1 {
			t.Errorf("%d kinds", n)
		}
		if n := out.count("\n"); n > maxLogKinds+logBurst {
			t.Errorf("%d lines", n)
		}
		time.Sleep(time.Minute)
	})
}

// TestChurnIsQuiet: ten busy minutes have a hundred changes a second, each with a sync and
// a pass that removes flows. The log at the default level has some hundred lines for each
// message at once, and ten a minute later.
func TestChurnIsQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log, _ := newLogger(&out, 0)
		d := &daemon{node: "node-1", log: log, record: func(watch.Event) {}}
		sync := d.syncLogger(nil)
		for i := range 100 * 60 * 10 {
			sync(proxy.Sync{Written: 2})
			d.logPass(conntrack.Run{Removed: map[conntrack.Reason]int{"endpoint gone": 1}})
			if i%2 == 0 { // A kernel that refuses each other program for a reason of its own.
				sync(proxy.Sync{Err: fmt.Errorf("element %d: %w", i, errors.ErrUnsupported)})
			}
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		const kinds = 4 // removed, not in force, in force again, and the first sync
		if got, most := strings.Count(out.String(), "\n"), kinds*(logBurst+100+2); got > most {
			t.Errorf("%d lines in ten minutes, want %d at most", got, most)
		}
	})
}
