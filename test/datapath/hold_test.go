package datapath

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/look/inspect"
	"nftproxy/look/traffic"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/testnet"
)

// held is a node with a Service that holds connections while it has no endpoint, with every way in.
type held struct {
	network
	client, server *testnet.Pod
	conn           *kernel.Conn
	state          nft.State
	program        *nft.Program
	// room is how many connections the table remembers as those that have waited; 0 for as many as it does.
	room uint32
}

func newHeld(t *testing.T) *held {
	w := &held{network: newNetwork(t)}
	var err error
	w.client, err = w.AddPod("client")
	w.must(err)
	w.server, err = w.AddPod("server")
	w.must(err)
	w.conn, err = kernel.Open(kernel.Config{NetNS: w.Node.Fd()})
	w.must(err)
	t.Cleanup(func() { w.must(w.conn.Close()) })
	for _, a := range w.server.Addrs {
		for _, protocol := range []string{testnet.TCP, testnet.UDP} {
			_, err := w.server.NS.Serve(protocol, netip.AddrPortFrom(a, port), "server")
			w.must(err)
		}
	}
	w.routeBalancers()
	return w
}

// serve applies the rules of the Service with this policy for connections from outside, for these endpoints' weight; no
// endpoints by a weight below 0.
func (w *held) serve(hold, policy string, weight int) {
	w.Helper()
	endpoints, ranged := "", ""
	if weight >= 0 {
		for _, a := range w.server.Addrs {
			endpoints += fmt.Sprintf("    endpoint %v n ready serving weight=%d\n", netip.AddrPortFrom(a, port), weight)
			ranged += fmt.Sprintf("    endpoint %v n ready serving weight=%d\n", netip.AddrPortFrom(a, 0), weight)
		}
	}
	w.program = w.compile(fmt.Sprintf(`service a/web created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  cluster-ip fd00:96::1
  external-ip 198.51.100.2
  external-ip fd00:99::2
  load-balancer-ip 198.51.100.1
  load-balancer-ip fd00:99::1
  external-policy %s
  option no-endpoints %s
  option port-ranges 8080-8081/TCP
  port t tcp 80 node-port 30080
%[3]s  port u udp 80 node-port 30080
%[3]s  port ranges tcp ranges=8080-8081
%[4]s`, policy, hold, endpoints, ranged), "0.0.0.0/0", "::/0")
	const before = "held-before"
	for _, f := range nft.Families() {
		table := w.program.Table(f)
		if set := table.Set(before); set != nil && w.room > 0 {
			small := *set
			small.Size = w.room
			table.Sets = table.Sets.Set(before, &small)
		}
	}
	batch, next := w.state.Plan(w.program, time.Time{})
	w.must(w.conn.Apply(batch))
	w.state = next
}

// waiting returns how many connections are held.
func (w *held) waiting() (h inspect.Held) {
	w.Helper()
	for _, f := range nft.Families() {
		frontends := map[ruleset.Place]ruleset.Reach{}
		for at, r := range ruleset.Frontends(w.program.Table(f).Parts.At("a/web")) {
			r.Holds = r.Holds || frontends[at].Holds
			frontends[at] = r
		}
		err := inspect.EachHeld(w.conn, w.program.Table(f).ID(), func(at ruleset.Place) (r ruleset.Reach, found bool) {
			r, found = frontends[at]
			return r, found
		}, func(_ ruleset.Place, waited time.Duration) { h.Add(waited) })
		w.must(err)
	}
	return h
}

// await waits until a number of connections are held. The kernel tells nobody of elements that rules add, so it asks.
func (w *held) await(n int) {
	w.Helper()
	for start := time.Now(); w.waiting().Connections < n; time.Sleep(10 * time.Millisecond) {
		if time.Since(start) > limit {
			w.Fatalf("%s, want %d", w.waiting(), n)
		}
	}
}

// way is a client and what it asks.
type way struct {
	name string
	from *testnet.Namespace
	to   netip.AddrPort
}

