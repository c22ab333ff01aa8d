package flowcost

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"nftproxy/test/lib/testnet"
)

// way is a way to learn of connections.
type way struct {
	name, listener, rule string
	// events is net.netfilter.nf_conntrack_events; "" stands for the kernel's default.
	events string
}

// The multicast groups of events: new, update and destroy (linux/netfilter/nfnetlink_compat.h).
const (
	destroyed  = "3"
	newDestroy = "1,3"
	allGroups  = "1,2,3"
)

func ways() []way {
	list := []way{{name: "nothing"}}
	for _, n := range []int{1, 16, 256} {
		sample := fmt.Sprintf("ct status dnat numgen random mod %d == 0 ", n)
		list = append(list,
			way{name: fmt.Sprintf("log 1/%d", n), listener: "log", rule: sample + logRule},
			way{name: fmt.Sprintf("log with attribute 1/%d", n), listener: "log ct", rule: sample + logRule},
			way{name: fmt.Sprintf("events destroy 1/%d", n), listener: fmt.Sprint("events ", n, " ", destroyed)},
			way{name: fmt.Sprintf("events new, destroy 1/%d", n), listener: fmt.Sprint("events ", n, " ", newDestroy)},
			way{name: fmt.Sprintf("events all 1/%d", n), listener: fmt.Sprint("events ", n, " ", allGroups)},
			way{name: fmt.Sprintf("ct event set 1/%d", n), listener: "events 0 " + allGroups, events: "0",
				rule: sample + "ct event set new,reply,destroy"},
		)
	}
	return append(list,
		way{name: "log, library 1/1", listener: "log-library", rule: "ct status dnat " + logRule},
		way{name: "events new, destroy, library 1/1", listener: "events-library 0 " + newDestroy},
		way{name: "dump 1 s", listener: "dump"})
}

const logRule = "log group 7 snaplen 64"

// figures are microseconds of CPU time for each connection.
type figures struct {
	kernel, base, process, seen, reached []float64
	last                                 report
}

// TestCost logs what each way costs for each connection. The ways take turns. The kernel's cost is that of the
// generator's thread, less that of another node with nothing, burst by burst.
func TestCost(t *testing.T) {
	rounds, rates := 7, []int{10_000, 1000, 100}
	if testing.Short() {
		rounds, rates = 1, []int{10_000}
	}
	w := world{newSite(t), newSite(t), ""}
	var err error
	w.events, err = w.subject.node.ReadSysctl("net.netfilter.nf_conntrack_events")
	testnet.Require(t, err)
	t.Logf("net.netfilter.nf_conntrack_events is %s", w.events)
	for _, rate := range rates {
		list := ways()
		measured := make([]figures, len(list))
		for round := range rounds {
			for i := range list {
				at := (i + round*5) % len(list)
				w.turn(list[at], rate, &measured[at])
			}
		}
		for i, way := range list {
			f := &measured[i]
			k, off := trimmed(f.kernel)
			base, _ := trimmed(f.base)
			p, poff := trimmed(f.process)
			t.Logf("%5d/s %-34s kernel %6.2f±%.2f of %.1f, process %6.2f±%.2f us: %6.3f %% of a core; new seen %.4f; "+
				"%.0f/s; last %+v", rate, way.name, k, off, base, p, poff, (k+p)*float64(rate)/1e4, mean(f.seen),
				mean(f.reached), f.last)
			if way.listener != "" && f.last.New+f.last.Destroy == 0 && rate >= 10_000 {
				t.Errorf("%s saw nothing", way.name)
			}
		}
	}
	w.subject.load("")
	w.subject.open(w.subject.connections)
	l := w.subject.listen("get")
	r := l.report()
	l.stop()
	t.Logf("a get by tuple: %.2f us of the process", float64(r.Bytes)/1e3/most)
}

// world has two nodes, of which only the second has anything that is measured.
type world struct {
	base, subject *site
	// events is the kernel's default of net.netfilter.nf_conntrack_events.
	events string
}

// turn takes one way through one turn.
func (w *world) turn(way way, rate int, f *figures) {
	w.subject.Helper()
	n := min(most, max(2*rate, 200))
	events := way.events
	if events == "" {
		events = w.events
	}
	w.subject.sysctl("nf_conntrack_events", events)
	var l *listener
	for _, s := range []*site{w.base, w.subject} {
		testnet.Require(s, s.node.FlushConntrack())
		if s == w.base {
			s.load("")
		} else if s.load(way.rule); way.listener != "" {
			l = s.listen(way.listener)
			defer l.stop()
		}
		// Each connection that is measured replaces one of these, and so pays for its end too.
		s.open(s.connections[:n])
	}
	var before, after report
	if l != nil {
		time.Sleep(150 * time.Millisecond) // longer than messages of log wait for others
		before = l.report()
	}
	more, of, reached := generate(w.base, w.subject, n, rate)
	f.kernel, f.base, f.reached = append(f.kernel, more...), append(f.base, of...), append(f.reached, reached)
	if l != nil {
		time.Sleep(150 * time.Millisecond)
		after = l.report()
	}
	f.process = append(f.process, float64(after.CPU-before.CPU)/1e3/float64(n))
	f.seen = append(f.seen, float64(after.New-before.New)/float64(n))
	f.last = report{after.CPU - before.CPU, after.New - before.New, after.Update - before.Update,
		after.Destroy - before.Destroy, after.Bytes - before.Bytes, after.Lost}
}

// trimmed is the mean without a tenth at each end, and its standard error.
func trimmed(list []float64) (m, off float64) {
	list = slices.Clone(list)
	slices.Sort(list)
	cut := len(list) / 10
	list = list[cut : len(list)-cut]
	m = mean(list)
	for _, x := range list {
		off += (x - m) * (x - m)
	}
	return m, math.Sqrt(off) / float64(len(list))
}

func mean(list []float64) (m float64) {
	for _, x := range list {
		m += x / float64(len(list))
	}
	return m
}
