package process

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
		var out lockedText
		handler := newBoundedHandler(slog.NewTextHandler(&out, nil), logBurst, logPeriod)
		for i := range 10000 {
			slog.New(handler).Info(fmt.Sprint("message ", i))
		}
		if n := len(handler.bounds.kinds); n > maxLogKinds+1 {
			t.Errorf("%d kinds", n)
		}
		if n := out.lines(); n > maxLogKinds+logBurst {
			t.Errorf("%d lines", n)
		}
		time.Sleep(time.Minute)
	})
}

// lockedText is a log that several goroutines write to.
type lockedText struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedText) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(line)
}

// lines is the number of lines.
func (l *lockedText) lines() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "\n")
}