func (w *held) ways() []way {
	var list []way
	for i, family := range []string{"IPv4", "IPv6"} {
		add := func(name string, from *testnet.Namespace, to string, port uint16) {
			list = append(list, way{name + ", " + family, from, netip.AddrPortFrom(netip.MustParseAddr(to), port)})
		}
		cluster := []string{"10.96.0.1", "fd00:96::1"}[i]
		add("cluster IP", w.client.NS, cluster, 80)
		add("cluster IP from the node", w.Node, cluster, 80)
		add("range of ports", w.client.NS, cluster, port)
		add("load balancer", w.Outside, []string{"198.51.100.1", "fd00:99::1"}[i], 80)
		add("external IP", w.Outside, []string{"198.51.100.2", "fd00:99::2"}[i], 80)
		add("range at an external IP", w.Outside, []string{"198.51.100.2", "fd00:99::2"}[i], port)
		add("node port", w.Outside, w.NodeAddrs[i].String(), 30080)
		add("node port from the node", w.Node, w.NodeAddrs[i].String(), 30080)
	}
	return list
}

// askAll asks all ways at once, and calls then while the questions are under way.
func (w *held) askAll(ways []way, then func()) []testnet.Answer {
	w.Helper()
	answers, failed := make([]testnet.Answer, len(ways)), make(chan error)
	for i, way := range ways {
		go func() {
			var err error
			answers[i], err = way.from.Ask(w.Context(), testnet.TCP, way.to, limit)
			failed <- err
		}()
	}
	then()
	for range ways {
		w.must(<-failed)
	}
	return answers
}

// TestHold: clients of a Service without endpoints wait, whichever way they come, and reach the first endpoint by the
// next packet that their kernel sends.
func TestHold(t *testing.T) {
	for _, policy := range []string{"Cluster", "Local"} {
		for _, before := range []int{-1, 0} { // no endpoints, and only some of weight 0
			t.Run(fmt.Sprintf("policy %s, weight %d", policy, before), func(t *testing.T) { testHold(t, policy, before) })
		}
	}
}

func testHold(t *testing.T, policy string, before int) {
	w := newHeld(t)
	ways := w.ways()
	w.serve("hold", policy, before)
	start := time.Now()
	answers := w.askAll(ways, func() {
		w.await(len(ways))
		const tick = 10 * time.Millisecond // of the kernel's clock at most; it rounds both times up
		if h, began := w.waiting(), time.Since(start); h.Longest < 0 || h.Longest > began+2*tick {
			t.Errorf("they have waited for %v, though they began %v ago", h.Longest, began)
		}
		w.serve("hold", policy, 100)
	})
	for i, a := range answers {
		if a.Outcome != testnet.Answered || a.Attempts < 2 {
			t.Errorf("%s: %+v", ways[i].name, a)
		}
		t.Logf("%s: by attempt %d, after %v", ways[i].name, a.Attempts, a.Took.Round(time.Millisecond))
	}
}

// TestHoldEnds: after the hold time a connection is refused, and the next one waits again.
func TestHoldEnds(t *testing.T) {
	w := newHeld(t)
	w.serve("hold=1s", "Cluster", -1)
	ways := w.ways()
	for range 2 {
		for i, a := range w.askAll(ways, func() {}) {
			if a.Outcome != testnet.Refused || !a.Reset || a.Attempts < 2 {
				t.Errorf("%s: %+v", ways[i].name, a)
			}
		}
	}
}

