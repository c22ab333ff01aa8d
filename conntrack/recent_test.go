package conntrack

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/model/snapshots"
)

// shopWith has a TCP Service with an endpoint of each number, and a node port.
func shopWith(t *testing.T, endpoints ...int) service.Snapshot {
	text := cluster + "service default/shop created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.1\n  port http tcp 80 " +
		"node-port 30080\n"
	for _, i := range endpoints {
		text += fmt.Sprintf("    endpoint 10.1.0.%d:8080 n1 ready serving\n", i)
	}
	return parse(t, text)
}

// noting is what the rules have noted.
type noting struct {
	claims map[service.Claim]bool
	err    error
}

func (n *noting) noted(c service.Claim) (bool, error) { return n.claims[c], n.err }

// startNoting starts a Cleaner that is alone, with a record of at most so many claims for five minutes.
func startNoting(t *testing.T, table *slowTable, n *noting, most int) *bench {
	return startWith(t, table, CleanerConfig{Alone: func() bool { return true },
		Record: &Record{Noted: n.noted, Lasting: 5 * time.Minute, Most: most}})
}

// TestRecentRanges: an unanswered flow to a port of ranges, from before the rules, counts for the ranges.
func TestRecentRanges(t *testing.T) {
	snapshot := func(endpoints ...int) service.Snapshot {
		text := cluster + "service default/shop created 2026-01-01T00:00:00Z\n  cluster-ip 10.97.0.1\n  option port-ranges " +
			"8000-9000/TCP\n  port ranges tcp ranges=8000-9000\n"
		for _, i := range endpoints {
			text += fmt.Sprintf("    endpoint 10.1.0.%d:0 n1 ready serving\n", i)
		}
		return parse(t, text)
	}
	synctest.Test(t, func(t *testing.T) {
		half := dnated(service.TCP, "10.0.0.9", "10.97.0.1:8080", "10.1.0.2:8080", 0)
		b := startNoting(t, &slowTable{entries: 100_000, dump: time.Millisecond, flows: []Flow{half}}, &noting{}, 1000)
		b.SyncDone(snapshot(1, 2, 3), true)
		b.after(time.Minute, time.Now())
		before := b.ended()
		b.SyncDone(snapshot(1, 3), false)
		b.after(time.Minute, time.Now())
		if !slices.ContainsFunc(b.runs[before:], func(r Run) bool { return r.Lag > 0 }) {
			t.Errorf("passes %+v: none looks for the flow at once", b.runs[before:])
		}
	})
}

// TestRecent: when an endpoint goes, the Cleaner looks for unanswered flows to it only
// where the Service may have had a new connection lately.
func TestRecent(t *testing.T) {
	clusterIP := service.Claim{Addr: netip.MustParseAddr("10.97.0.1"), Protocol: service.TCP, Port: 80}
	nodePort := service.Claim{Addr: netip.IPv4Unspecified(), Protocol: service.TCP, Port: 30080}
	half := dnated(service.TCP, "10.0.0.9", "10.97.0.1:80", "10.1.0.2:8080", 0)
	answered := dnated(service.TCP, "10.0.0.9", "10.97.0.1:80", "10.1.0.2:8080", SeenReply)
	byNodePort := dnated(service.TCP, "10.0.0.9", "192.168.0.1:30080", "10.1.0.2:8080", 0)
	everyClaim := map[service.Claim]bool{clusterIP: true, nodePort: true}
	for name, c := range map[string]struct {
		there  []Flow // at the first pass
		noted  map[service.Claim]bool
		err    error
		wait   time.Duration
		most   int // of frontends
		before func(b *bench)
		looks  bool
	}{
		"nobody has connected":           {},
		"a connection to the cluster IP": {noted: map[service.Claim]bool{clusterIP: true}, looks: true},
		"a connection to the node port":  {noted: map[service.Claim]bool{nodePort: true}, looks: true},
		"a connection to another Service": {noted: map[service.Claim]bool{{Addr: clusterIP.Addr,
			Protocol: service.TCP, Port: 81}: true}},
		"the rules cannot be asked":                {err: errors.New("no answer"), looks: true},
		"more frontends than can be noted":         {most: 1, looks: true},
		"an unanswered flow from before the rules": {there: []Flow{half}, looks: true},
		"one to the node port":                     {there: []Flow{byNodePort}, looks: true},
		"its client has given up":                  {there: []Flow{half}, wait: time.Hour},
		"an answered flow from before the rules":   {there: []Flow{answered}},
		"the rules were changed by others, just before": {before: func(b *bench) { b.SyncDone(shopWith(t, 1, 2, 3), true) },
			looks: true},
		"the table was read since the rules were changed": {before: func(b *bench) {
			b.SyncDone(shopWith(t, 1, 2, 3), true)
			b.after(time.Hour, time.Now())
		}},
		"everything at once": {there: []Flow{half}, noted: everyClaim, looks: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &slowTable{entries: 100_000, dump: time.Millisecond, flows: slices.Clone(c.there)}
				b := startNoting(t, table, &noting{c.noted, c.err}, cmp.Or(c.most, 1000))
				b.SyncDone(shopWith(t, 1, 2, 3), true)
				b.after(time.Minute+c.wait, time.Now())
				if c.before != nil {
					c.before(b)
				}
				before := b.ended()
				b.SyncDone(shopWith(t, 1, 3), false)
				b.after(lookEvery, time.Now()) // Later it looks for connections that have been given up.
				table.set(func() {
					looked := slices.ContainsFunc(b.runs[before:], func(r Run) bool { return r.Lag > 0 })
					if looked != c.looks {
						t.Errorf("passes %+v: looked %t, want %t", b.runs[before:], looked, c.looks)
					}
				})
				b.after(time.Minute, time.Now())
				if slices.Contains(table.flows, half) {
					t.Errorf("unanswered flows to an endpoint that has gone: %v", table.flows)
				}
				if n := b.judge.index.departed.due(); n > 0 {
					t.Errorf("%d departures are still due", n)
				}
			})
		})
	}
}

