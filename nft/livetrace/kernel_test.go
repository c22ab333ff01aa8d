package livetrace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// childVariable has the test binary trace a flow until it is killed.
const childVariable = "LIVETRACE_TEST_FLOW"

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		traceForEver(text)
	}
	os.Exit(m.Run())
}

func traceForEver(text string) {
	flow, err := ParseFlow(text)
	var tracer *Tracer
	if err == nil {
		tracer, err = Start(Config{Flow: flow, Packets: 1, Lifetime: time.Hour})
	}
	fmt.Println(err)
	// Not select {}: where no goroutine can ever run again, the runtime ends the process, and
	// the kernel removes the table.
	for {
		time.Sleep(time.Hour)
		runtime.KeepAlive(tracer)
	}
}

// world is a namespace with two addresses, and no rules at first.
type world struct {
	*testing.T
	ns  *testnet.Namespace
	cmd netfilter.NFT
}

const (
	here4, here6 = "192.0.2.7", "2001:db8::7"
)

func newWorld(t *testing.T) *world {
	w := &world{t, testnet.NamespaceForTest(t, "livetrace"), netfilter.NFTForTest(t)}
	for _, a := range []string{here4 + "/32", here6 + "/128"} {
		if err := w.ns.AddAddr("lo", netip.MustParsePrefix(a)); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) start(c Config) *Tracer {
	w.Helper()
	var tracer *Tracer
	if err := w.ns.Do(func() error {
		var err error
		tracer, err = Start(c)
		return err
	}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		if err := tracer.Close(); err != nil {
			w.Error(err)
		}
	})
	return tracer
}

// send sends a datagram. The rules may drop it, which the sender learns as EPERM.
func (w *world) send(from, to string) {
	w.Helper()
	conn, err := w.ns.DialFrom(w.Context(), "udp", from, to)
	if err != nil {
		w.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("x")); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ECONNREFUSED) {
		w.Fatal(err)
	}
}

func (w *world) tables() string {
	w.Helper()
	list, err := w.cmd.Run(w.ns, "", "list", "tables")
	if err != nil {
		w.Fatal(err)
	}
	return list
}