// TestHoldFull: a connection that the kernel has no room to remember is not refused at the end of the hold time, but
// waits on. The next look at the counters says so.
func TestHoldFull(t *testing.T) {
	w := newHeld(t)
	w.room = 1
	w.serve("hold=1s", "Cluster", -1)
	counter := traffic.NewRefusalCounter(w.conn, time.Now, conntrack.ThreadTime)
	counter.Follow(w.program)
	look := func() traffic.Refusals {
		l := counter.Look()
		w.must(l.Err)
		return l
	}
	if l := look(); l.HeldFull || len(l.Held) > 0 {
		t.Errorf("before any connection: full %t, %v", l.HeldFull, l.Held)
	}
	ways := w.ways()[:2]
	first := w.askAll(ways[:1], func() {
		w.await(1)
		if l := look(); l.HeldFull || len(l.Held) != 1 || l.Held[0].Connections != 1 {
			t.Errorf("one connection: full %t, %v", l.HeldFull, l.Held)
		}
		const patience = 4 * time.Second // less than the time for which the first one is remembered
		a, err := ways[1].from.Ask(w.Context(), testnet.TCP, ways[1].to, patience)
		if w.must(err); a.Outcome != testnet.TimedOut {
			t.Errorf("%s: %+v", ways[1].name, a)
		}
	})
	if first[0].Outcome != testnet.Refused {
		t.Errorf("%s: %+v", ways[0].name, first[0])
	}
	if l := look(); !l.HeldFull {
		t.Error("the kernel has no room, and nothing says so")
	}
}

// TestHoldUDP: datagrams are dropped, and refused when they still come after the hold time.
func TestHoldUDP(t *testing.T) {
	w := newHeld(t)
	w.serve("hold=1s", "Cluster", -1)
	for _, to := range []string{"10.96.0.1:80", "[fd00:96::1]:80"} {
		conn, err := w.client.NS.Dial(t.Context(), "udp", to)
		w.must(err)
		defer conn.Close()
		start, sent := time.Now(), 0
		for err = errors.New("no answer yet"); !errors.Is(err, unix.ECONNREFUSED); sent++ {
			if time.Since(start) > limit {
				t.Fatalf("%s: %v after %d datagrams", to, err, sent)
			}
			if _, err = conn.Write([]byte("?")); err == nil {
				w.must(conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)))
				_, err = conn.Read(make([]byte, 1))
			}
		}
		if sent < 2 {
			t.Errorf("%s: refused at once", to)
		}
	}
}

// TestHoldMidstream: a packet of a connection that nobody knows any more is reset at once, and does not count as one
// that waits.
func TestHoldMidstream(t *testing.T) {
	w := newHeld(t)
	w.serve("hold", "Cluster", 100)
	var open []io.ReadWriteCloser
	for _, to := range []string{"10.96.0.1:80", "[fd00:96::1]:80", "10.96.0.1:8080"} {
		conn, err := w.client.NS.Dial(t.Context(), "tcp", to)
		w.must(err)
		defer conn.Close()
		w.must(conn.SetDeadline(time.Now().Add(limit)))
		_, err = conn.Read(make([]byte, 1)) // the server's first byte
		w.must(err)
		open = append(open, conn)
	}
	w.serve("hold", "Cluster", -1)
	w.must(w.Node.FlushConntrack())
	for _, conn := range open {
		_, err := conn.Write([]byte("still there?\n"))
		w.must(err)
		if _, err = io.Copy(io.Discard, conn); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the connection ends with %v", err)
		}
	}
	if h := w.waiting(); h.Connections > 0 {
		t.Errorf("%s", h)
	}
}

// TestHoldRestart: another process takes the tables over as they are, with the connections that wait.
func TestHoldRestart(t *testing.T) {
	w := newHeld(t)
	w.serve("hold=30s", "Cluster", -1)
	ways := w.ways()[:1]
	answers := w.askAll(ways, func() {
		w.await(1)
		read, err := w.conn.Read(w.program)
		w.must(err)
		w.state = nft.Adopt(read, w.program)
		if batch, _ := w.state.Plan(w.program, time.Time{}); !batch.Empty() {
			t.Errorf("after a restart the tables differ:\n%s", batch)
		}
		back := ruleset.ReadBack(read, ruleset.DefaultTable, &service.Node{Name: "n"})
		if s := back.Services.At("a/web"); s == nil || s.Options.Hold != 30*time.Second {
			t.Errorf("read back: %v", strings.TrimSpace(fmt.Sprint(s)))
		}
		w.await(1)
		w.serve("hold=30s", "Cluster", 100)
	})
	if a := answers[0]; a.Outcome != testnet.Answered {
		t.Errorf("%+v", a)
	}
}
