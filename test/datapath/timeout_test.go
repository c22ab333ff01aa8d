package datapath

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// The time-outs that timeoutObjects give to connections, all longer than the node's, and the node's own. The test is
// far from any of them, however slow the machine.
const (
	unreplied   = 50_000 * time.Second
	replied     = 90_000 * time.Second
	established = 70_000 * time.Second
	ofNode      = 7_000 * time.Second
)

// timeoutObjects is a table in front of ours, as an option of a Service would have it: the first packet meets it
// untranslated.
const timeoutObjects = `table ip timeouts {
	ct timeout datagrams { protocol udp; l3proto ip; policy = { unreplied : 50000, replied : 90000 }; }
	ct timeout streams { protocol tcp; l3proto ip; policy = { established : 70000 }; }
	chain datagrams {
		ct timeout set "datagrams"
	}
	chain streams {
		ct timeout set "streams"
	}
	map services {
		typeof ip daddr . meta l4proto . th dport : verdict
		elements = { 10.96.0.1 . udp . 80 : goto datagrams, 10.96.0.1 . tcp . 80 : goto streams }
	}
	chain prerouting {
		type nat hook prerouting priority -110
		ip daddr . meta l4proto . th dport vmap @services
	}
}`

// otherTimeouts asks for other time-outs of an object that is there.
const otherTimeouts = "add ct timeout ip timeouts datagrams { protocol udp; l3proto ip; policy = { unreplied : " +
	"60000, replied : 99000 }; }\n"

// haveTimeouts adds the objects.
func (w *world) haveTimeouts() {
	w.Helper()
	if err := w.nft.Load(w.Node, timeoutObjects); err != nil {
		w.Skipf("this kernel has no objects of time-outs (CONFIG_NF_CONNTRACK_TIMEOUT): %v", err)
	}
}

// setTimeouts sets the node's time-outs.
func (w *world) setTimeouts() {
	w.Helper()
	for _, name := range []string{"udp_timeout", "udp_timeout_stream", "tcp_timeout_established"} {
		w.must(w.Node.Sysctl("net.netfilter.nf_conntrack_"+name, fmt.Sprint(ofNode.Seconds())))
	}
}

// wantTimeout repeats the traffic until the client's one connection to the Service has a time-out of more than low, and
// at most high, and returns it.
func (c client) wantTimeout(p service.Protocol, low, high time.Duration, traffic func()) conntrack.Flow {
	c.Helper()
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		traffic()
		flows := c.flows(p)
		if len(flows) == 1 && flows[0].Timeout > low && flows[0].Timeout <= high {
			return flows[0]
		}
		if time.Since(start) > limit {
			c.Fatalf("%v flows %+v, want one with a time-out of %v at most and more than %v", p, flows, high, low)
		}
	}
}

// TestTimeoutObjects: a connection has the time-outs of the object that its first packet met, which never change. When
// the object is deleted, the connection stays, and its next packet gives it the node's time-outs. An object that comes
// back does not have it again.
func TestTimeoutObjects(t *testing.T) {
	w := newWorld(t)
	w.haveTimeouts()
	w.setTimeouts()
	c := newClient(w)
	ask := func() { c.ask(1, port) }
	// Some kernels may refuse this. None heeds it: an object never changes.
	if err := w.nft.Load(w.Node, otherTimeouts); err != nil {
		t.Logf("other time-outs for an object: %v", err)
	}
	// nobody answers this
	c.wantTimeout(service.UDP, ofNode, unreplied, func() { _, err := c.conn.Write([]byte(".")); w.must(err) })
	datagrams := c.wantTimeout(service.UDP, unreplied, replied, ask) // The kernel calls it a stream after two seconds.
	conn, err := w.client.NS.Dial(w.Context(), "tcp", w.clusterIP.String())
	w.must(err)
	defer conn.Close()
	w.must(conn.SetDeadline(time.Now().Add(2 * limit)))
	write := func() { _, err := conn.Write([]byte{0}); w.must(err) }
	stream := c.wantTimeout(service.TCP, ofNode, established, write)

	if _, err := w.nft.Run(w.Node, "", "delete", "ct", "timeout", "ip", "timeouts", "datagrams"); err == nil {
		t.Error("the kernel deletes an object that a rule names")
	}
	w.delete("ip", "timeouts")
	if got := c.wantTimeout(service.UDP, unreplied, replied, func() {}); got.ID != datagrams.ID {
		t.Errorf("flow %+v without the object, want %+v", got, datagrams)
	}
	if got := c.wantTimeout(service.UDP, 0, ofNode, ask); got.ID != datagrams.ID {
		t.Errorf("flow %+v after its next packet, want %+v", got, datagrams)
	}
	if got := c.wantTimeout(service.TCP, 0, ofNode, write); got.ID != stream.ID {
		t.Errorf("flow %+v after its next packet, want %+v", got, stream)
	}
	w.haveTimeouts()
	ask()
	if got := c.flows(service.UDP); len(got) != 1 || got[0].ID != datagrams.ID || got[0].Timeout > ofNode {
		t.Errorf("flows %+v with the object back, want %+v with the node's time-outs", got, datagrams)
	}
}