// UDP flows stay with their endpoint for as long as the client sends, so what was noted
// lately tells nothing of them.
func TestRecentTellsNothingOfUDP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		builder := snapshots.NewBuilder(service.Node{})
		flow := dnated(service.UDP, "10.0.0.9", "10.97.0.1:53", "10.1.0.0:53", SeenReply)
		table := &slowTable{dump: time.Millisecond, flows: []Flow{flow}}
		b := startNoting(t, table, &noting{}, 1000)
		b.SyncDone(rolled(t, builder, 0), true)
		b.after(time.Minute, time.Now())
		b.SyncDone(rolled(t, builder, 1), false)
		b.after(time.Second, time.Now())
		if len(table.flows) > 0 {
			t.Errorf("%v is still there", table.flows)
		}
	})
}

// A pass that finds more claims with unanswered flows than it may note does not count as
// knowledge.
func TestRecentIsBounded(t *testing.T) {
	r := recent{record: &Record{Noted: (&noting{}).noted, Lasting: time.Minute}}
	now := time.Now()
	r.begin(now)
	for i := range 2 * mostUnanswered {
		f := dnated(service.TCP, "10.0.0.9", fmt.Sprintf("10.97.%d.%d:80", i/256, i%256), "10.1.0.2:8080", 0)
		r.see(&f, now)
	}
	r.end(true)
	if len(r.unanswered) > mostUnanswered || !r.may(service.Claim{Addr: netip.MustParseAddr("10.97.200.1"),
		Protocol: service.TCP, Port: 80}, now) {
		t.Errorf("%d claims noted, and others are known to have no flow", len(r.unanswered))
	}
}

// TestRecentOldFlow: a client repeats its first packet for longer than the rules remember.
// The passes over the whole table see its flow, so that it does not stay with an endpoint
// that goes.
func TestRecentOldFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		half := dnated(service.TCP, "10.0.0.9", "10.97.0.1:80", "10.1.0.2:8080", 0)
		table := &slowTable{entries: 100_000, dump: time.Millisecond}
		noted := &noting{claims: map[service.Claim]bool{}}
		b := startNoting(t, table, noted, 1000)
		b.SyncDone(shopWith(t, 1, 2, 3), true)
		b.after(time.Minute, time.Now())
		table.set(func() { table.flows = []Flow{half} })
		for range 20 { // syncs of other Services, and a routine pass now and then
			b.SyncDone(shopWith(t, 1, 2, 3), false)
			b.after(time.Minute, time.Now())
		}
		b.SyncDone(shopWith(t, 1, 3), false)
		b.after(time.Second, time.Now())
		if len(table.flows) > 0 {
			t.Errorf("%v is still there", table.flows)
		}
	})
}

// TestLostFrontends: frontends that went lately count, since they are still noted.
func TestLostFrontends(t *testing.T) {
	var l lostFrontends
	now, total := time.Now(), ip.PerFamily[int]{}
	for minute := range 60 {
		total[1] += 10
		got := l.lately(total, now.Add(time.Duration(minute)*time.Minute), 5*time.Minute)
		if least, most := 10*min(5, minute), 10*11; got < least || got > most {
			t.Errorf("minute %d: %d went lately, want %d to %d", minute, got, least, most)
		}
	}
	if got := l.lately(total, now.Add(3*time.Hour), 5*time.Minute); got > 110 {
		t.Errorf("hours later: %d", got)
	}
	if got := l.lately(total, now.Add(4*time.Hour), 5*time.Minute); got != 0 {
		t.Errorf("later still: %d", got)
	}
}