func flowOf(t *testing.T, text string) Flow {
	t.Helper()
	f, err := ParseFlow(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// next returns the next event outside of the marking table, and the marking event before it.
func (w *world) next(tracer *Tracer) (marked *Packet, e Event) {
	w.Helper()
	for {
		e, err := tracer.Receive(w.Context(), soon())
		if err != nil {
			w.Fatal(err)
		}
		if e.Table != tracer.Table() {
			return marked, e
		}
		if e.Kind == ByRule && e.Packet != nil {
			marked = e.Packet
		}
	}
}

// TestTrace: a packet of the flow is traced in both families, and others are not. The events
// say table, chain, rule and verdict.
func TestTrace(t *testing.T) {
	for family, c := range map[string]struct{ here, other string }{"ip": {here4, "127.0.0.1"},
		"ip6": {"[" + here6 + "]", "[::1]"}} {
		t.Run(family, func(t *testing.T) {
			w := newWorld(t)
			if err := w.cmd.Load(w.ns, fmt.Sprintf(`table %s mine {
	chain end { udp dport 53 mark set 0x7 drop; }
	chain out { type filter hook output priority 0; udp dport 53 goto end; }
}`, family)); err != nil {
				t.Fatal(err)
			}
			from := c.here + ":4000"
			tracer := w.start(Config{Flow: flowOf(t, from+" -> "+c.here+":53/udp"), Packets: 5, Lifetime: time.Hour})
			hooks, err := tracer.Hooks()
			if err != nil {
				t.Fatal(err)
			}
			number := uint8(flowOf(t, c.here+":1").Family())
			if hook := hooks[Chain{number, "mine", "out"}]; hook != "output" || len(hooks) != 3 {
				t.Errorf("hooks: %v", hooks)
			}
			w.send(c.here+":4001", c.here+":53") // another port of the source
			w.send(from, c.here+":54")
			w.send(c.other+":4000", c.here+":53")
			w.send(from, c.here+":53")
			marked, e := w.next(tracer)
			want := Packet{Source: netip.MustParseAddrPort(from), Destination: netip.MustParseAddrPort(c.here + ":53")}
			if marked == nil || marked.Source != want.Source || marked.Destination != want.Destination || marked.Output == 0 ||
				marked.Input != 0 {
				t.Fatalf("marked %+v, want %+v by the loopback interface", marked, want)
			}
			if e.Kind != ByRule || e.Table != "mine" || e.Chain != "out" || e.Verdict != "goto end" || e.Handle == 0 ||
				e.Family != number || nft.FamilyText(e.Family) != family {
				t.Errorf("the first step: %+v", e)
			}
			_, last := w.next(tracer)
			if last.Kind != ByRule || last.Chain != "end" || last.Verdict != "drop" || last.Mark != 7 || last.ID != e.ID {
				t.Errorf("the second step: %+v", last)
			}
			// One packet of a connection is traced: the second one of the same is no first one
			// only once there was an answer, so the marks must end with the table.
			if err := tracer.StopMarking(); err != nil {
				t.Fatal(err)
			}
			if list := w.tables(); strings.Contains(list, TablePrefix) {
				t.Errorf("after the end there is\n%s", list)
			}
		})
	}
}

// TestKilled: the kernel removes the table of a trace that is killed, or the next trace does.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childVariable+"="+here4+":53/udp")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.ns.Start(child); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 64)
	n, err := out.Read(line)
	if err != nil || strings.TrimSpace(string(line[:n])) != "<nil>" {
		t.Fatalf("the child says %q, %v", line[:n], err)
	}
	list := w.tables()
	if !strings.Contains(list, TablePrefix) {
		t.Fatalf("the child has no table:\n%s", list)
	}
	owned := w.owned(strings.Fields(list)[2])
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Fatal("the child was not killed")
	}
	if list := w.tables(); strings.Contains(list, TablePrefix) != !owned {
		t.Errorf("the table had an owner: %v; after the kill there is\n%s", owned, list)
	}
}

// owned tells whether a table has an owner, as tables of a trace have where the kernel can (Linux 5.12).
func (w *world) owned(table string) bool {
	w.Helper()
	text, err := w.cmd.Run(w.ns, "", "list", "table", "ip", table)
	if err != nil {
		w.Fatal(err)
	}
	return strings.Contains(text, "flags owner")
}

