package tracing_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"nftproxy/look/tracing"
	"nftproxy/nft"
	"nftproxy/nft/livetrace"
)

// TestMain has a flag that writes the golden file again.
func TestMain(m *testing.M) {
	flag.Bool("update", false, "write the golden file again")
	flag.Parse()
	os.Exit(m.Run())
}

const (
	mark = "nftproxy-trace-1-test"
	tcp  = 6
)

// names knows two rules, three base chains, two interfaces and one Service.
func names() tracing.Names {
	return tracing.Names{
		Rule: func(_ uint8, table string, handle uint64) nft.Rule {
			rules := map[uint64]nft.Rule{
				5: {nft.VMap{Key: nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport}, Map: "services"}},
				6: {nft.DNAT{Key: nft.Fields{nft.Daddr, nft.L4Proto, nft.Dport}, Mod: 2, Map: "endpoints"}},
				7: {nft.MatchProto{Protocol: tcp}, nft.Reject{TCPReset: true}},
				8: {nft.MatchProto{Protocol: tcp}, nft.Unknown{}},
			}
			if table != "nftproxy" {
				return nil
			}
			return rules[handle]
		},
		Hook: func(_ uint8, _, chain string) string {
			return map[string]string{"prerouting": "prerouting", "postrouting": "postrouting", "output": "output",
				"FORWARD": "forward"}[chain]
		},
		Interface: func(index uint32) string { return fmt.Sprintf("eth%d", index) },
		Service: func(_ uint8, _, destination netip.AddrPort) (service, port string) {
			if destination == netip.MustParseAddrPort("10.96.0.10:80") {
				return "shop/cart", "http"
			}
			return "", ""
		},
	}
}

func headers(source, destination string, in, out uint32) *livetrace.Packet {
	return &livetrace.Packet{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination),
		Input: in, Output: out}
}

// step is an event of the packet with a number.
func step(id uint32, table, chain string, kind livetrace.EventKind, handle uint64, verdict string,
	p *livetrace.Packet) livetrace.Event {
	return livetrace.Event{ID: id, Family: 2, Table: table, Chain: chain, Kind: kind, Handle: handle, Verdict: verdict,
		Packet: p}
}

func begin(id uint32, p *livetrace.Packet) livetrace.Event {
	return step(id, mark, "prerouting", livetrace.ByRule, 3, "continue", p)
}

const (
	client, clusterIP, endpoint = "10.244.0.2:4010", "10.96.0.10:80", "10.244.1.5:8080"
)

// way is the events of a packet that is translated.
func way(id uint32) []livetrace.Event {
	arriving, leaving := headers(client, clusterIP, 1, 0), headers(client, endpoint, 1, 2)
	return []livetrace.Event{
		begin(id, arriving),
		step(id, mark, "prerouting", livetrace.ByPolicy, 0, "accept", nil),
		step(id, "nftproxy", "prerouting", livetrace.ByRule, 5, "goto endpoints-2", arriving),
		step(id, "nftproxy", "endpoints-2", livetrace.ByRule, 6, "accept", nil),
		step(id, "filter", "FORWARD", livetrace.ByRule, 12, "jump DOCKER", leaving),
		step(id, "filter", "DOCKER", livetrace.Returned, 12, "continue", nil),
		step(id, "filter", "FORWARD", livetrace.ByPolicy, 0, "accept", nil),
		step(id, "nftproxy", "postrouting", livetrace.ByPolicy, 0, "accept", leaving),
	}
}

func refused(id uint32) []livetrace.Event {
	p := headers("10.244.0.3:4010", "10.96.0.10:81", 0, 2)
	return []livetrace.Event{
		begin(id, p),
		step(id, "nftproxy", "output", livetrace.ByRule, 8, "goto refuse", p),
		step(id, "nftproxy", "refuse", livetrace.ByRule, 7, "drop", nil),
	}
}

