package flowmap_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"nftproxy/cmd/kubectl-nftproxy/flowmap"
	"nftproxy/model/flows"
)

func nobody(netip.Addr) flowmap.Party { return flowmap.Party{} }

// TestShares: what links say is what a plain count of the connections says, whatever the sample, the order of the nodes
// and the way in which flows are spread over them.
func TestShares(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var list []conn
		connections, failed, bytes := map[string]float64{}, map[string]float64{}, map[string]float64{}
		for range 500 {
			c := conn{client: fmt.Sprintf("10.0.0.%d", rng.IntN(5)), service: fmt.Sprintf("a/s%d", rng.IntN(3)),
				endpoint: fmt.Sprintf("10.1.0.%d", rng.IntN(3)), result: flows.Results()[rng.IntN(5)],
				ago: time.Duration(rng.Int64N(int64(2 * time.Minute))), bytes: rng.Uint64N(1000), weight: 1 << rng.IntN(5)}
			list = append(list, c)
			if c.ago >= time.Minute {
				continue
			}
			key := c.client + " " + c.service + " " + c.endpoint
			connections[key] += float64(c.weight)
			bytes[key] += float64(c.weight) * float64(c.bytes)
			if c.result != flows.Answered && c.result != flows.Waiting {
				failed[key] += float64(c.weight)
			}
		}
		var before []flowmap.Link
		for range 3 {
			nodes := map[int][]conn{}
			for _, c := range list {
				n := rng.IntN(4)
				nodes[n] = append(nodes[n], c)
			}
			tally := flowmap.NewTally(time.Minute, all)
			for n, conns := range nodes {
				tally.Add(answer(fmt.Sprint(n), time.Hour, conns...))
			}
			links := tally.Links(nobody)
			if len(links) != len(connections) {
				t.Fatalf("seed %d: %d links, want %d", seed, len(links), len(connections))
			}
			for _, l := range links {
				key := l.Client.Name + " " + string(l.Port.Service) + " " + l.Endpoint.Name
				if l.New != connections[key] || l.Failed != failed[key] || l.BytesFrom != bytes[key] ||
					l.PerSecond < connections[key]/60*0.999 || l.PerSecond > connections[key]/60*1.001 {
					t.Errorf("seed %d: %s: %+v, want %v connections, %v failed", seed, key, l.Stats, connections[key], failed[key])
				}
			}
			for i := range links {
				links[i].PerSecond = 0 // a sum of fractions
			}
			if before != nil && !reflect.DeepEqual(before, links) {
				t.Errorf("seed %d: the spread over nodes matters", seed)
			}
			before = links
		}
	}
}

// TestShortMemory: the rate of a busy node, which has forgotten most flows of the window, is that of the time which it
// remembers.
func TestShortMemory(t *testing.T) {
	tally := flowmap.NewTally(5*time.Minute, all)
	tally.Add(answer("busy", 10*time.Second, times(100, conn{client: "10.0.0.1", service: "a/b", endpoint: "10.1.0.1",
		result: flows.Answered, ago: 5 * time.Second, weight: 16})...))
	if l := tally.Links(nobody); len(l) != 1 || l[0].PerSecond < 159 || l[0].PerSecond > 161 {
		t.Errorf("%+v, want 160 a second", l)
	}
}

// TestShortMemoryOfOne: a namespace of which a node has forgotten flows shortens the window of no other, also of one
// that the node has no note about; a node that knows no namespaces has one window.
func TestShortMemoryOfOne(t *testing.T) {
	connection := func(name string) conn {
		return conn{client: "10.0.0.1", service: name, endpoint: "10.1.0.1", result: flows.Answered, ago: 5 * time.Second,
			weight: 300}
	}
	busy := answer("n", 10*time.Second, connection("busy/s"), connection("calm/s"), connection("quiet/s"))
	for _, c := range []struct {
		since                    map[string]time.Time
		wantBusy, calm, wantElse float64
	}{
		{nil, 30, 30, 30},
		{map[string]time.Time{"": {}, "busy": busy.Since}, 30, 1, 1},
		{map[string]time.Time{"": busy.Time.Add(-100 * time.Second), "busy": busy.Since, "calm": {}}, 30, 1, 3},
	} {
		tally := flowmap.NewTally(5*time.Minute, all)
		busy.SinceIn = c.since
		tally.Add(busy)
		want := map[string]float64{"busy/s": c.wantBusy, "calm/s": c.calm, "quiet/s": c.wantElse}
		for _, l := range tally.Links(nobody) {
			if w := want[string(l.Port.Service)]; l.PerSecond < w*0.999 || l.PerSecond > w*1.001 {
				t.Errorf("%v: %s has %v connections a second, want %v", c.since, l.Port.Service, l.PerSecond, w)
			}
		}
	}
}