// TestLeftOver: a trace removes the tables of earlier ones that a kernel without owners left,
// and no others. So does RemoveLeftOvers, which says which ones.
func TestLeftOver(t *testing.T) {
	w := newWorld(t)
	later := time.Now().Add(time.Hour).Unix()
	keep := []string{fmt.Sprintf("ip %s%d-abcdefgh", TablePrefix, later), "ip nftproxy", "ip " + TablePrefix + "mine",
		"inet other"}
	left := []string{"ip " + TablePrefix + "1000000000-abcdefgh", "ip6 " + TablePrefix + "1000000000-abcdefgh"}
	add := func(tables []string) {
		for _, table := range tables {
			if err := w.cmd.Load(w.ns, "add table "+table); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(want []string) {
		t.Helper()
		list := w.tables()
		for _, table := range want {
			if !strings.Contains(list, "table "+table+"\n") {
				t.Errorf("table %s is gone:\n%s", table, list)
			}
		}
		if n := strings.Count(list, "\n"); n != len(want) {
			t.Errorf("%d tables, want %d:\n%s", n, len(want), list)
		}
	}
	add(append(left, keep...))
	tracer := w.start(Config{Flow: flowOf(t, here4+":53"), Packets: 1, Lifetime: time.Second})
	keep = append(keep, "ip "+tracer.Table())
	check(keep)
	for _, want := range [][]string{left, nil} {
		add(want)
		var got []string
		if err := w.ns.Do(func() error {
			removed, err := RemoveLeftOvers()
			for _, id := range removed {
				got = append(got, id.String())
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("removed %q, want %q", got, want)
		}
		check(keep)
	}
}

// TestWithoutOwner: on a kernel without owners the table is there without one, and the mark
// ends with its time.
func TestWithoutOwner(t *testing.T) {
	w := newWorld(t)
	tracer := w.start(Config{Flow: flowOf(t, here4+":53/udp"), Packets: 1, Lifetime: time.Hour})
	if err := tracer.StopMarking(); err != nil {
		t.Fatal(err)
	}
	if err := w.ns.Do(func() error { return tracer.addTable(0) }); err != nil {
		t.Fatal(err)
	}
	tracer.marking = true
	text, err := w.cmd.Run(w.ns, "", "list", "table", "ip", tracer.Table())
	if err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{
		"flags timeout", "elements = { " + here4 + " timeout 1h", "type filter hook prerouting priority -190; policy accept;",
		"ip daddr @until udp dport 53 ct state new,untracked limit rate 10/second burst 1 packets meta nftrace set 1",
	} {
		if !strings.Contains(text, says) {
			t.Errorf("%q is not in\n%s", says, text)
		}
	}
	if strings.Contains(text, "owner") {
		t.Errorf("an owner:\n%s", text)
	}
}

// TestLost: events that come faster than they are read are lost, and Receive says so.
func TestLost(t *testing.T) {
	w := newWorld(t)
	const packets = 200
	tracer := w.start(Config{Flow: flowOf(t, here4+":53/udp"), Packets: packets, Lifetime: time.Hour})
	if err := tracer.events.SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	for i := range packets {
		w.send(fmt.Sprintf("%s:%d", here4, 5000+i), here4+":53")
	}
	for {
		if _, err := tracer.Receive(t.Context(), soon()); errors.Is(err, ErrLost) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	// It goes on, once what is queued has been read.
	drain(t, tracer)
	if err := tracer.StopMarking(); err != nil {
		t.Fatal(err)
	}
	if err := w.ns.Do(func() error { return tracer.addTable(0) }); err != nil {
		t.Fatal(err)
	}
	tracer.marking = true
	w.send(here4+":6000", here4+":53")
	for {
		e, err := tracer.Receive(t.Context(), soon())
		if err != nil && !errors.Is(err, ErrLost) {
			t.Fatal(err)
		}
		if e.Packet != nil && e.Packet.Source.Port() == 6000 {
			return
		}
	}
}

// soon is when an event must have come.
func soon() time.Time { return time.Now().Add(30 * time.Second) }

// drain reads what is queued.
func drain(t *testing.T, tracer *Tracer) {
	t.Helper()
	for {
		switch _, err := tracer.Receive(t.Context(), time.Time{}); {
		case errors.Is(err, ErrDeadline):
			return
		case err != nil && !errors.Is(err, ErrLost):
			t.Fatal(err)
		}
	}
}

// TestNoEvent: Receive ends at the deadline and with the context, and returns what is queued
// before it does.
func TestNoEvent(t *testing.T) {
	w := newWorld(t)
	tracer := w.start(Config{Flow: flowOf(t, here4+":53/udp"), Packets: 1, Lifetime: time.Hour})
	if _, err := tracer.Receive(t.Context(), time.Now().Add(20*time.Millisecond)); !errors.Is(err, ErrDeadline) {
		t.Errorf("at the deadline: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := tracer.Receive(ctx, soon()); !errors.Is(err, ErrDeadline) || ctx.Err() == nil {
		t.Errorf("at the end of the context: %v", err)
	}
	if _, err := tracer.Receive(ctx, soon()); !errors.Is(err, ErrDeadline) {
		t.Errorf("after the end of the context: %v", err)
	}
	w.send(here4+":4000", here4+":53")
	if _, err := tracer.Receive(ctx, time.Time{}); err != nil {
		t.Errorf("what is queued: %v", err)
	}
}