// queue gives each packet to port 9 to a program, which decides about none of them.
const queue = `table ip waiting {
	counter other { }
	chain output { type filter hook output priority 0; udp dport 9 queue num 5; }
}`

// The kernel's numbers for programs that decide about packets (Linux, nfnetlink_queue.h).
const (
	queueConfig  = 2 // NFQNL_MSG_CONFIG
	queueCommand = 1 // NFQA_CFG_CMD
	queueParams  = 2 // NFQA_CFG_PARAMS
)

// TestDeletedTimeoutAndQueued says what a deleted object of time-outs does to a packet that waits for a program's
// decision, and that belongs to another connection: some kernels drop every packet that waits.
func TestDeletedTimeoutAndQueued(t *testing.T) {
	w := newWorld(t)
	w.haveTimeouts()
	w.setTimeouts()
	c := newClient(w)
	ask := func() { c.ask(1, port) }
	c.wantTimeout(service.UDP, ofNode, replied, ask)
	if err := w.nft.Load(w.Node, queue); err != nil {
		t.Skipf("this kernel has no queues: %v", err)
	}
	program, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.Node.Fd()})
	w.must(err)
	defer program.Close()
	for _, attr := range []netlink.Attribute{
		{Type: queueCommand, Data: []byte{1, 0, 0, unix.AF_INET}},
		{Type: queueParams, Data: []byte{0, 0, 1, 0, 2}}, // 256 bytes of each packet
	} {
		data, err := netlink.MarshalAttributes([]netlink.Attribute{attr})
		w.must(err)
		_, err = program.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_QUEUE<<8 | queueConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 5}, data...),
		})
		w.must(err)
	}
	conn, err := w.Node.Dial(w.Context(), "udp", "10.96.0.2:9")
	w.must(err)
	defer conn.Close()
	_, err = conn.Write([]byte{0})
	w.must(err)
	waiting := func() string {
		var text []byte
		w.must(w.Node.Do(func() (err error) {
			text, err = os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
			return err
		}))
		return strings.Fields(string(text))[2]
	}
	_, err = w.nft.Run(w.Node, "", "delete", "counter", "ip", "waiting", "other")
	w.must(err)
	if n := waiting(); n != "1" {
		t.Fatalf("%s packets wait, want 1", n)
	}
	w.must(w.nft.Load(w.Node, "flush chain ip timeouts datagrams; delete ct timeout ip timeouts datagrams;"))
	c.wantTimeout(service.UDP, 0, ofNode, ask) // The kernel has deleted it.
	t.Logf("%s packets of 1 still wait", waiting())
}

// BenchmarkDeletedTimeouts deletes 64 objects beside connections: with each object the kernel walks through all of
// them.
func BenchmarkDeletedTimeouts(b *testing.B) {
	const objects = 64
	var timeouts, counters strings.Builder
	for i := range objects {
		fmt.Fprintf(&timeouts, "ct timeout o%d { protocol udp; l3proto ip; policy = { unreplied : %d }; }\n", i, 1000+i)
		fmt.Fprintf(&counters, "counter o%d { }\n", i)
	}
	for _, connections := range []int{0, 60_000} {
		for _, kind := range []struct{ name, list string }{{"timeouts", timeouts.String()}, {"counters", counters.String()}} {
			b.Run(fmt.Sprintf("%s/%d", kind.name, connections), func(b *testing.B) {
				node, nft := testnet.NewForTest(b, testnet.Config{}).Node, netfilter.NFTForTest(b)
				if err := nft.Load(node,
					"table ip track { chain output { type filter hook output priority 0; ct state new; }; }"); err != nil {
					b.Fatal(err)
				}
				fillTable(b, node, connections)
				for b.Loop() {
					b.StopTimer()
					err := nft.Load(node, "table ip objects {\n"+kind.list+"}")
					b.StartTimer()
					if err == nil {
						_, err = nft.Run(node, "", "delete", "table", "ip", "objects")
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*objects), "us/object")
			})
		}
	}
}

// fillTable makes connections of the node with itself.
func fillTable(b *testing.B, node *testnet.Namespace, connections int) {
	b.Helper()
	conn, err := node.ListenPacket(b.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	for i := range connections {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}), 9)
		if _, err := conn.WriteTo([]byte{0}, net.UDPAddrFromAddrPort(to)); err != nil {
			b.Fatal(err)
		}
	}
}