// TestText: what people and programs read of packets, as it stands in testdata.
func TestText(t *testing.T) {
	a := tracing.NewAssembler(mark, tcp, 3, names())
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	one, two := way(1), refused(2)
	for i := range max(len(one), len(two)) { // both are on their way at a time
		for _, events := range [][]livetrace.Event{one, two} {
			if i < len(events) {
				a.Add(events[i], now)
			}
		}
	}
	a.Lost()
	// Another packet has the first one's number, and the table's policy says so.
	for _, e := range []livetrace.Event{
		begin(1, headers("10.244.0.4:4010", "10.96.0.11:80", 1, 0)),
		step(1, "filter", "FORWARD", livetrace.ByPolicy, 0, "drop", headers("10.244.0.4:4010", "10.96.0.11:80", 1, 2)),
		begin(4, headers("10.244.0.5:4010", clusterIP, 1, 0)),              // beyond the limit
		step(5, "filter", "FORWARD", livetrace.ByPolicy, 0, "accept", nil), // of another trace
	} {
		a.Add(e, now)
	}
	if !a.Full() {
		t.Error("three packets are not enough")
	}
	var got strings.Builder
	packets := a.Ended(now.Add(tracing.QuietPeriod))
	for _, p := range packets {
		if err := p.WriteText(&got, strings.ToUpper); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range packets {
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		got.Write(append(b, '\n'))
	}
	compareGolden(t, "testdata/packets.txt", got.String())
	if !a.Due().IsZero() || len(a.Ended(now.Add(time.Hour))) != 0 {
		t.Error("packets are left")
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("-want +got:\n%s\nall of it:\n%s", diff, got)
	}
}

// TestSteps: the steps of one packet are bounded.
func TestSteps(t *testing.T) {
	a := tracing.NewAssembler(mark, tcp, 1, names())
	now := time.Now()
	a.Add(begin(1, headers(client, clusterIP, 1, 0)), now)
	for range tracing.MaxSteps + 7 {
		a.Add(step(1, "filter", "FORWARD", livetrace.ByRule, 1, "continue", nil), now)
	}
	p := a.Ended(now.Add(time.Second))[0]
	if len(p.Steps) != tracing.MaxSteps || p.Omitted != 7 {
		t.Errorf("%d steps, %d omitted", len(p.Steps), p.Omitted)
	}
}

// TestLooped: a packet that the node sends to itself has another number once it comes in. Its
// steps belong to the same packet.
func TestLooped(t *testing.T) {
	a := tracing.NewAssembler(mark, tcp, 1, names())
	now := time.Now()
	sent := headers("192.0.2.7:4010", clusterIP, 0, 1)
	a.Add(begin(1, sent), now)
	a.Add(step(1, "nftproxy", "output", livetrace.ByRule, 6, "accept", sent), now)
	a.Add(step(1, "nftproxy", "postrouting", livetrace.ByPolicy, 0, "accept", headers("192.0.2.7:4010", "192.0.2.7:8080",
		0, 1)), now)
	a.Add(step(9, "other", "prerouting", livetrace.ByPolicy, 0, "accept", headers("192.0.2.7:4010", "192.0.2.7:8080", 1,
		0)), now)
	a.Add(step(9, "other", "input", livetrace.ByPolicy, 0, "drop", nil), now)
	p := a.Ended(now.Add(time.Second))[0]
	if len(p.Steps) != 4 || p.Fate != tracing.Dropped {
		t.Errorf("%d steps, %s", len(p.Steps), p.Fate)
	}
}

// TestQueued: a packet that a queue gave back ends where it ends, and one that it keeps is said to be handed over. It
// is waited for.
func TestQueued(t *testing.T) {
	for _, test := range []struct {
		what string
		then *livetrace.Event
		fate tracing.Fate
	}{
		{"kept", nil, tracing.Other},
		{"given back", &livetrace.Event{ID: 1, Family: 2, Table: "nftproxy", Chain: "postrouting", Kind: livetrace.ByPolicy,
			Verdict: "accept"}, tracing.Passed},
		{"given back, and dropped", &livetrace.Event{ID: 1, Family: 2, Table: "filter", Chain: "FORWARD",
			Kind: livetrace.ByPolicy, Verdict: "drop"}, tracing.Dropped},
	} {
		a := tracing.NewAssembler(mark, tcp, 1, names())
		now := time.Now()
		a.Add(begin(1, headers(client, clusterIP, 1, 0)), now)
		a.Add(step(1, "policies", "FORWARD", livetrace.ByRule, 4, "queue", headers(client, endpoint, 1, 2)), now)
		now = now.Add(2 * time.Second)
		if early := a.Ended(now); len(early) > 0 {
			t.Errorf("%s: not waited for: %+v", test.what, early)
			continue
		}
		if test.then != nil {
			a.Add(*test.then, now)
		}
		if p := a.Ended(now.Add(tracing.QueuePeriod)); len(p) != 1 || p[0].Fate != test.fate {
			t.Errorf("%s: %+v, want %s", test.what, p, test.fate)
		}
	}
}

// fake is a source of events.
type fake struct {
	events  chan livetrace.Event
	stopped int
}

var errClosed = errors.New("closed")

func (f *fake) Receive(ctx context.Context, deadline time.Time) (livetrace.Event, error) {
	take := func(e livetrace.Event, open bool) (livetrace.Event, error) {
		switch {
		case !open:
			return e, errClosed
		case e.Table == "lost":
			return e, livetrace.ErrLost
		}
		return e, nil
	}
	select {
	case e, open := <-f.events:
		return take(e, open)
	default:
	}
	select {
	case e, open := <-f.events:
		return take(e, open)
	case <-ctx.Done():
	case <-time.After(time.Until(deadline)):
	}
	return livetrace.Event{}, livetrace.ErrDeadline
}

func (f *fake) StopMarking() error {
	f.stopped++
	return nil
}

// TestRun: a trace ends when it is full, when its time is over, or by its context, with all
// packets that have begun.
func TestRun(t *testing.T) {
	for what, c := range map[string]struct {
		limit  int
		cancel bool
		events []livetrace.Event
		want   string
	}{
		"full":         {1, false, way(1), "1 in 0.1s, lost 0"},
		"time is over": {5, false, append(way(1), way(2)...), "2 in 60s, lost 0"},
		"nothing came": {5, false, nil, "0 in 60s, lost 0"},
		"interrupted":  {5, true, way(1), "1 in 0.1s, lost 0"},
		"events were lost": {1, false, append([]livetrace.Event{way(1)[0], {Table: "lost"}}, way(1)[2:]...),
			"1 in 0.1s, lost 1, incomplete"},
		"lost before it":    {1, false, append([]livetrace.Event{{Table: "lost"}}, way(1)...), "1 in 0.1s, lost 1"},
		"a later packet is": {1, false, append(way(1), way(2)...), "1 in 0.1s, lost 0"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{events: make(chan livetrace.Event, 100)}
				for _, e := range c.events {
					f.events <- e
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.cancel {
					time.AfterFunc(time.Millisecond, cancel)
				}
				shown, lost, incomplete, start := 0, 0, "", time.Now()
				err := tracing.Run(ctx, f, tracing.NewAssembler(mark, tcp, c.limit, names()), time.Minute, tracing.Output{
					Packet: func(p *tracing.Packet) error {
						shown++
						if p.Incomplete {
							incomplete = ", incomplete"
						}
						return nil
					},
					Lost: func() { lost++ },
				})
				got := fmt.Sprintf("%d in %vs, lost %d%s", shown, time.Since(start).Round(10*time.Millisecond).Seconds(), lost,
					incomplete)
				if err != nil || got != c.want || f.stopped == 0 {
					t.Errorf("%s, %v, want %s; marking was stopped %d times", got, err, c.want, f.stopped)
				}
			})
		})
	}
}

