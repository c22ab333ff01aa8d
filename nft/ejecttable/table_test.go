package ejecttable_test

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"nftproxy/nft/ejecttable"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

const (
	answering, silent = 8080, 8081 // the endpoint's ports, and those of the service address
	// limit is for what has to happen some time. A client repeats its first packet after a second.
	limit = time.Minute
)

// world has clients in a pod, on the node and outside, and an endpoint of which one port does not answer. The node
// translates the service addresses, and its own address for the client outside.
type world struct {
	testing.TB
	topology *testnet.Topology
	table    *ejecttable.Table
	cmd      netfilter.NFT
	clients  map[string]*testnet.Namespace
	services testnet.Addrs
	endpoint *testnet.Pod
}

func open(t testing.TB, ns *testnet.Namespace, hears bool) *ejecttable.Table {
	t.Helper()
	table, err := ejecttable.Open("nftproxy", ns.Fd(), hears)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = table.Close() })
	return table
}

func newWorld(t testing.TB) *world {
	w := &world{TB: t, topology: testnet.NewForTest(t, testnet.Config{}), cmd: netfilter.NFTForTest(t)}
	client, err := w.topology.AddPod("client")
	if err != nil {
		t.Fatal(err)
	}
	if w.endpoint, err = w.topology.AddPod("endpoint"); err != nil {
		t.Fatal(err)
	}
	w.clients = map[string]*testnet.Namespace{"pod": client.NS, "node": w.topology.Node, "outside": w.topology.Outside}
	w.services = testnet.Addrs{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}
	rules := ""
	for _, a := range w.endpoint.Addrs {
		for _, port := range []uint16{answering, silent} {
			if _, err := w.endpoint.NS.Serve(testnet.TCP, netip.AddrPortFrom(a, port), "endpoint"); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.endpoint.NS.Cut(netip.AddrPortFrom(a, silent)); err != nil {
			t.Fatal(err)
		}
		family, service, node := "ip", w.services.V4(), w.topology.NodeAddrs.V4()
		if a.Is6() {
			family, service, node = "ip6", w.services.V6(), w.topology.NodeAddrs.V6()
		}
		for _, hook := range []string{"prerouting", "output"} {
			rules += fmt.Sprintf("table %s nat { chain %s { type nat hook %s priority -100; %s daddr { %s, %s } meta l4proto "+
				"{ tcp, udp } th dport { %d, %d } dnat to %s; }; }\n",
				family, hook, hook, family, service, node, answering, silent, a)
		}
	}
	if err := w.cmd.Load(w.topology.Node, rules); err != nil {
		t.Fatal(err)
	}
	w.table = open(t, w.topology.Node, true)
	w.repeats() // makes the table
	return w
}

func (w *world) repeats() uint64 {
	w.Helper()
	n, err := w.table.Repeats()
	if err != nil {
		w.Fatal(err)
	}
	return n
}

// targetOf is where a client reaches the endpoint's port by the rules.
func (w *world) targetOf(client string, v6 bool, port uint16) string {
	addrs := w.services
	if client == "outside" {
		addrs = w.topology.NodeAddrs
	}
	if v6 {
		return netip.AddrPortFrom(addrs.V6(), port).String()
	}
	return netip.AddrPortFrom(addrs.V4(), port).String()
}

// A first packet that is repeated is counted, wherever its client is. What has an answer is not counted, nor datagrams,
// nor connections without translation.
func TestRepeats(t *testing.T) {
	w := newWorld(t)
	slowest := time.Duration(0)
	for name, client := range w.clients {
		for _, v6 := range []bool{false, true} {
			for range 5 {
				began := time.Now()
				conn, err := client.Dial(t.Context(), "tcp", w.targetOf(name, v6, answering))
				slowest = max(slowest, time.Since(began))
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(conn, "?")
				if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
					t.Error(err)
				}
				conn.Close()
				datagram, err := client.Dial(t.Context(), "udp", w.targetOf(name, v6, silent))
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					_, _ = datagram.Write([]byte("x")) // The endpoint refuses it.
				}
				datagram.Close()
			}
		}
	}
	// enough for one repetition, which nothing asserts
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	if conn, err := w.clients["pod"].Dial(ctx, "tcp", netip.AddrPortFrom(w.endpoint.Addrs.V4(),
		silent).String()); err == nil {
		conn.Close()
		t.Error("the port answers")
	}
	cancel()
	before := w.repeats()
	if before != 0 && slowest < time.Second { // Otherwise the client may have repeated its packet.
		t.Errorf("%d counted, although all had an answer after %v", before, slowest)
	}
	for name, client := range w.clients {
		for _, v6 := range []bool{false, true} {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			ended := make(chan error)
			go func() {
				conn, err := client.Dial(ctx, "tcp", w.targetOf(name, v6, silent))
				if err == nil {
					conn.Close()
				}
				ended <- err
			}()
			for w.repeats() == before {
				if ctx.Err() != nil {
					t.Fatalf("client %s, v6 %v: nothing counted", name, v6)
				}
				time.Sleep(20 * time.Millisecond)
			}
			cancel()
			if err := <-ended; err == nil {
				t.Error("the port answers")
			}
			before = w.repeats()
		}
	}
}