// TestAnswers: the time within which a share was answered is right to a tenth.
func TestAnswers(t *testing.T) {
	tally := flowmap.NewTally(time.Minute, all)
	var list []conn
	for i := range 1000 {
		list = append(list, conn{client: "10.0.0.1", service: "a/b", endpoint: "10.1.0.1", result: flows.Answered,
			answer: time.Duration(i+1) * time.Millisecond, ago: time.Second, weight: 4})
	}
	tally.Add(answer("n", time.Hour, list...))
	link := tally.Links(nobody)[0]
	for share, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.95: 950 * time.Millisecond} {
		got, known := link.Answer(share)
		if ratio := float64(got) / float64(want); !known || ratio < 0.9 || ratio > 1.1 {
			t.Errorf("%v: %v, want %v", share, got, want)
		}
	}
}

// TestBound: a tenant with many busy clients hides nobody's failures, and the note has what is left out.
func TestBound(t *testing.T) {
	tally := flowmap.NewTally(time.Minute, all)
	var list []conn
	for i := range 200 {
		list = append(list, times(10, conn{client: "10.0.0.1", service: fmt.Sprintf("busy/s%d", i), endpoint: "10.1.0.1",
			result: flows.Answered, ago: time.Second, weight: 16})...)
	}
	list = append(list, conn{client: "10.0.0.2", service: "quiet/s", result: flows.Refused, cause: "no-endpoints",
		ago: time.Second, weight: 16})
	tally.Add(answer("n", time.Hour, list...))
	links, note := flowmap.Bound(tally.Links(nobody), 10)
	if len(links) != 10 || links[9].Port.Service != "quiet/s" || !strings.HasPrefix(note, "191 more links are left out, "+
		"with 509 new connections a second, of which 0% fail") {
		t.Errorf("%d links, the last one of %s: %s", len(links), links[len(links)-1].Port.Service, note)
	}
	if links, note := flowmap.Bound(tally.Links(nobody), 0); len(links) != 201 || note != "" {
		t.Errorf("without a bound: %d links, %q", len(links), note)
	}
}

// TestUnnamed: clients from outside are few rows, however many there are.
func TestUnnamed(t *testing.T) {
	tally := flowmap.NewTally(time.Minute, all)
	var list []conn
	for i := range 250 {
		list = append(list, times(1+i%3, conn{client: fmt.Sprintf("203.0.113.%d", i), service: "a/b", endpoint: "10.1.0.1",
			result: flows.Answered, ago: time.Second, weight: 1})...)
	}
	tally.Add(answer("n", time.Hour, list...))
	links := tally.Links(nobody)
	if len(links) != 9 || links[0].Client != flowmap.Others() {
		t.Errorf("%d links, the first of %s", len(links), links[0].Client)
	}
}

// TestFull: what there is no room for has a note with its rate, and takes no memory.
func TestFull(t *testing.T) {
	tally := flowmap.NewTally(time.Minute, all)
	for i := range 101 {
		var list []conn
		for j := range 1000 {
			list = append(list, conn{client: fmt.Sprintf("10.%d.%d.%d", i, j/250, j%250), service: "a/b",
				result: flows.Answered, ago: time.Second, weight: 6})
		}
		tally.Add(answer("n", time.Hour, list...))
	}
	if n := len(tally.Addresses()); n != 100_000 || !strings.Contains(tally.Note(), "with 100 new connections a second") {
		t.Errorf("%d addresses: %s", n, tally.Note())
	}
}

// TestNumbers: two digits that count.
func TestNumbers(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 0.0123: "0.012", 0.5: "0.5", 1: "1", 9.94: "9.9", 9.96: "10",
		123.4: "123"} {
		if got := flowmap.Number(n); got != want {
			t.Errorf("%v: %s, want %s", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{450 * time.Nanosecond: "0.45us", 1500 * time.Microsecond: "1.5ms",
		90 * time.Second: "90s"} {
		if got := flowmap.Seconds(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