// TestBusy: a packet's way has not ended while its events are queued, however late they are
// read.
func TestBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &slow{fake{events: make(chan livetrace.Event, 100)}}
		for _, e := range way(1) {
			f.events <- e
		}
		err := tracing.Run(t.Context(), f, tracing.NewAssembler(mark, tcp, 1, names()), time.Minute, tracing.Output{
			Packet: func(p *tracing.Packet) error {
				if len(p.Steps) != 6 {
					t.Errorf("%d steps", len(p.Steps))
				}
				return nil
			},
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// slow takes long for each event.
type slow struct{ fake }

func (s *slow) Receive(ctx context.Context, deadline time.Time) (livetrace.Event, error) {
	time.Sleep(10 * tracing.QuietPeriod)
	return s.fake.Receive(ctx, deadline)
}

// TestRunFails: errors of the source and of the output end the trace.
func TestRunFails(t *testing.T) {
	closed := &fake{events: make(chan livetrace.Event)}
	close(closed.events)
	if err := tracing.Run(t.Context(), closed, tracing.NewAssembler(mark, tcp, 1, names()), time.Hour,
		tracing.Output{}); !errors.Is(err, errClosed) {
		t.Errorf("of the source: %v", err)
	}
	full := &fake{events: make(chan livetrace.Event, 100)}
	for _, e := range way(1) {
		full.events <- e
	}
	broken := errors.New("broken pipe")
	err := tracing.Run(t.Context(), full, tracing.NewAssembler(mark, tcp, 1, names()), time.Hour, tracing.Output{
		Packet: func(*tracing.Packet) error { return broken },
	})
	if !errors.Is(err, broken) {
		t.Errorf("of the output: %v", err)
	}
}
