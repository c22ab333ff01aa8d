package flowcost

import (
	"flag"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/test/lib/testnet"
)

// way is a way to learn of connections.
type way struct {
	name, listener string
	// before, after and chain are rules; see load.
	before, after, chain string
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
	list := []way{{name: "nothing"}, {name: "nothing, nf_conntrack_events=1", events: "1"}}
	for _, n := range []int{1, 16, 256} {
		share, sample := fmt.Sprintf(" 1/%d", n), fmt.Sprintf("numgen random mod %d == 0 ", n)
		list = append(list,
			way{name: "log of the start" + share, listener: "log", before: sample + logged},
			way{name: "log of the start with attribute" + share, listener: "log ct", after: sample + logged},
			way{name: "log of start and answer" + share, listener: "log", before: sample + "ct label set 5 " + logged,
				chain: answers},
			way{name: "events destroy" + share, listener: fmt.Sprint("events ", n, " ", destroyed)},
			way{name: "events new, destroy" + share, listener: fmt.Sprint("events ", n, " ", newDestroy)},
			way{name: "events new, update, destroy" + share, listener: fmt.Sprint("events ", n, " ", allGroups)},
			way{name: "ct event set" + share, listener: "events 0 " + allGroups, events: "0",
				after: "ct status dnat " + sample + "ct event set new,reply,destroy"},
		)
	}
	return append(list,
		way{name: "log of the start, library 1/1", listener: "log-library", before: logged},
		way{name: "log of the start, library 1/16", listener: "log-library", before: "numgen random mod 16 == 0 " + logged},
		way{name: "events new, destroy, library 1/1", listener: "events-library 0 " + newDestroy},
		way{name: "dump each second", listener: "dump"})
}

const (
	logged = "log group 7 snaplen 64"
	// answers logs the first packet of the answer of a sampled connection, where it has the addresses of the first
	// packet, the other way round. Each packet of the node meets the first comparison.
	answers = "chain answers {\ntype filter hook postrouting priority 110\n" +
		"ct label 5 ct direction reply ct reply packets 1 " + logged + "\n}"
)

// figures are microseconds of CPU time for each connection.
type figures struct {
	kernel, base, process, seen, reached []float64
	last                                 report
}

// TestCost logs what each way costs for each connection. The ways take turns. The kernel's cost is that of the
// generator's thread, less that of another node with nothing, burst by burst.
func TestCost(t *testing.T) {
	whenNamed(t)
	rounds, rates := 3, []int{10_000, 1000, 100}
	if testing.Short() {
		rounds, rates = 1, []int{10_000}
	}
	w := world{newSite(t), newSite(t), ""}
	// Whether somebody listens is one question for all namespaces (netlink_has_listeners): the node with nothing would
	// make messages for the listener of the other.
	w.base.sysctl("nf_conntrack_events", "0")
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
			if way.listener != "" && f.last.New+f.last.Destroy == 0 && rate >= 10_000 && !testing.Short() {
				t.Errorf("%s saw nothing", way.name)
			}
		}
	}
}

// TestAsking logs what it costs to ask for entries: one by its tuple, and all that have DNAT.
func TestAsking(t *testing.T) {
	whenNamed(t)
	s := newSite(t)
	s.load("", "", "")
	s.open(s.connections)
	l := s.listen("get")
	t.Logf("a get by tuple: %.2f us", float64(l.report().Bytes)/1e3/most)
	l.stop()
	table, err := conntrack.Open(conntrack.Config{NetNS: s.node.Fd()})
	testnet.Require(t, err)
	defer table.Close()
	for more := range 10 {
		var took []float64
		n := 0
		for range 5 {
			start := processTime()
			n = 0
			testnet.Require(t, table.Flows(t.Context(), conntrack.Filter{Status: conntrack.DstNAT, Mask: conntrack.DstNAT},
				func(conntrack.Flow) error { n++; return nil }))
			took = append(took, (processTime()-start).Seconds()*1e3)
		}
		t.Logf("a dump of %d entries: %.1f ms", n, slices.Min(took))
		from := clientAddr.As4()
		from[2], from[3] = 3, byte(more)
		for i, c := range s.connections {
			first := slices.Clone(c[0].frame)
			copy(first[14:], segment(netip.AddrPortFrom(netip.AddrFrom4(from), uint16(firstPort+i)),
				netip.AddrPortFrom(serviceAddr, 80), 1, 0, syn, 0))
			_, err := unix.Write(s.sockets[0], first)
			testnet.Require(t, err)
		}
	}
}

// whenNamed skips a measurement, which takes minutes, unless -run names it.
func whenNamed(t *testing.T) {
	if f := flag.Lookup("test.run"); !strings.Contains(f.Value.String(), t.Name()) {
		t.Skip("it only measures: -run " + t.Name())
	}
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
	if testing.Short() {
		n = 400
	}
	events := way.events
	if events == "" {
		events = w.events
	}
	w.subject.sysctl("nf_conntrack_events", events)
	var l *listener
	for _, s := range []*site{w.base, w.subject} {
		testnet.Require(s, s.node.FlushConntrack())
		if s == w.base {
			s.load("", "", "")
		} else if s.load(way.before, way.after, way.chain); way.listener != "" {
			l = s.listen(way.listener)
			defer l.stop()
		}
		// Each connection that is measured replaces one of these, and so pays for its end too.
		s.open(s.connections[:n])
	}
	var before, after report
	if l != nil {
		before = l.settled()
	}
	more, of, reached := generate(w.base, w.subject, n, rate)
	f.kernel, f.base, f.reached = append(f.kernel, more...), append(f.base, of...), append(f.reached, reached)
	if l != nil {
		after = l.settled()
	}
	f.process = append(f.process, float64(after.CPU-before.CPU)/1e3/float64(n))
	f.seen = append(f.seen, float64(after.New-before.New)/float64(n))
	f.last = report{after.CPU - before.CPU, after.New - before.New, after.Update - before.Update,
		after.Destroy - before.Destroy, after.Bytes - before.Bytes, after.Lost, after.Open,
		after.Attributes}
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
