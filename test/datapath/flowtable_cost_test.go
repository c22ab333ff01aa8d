package datapath

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cost is what some traffic took.
type cost struct {
	time, cpu time.Duration
	forwarded int // packets that the forward hook saw
}

// measure runs the traffic and says what it took of all processors.
func (w *world) measure(traffic func()) cost {
	w.Helper()
	w.must(w.nft.Load(w.Node, seen))
	before, start := w.busy(), time.Now()
	traffic()
	c := cost{time: time.Since(start), cpu: w.busy() - before}
	c.forwarded = w.forwarded()
	w.delete("ip", "seen")
	return c
}

// busy is how long the processors have worked since their start.
func (w *world) busy() time.Duration {
	w.Helper()
	const tick = 10 * time.Millisecond // USER_HZ
	text, err := os.ReadFile("/proc/stat")
	w.must(err)
	fields := strings.Fields(strings.SplitN(string(text), "\n", 2)[0])
	total := time.Duration(0)
	for i, f := range fields[1:] {
		n, err := strconv.ParseInt(f, 10, 64)
		w.must(err)
		if idle := i == 3 || i == 4; !idle && i < 7 {
			total += time.Duration(n) * tick
		}
	}
	return total
}

// TestFastPath: connections through Services take the fast path, so that the hook sees few of their
// packets. The log says what that gives, as the median of rounds in which both ways take turns.
func TestFastPath(t *testing.T) {
	rounds, bytes, packets := 5, 512<<20, 24_000
	if testing.Short() {
		rounds, bytes, packets = 1, 4<<20, 2000
	}
	w := newWorld(t)
	w.needFlowtables()
	for _, traffic := range []struct {
		name string
		send func()
	}{
		{"TCP, bytes", func() { w.stream(bytes) }},
		{"UDP, small packets", func() { w.datagrams(packets) }},
	} {
		var rate, cpu []float64
		for range rounds {
			slow := w.measure(traffic.send)
			w.takeFastPath()
			fast := w.measure(traffic.send)
			w.leaveFastPath()
			t.Logf("%s: without %+v, with the fast path %+v", traffic.name, slow, fast)
			rate = append(rate, slow.time.Seconds()/fast.time.Seconds())
			cpu = append(cpu, fast.cpu.Seconds()/slow.cpu.Seconds())
			if fast.forwarded > slow.forwarded/4 {
				t.Errorf("%s: the hook saw %d packets with the flowtable, and %d without", traffic.name, fast.forwarded,
					slow.forwarded)
			}
		}
		t.Logf("%s: with the fast path %s of the rate, and %s of the CPU time", traffic.name, spread(rate), spread(cpu))
	}
}

// spread is the median of ratios, and their range.
func spread(ratios []float64) string {
	slices.Sort(ratios)
	n := len(ratios)
	return fmt.Sprintf("%.2f (%.2f to %.2f)", ratios[n/2], ratios[0], ratios[n-1])
}