// nft lists the table and takes it back. A table that another program removes is made anew; Remove removes it.
func TestTable(t *testing.T) {
	w := newWorld(t)
	listing := func() string {
		text, err := w.cmd.Run(w.topology.Node, "", "list", "table", "inet", "nftproxy-eject")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	text := listing()
	for _, want := range []string{"counter repeats {", "ct state == new meta l4proto tcp ct status ",
		`counter name "repeats" comment "a first packet again`} {
		if !strings.Contains(text, want) {
			t.Errorf("nft lists\n%s\nwithout %s", text, want)
		}
	}
	if err := w.cmd.Load(w.topology.Node, "delete table inet nftproxy-eject\n"+text); err != nil {
		t.Fatal(err)
	}
	if again := listing(); again != text {
		t.Errorf("nft takes back\n%s\nwant\n%s", again, text)
	}
	if err := w.cmd.Load(w.topology.Node, "flush ruleset"); err != nil {
		t.Fatal(err)
	}
	if n := w.repeats(); n != 0 {
		t.Errorf("%d in a new table", n)
	}
	if again := listing(); again != text {
		t.Errorf("made anew:\n%s\nwant\n%s", again, text)
	}
	if err := w.topology.Node.Do(func() error {
		for _, want := range []bool{true, false} {
			if removed, err := ejecttable.Remove("nftproxy"); err != nil || removed != want {
				return fmt.Errorf("removed: %v, %v; want %v", removed, err, want)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// BenchmarkRepeats is what one request for the counter costs.
func BenchmarkRepeats(b *testing.B) {
	ns := testnet.NamespaceForTest(b, "repeats")
	table := open(b, ns, true)
	for b.Loop() {
		if _, err := table.Repeats(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEstablished sends datagrams of an established flow to the endpoint, with and without the rule in rounds of
// 20,000 that follow each other, each behind one that does not count. It reports the time for each datagram, and the
// median ratio of the two.
func BenchmarkEstablished(b *testing.B) {
	const round = 20_000
	w := newWorld(b)
	server, err := w.endpoint.NS.Serve(testnet.UDP, netip.AddrPortFrom(w.endpoint.Addrs.V4(), answering), "endpoint")
	if err != nil {
		b.Fatal(err)
	}
	conn, err := w.clients["pod"].Dial(b.Context(), "udp", w.targetOf("pod", false, answering))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	answer := make([]byte, 100)
	if _, err := conn.Write([]byte("?")); err != nil {
		b.Fatal(err)
	}
	if _, err := conn.Read(answer); err != nil {
		b.Fatal(err)
	}
	server.Close() // Refusals of a closed port cost more than a full queue, so another socket takes the packets.
	taker, err := w.endpoint.NS.ListenPacket(b.Context(), "udp", netip.AddrPortFrom(w.endpoint.Addrs.V4(),
		answering).String())
	if err != nil {
		b.Fatal(err)
	}
	defer taker.Close()
	send := func() time.Duration {
		began := time.Now()
		for range round {
			_, _ = conn.Write([]byte("?"))
		}
		return time.Since(began)
	}
	var ratios []float64
	var with, without time.Duration
	for b.Loop() {
		w.repeats()
		send()
		on := send()
		if err := w.cmd.Load(w.topology.Node, "delete table inet nftproxy-eject"); err != nil {
			b.Fatal(err)
		}
		send()
		off := send()
		ratios = append(ratios, float64(on)/float64(off))
		with, without = with+on, without+off
	}
	slices.Sort(ratios)
	packets := float64(round * len(ratios))
	b.ReportMetric(float64(without.Nanoseconds())/packets, "ns/packet-without")
	b.ReportMetric(float64(with.Nanoseconds())/packets, "ns/packet-with")
	b.ReportMetric(ratios[len(ratios)/2], "ratio")
}
