package datapath

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/test/lib/testnet"
)

// The node's time-outs of a test of Services' own. They are longer than those of the Services, and the test ends long
// before any.
const (
	nodeUnreplied   = 200_000 * time.Second
	nodeReplied     = 300_000 * time.Second
	nodeEstablished = 900_000 * time.Second
)

// timed is a node with Services in both families: one that asks for time-outs, with every way in, and one that does
// not.
type timed struct {
	network
	client, server *testnet.Pod
	conn           *kernel.Conn
	table          *conntrack.Table
	state          nft.State
	program        *nft.Program
}

func newTimed(t *testing.T) *timed {
	w := &timed{network: newNetwork(t)}
	var err error
	w.client, err = w.AddPod("client")
	w.must(err)
	w.server, err = w.AddPod("server")
	w.must(err)
	w.conn, err = kernel.Open(kernel.Config{NetNS: w.Node.Fd()})
	w.must(err)
	t.Cleanup(func() { w.must(w.conn.Close()) })
	if err := w.conn.TryTimeouts(); err != nil {
		t.Skipf("this kernel has no objects of time-outs: %v", err)
	}
	w.table, err = conntrack.Open(conntrack.Config{NetNS: w.Node.Fd()})
	w.must(err)
	t.Cleanup(func() { w.must(w.table.Close()) })
	for name, d := range map[string]time.Duration{"udp_timeout": nodeUnreplied, "udp_timeout_stream": nodeReplied,
		"tcp_timeout_established": nodeEstablished} {
		w.must(w.Node.Sysctl("net.netfilter.nf_conntrack_"+name, fmt.Sprint(d.Seconds())))
	}
	w.routeBalancers()
	return w
}

// options are lines of the snapshot's text.
const options = "option port-ranges 8080-8081/TCP,8080-8081/UDP\noption tcp-established-timeout 2h\noption " +
	"udp-timeouts 10m,24h\n"

// serve applies the rules of both Services. The first one has these options.
func (w *timed) serve(options string) {
	w.Helper()
	endpoints, rangePorts := "", ""
	for _, a := range w.server.Addrs {
		endpoints += fmt.Sprintf("    endpoint %v n ready serving\n", netip.AddrPortFrom(a, port))
	}
	if strings.Contains(options, "port-ranges") {
		addresses := strings.ReplaceAll(endpoints, fmt.Sprintf(":%d n", port), ":0 n")
		rangePorts = "  port ranges tcp ranges=8080-8081\n" + addresses + "  port ranges udp ranges=8080-8081\n" + addresses
	}
	text := fmt.Sprintf(`service a/plain created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.2
  cluster-ip fd00:96::2
  port t tcp 80
ENDPOINTS
  port u udp 80
ENDPOINTS
service a/timed created 2026-01-01T00:00:00Z
  cluster-ip 10.96.0.1
  cluster-ip fd00:96::1
  load-balancer-ip 198.51.100.1
  load-balancer-ip fd00:99::1
%s  port t tcp 80 node-port 30080
ENDPOINTS
  port u udp 80 node-port 30080
ENDPOINTS
%s`, options, rangePorts)
	w.program = w.compile(strings.ReplaceAll(text, "ENDPOINTS\n", endpoints), "0.0.0.0/0", "::/0")
	batch, next := w.state.Plan(w.program, time.Time{})
	w.must(w.conn.Apply(batch))
	w.state = next
}

// connect makes a connection, and returns its entry once it has a time-out of at most high and more than low. A flow of
// UDP is asked again and again, since its entry needs answers over two seconds. One of TCP is asked once: the kernel
// takes a short time-out while data is not acknowledged (nf_conntrack_tcp_timeout_unacknowledged), and a client that
// has just read may acknowledge 40 ms later.
func (w *timed) connect(from *testnet.Namespace, p service.Protocol, to netip.AddrPort, low, high time.Duration,
	answers bool) conntrack.Flow {
	w.Helper()
	conn, err := from.Dial(w.Context(), strings.ToLower(p.String()), to.String())
	w.must(err)
	w.Cleanup(func() { conn.Close() })
	w.must(conn.SetDeadline(time.Now().Add(limit)))
	local := netip.MustParseAddrPort(conn.LocalAddr().String())
	for start, asked := time.Now(), false; ; time.Sleep(50 * time.Millisecond) {
		if !asked || p == service.UDP {
			_, err := conn.Write([]byte("?"))
			w.must(err)
			if answers {
				_, err = io.ReadFull(conn, make([]byte, 1))
				w.must(err)
			}
			asked = true
		}
		var found []conntrack.Flow
		w.must(w.table.Flows(w.Context(), conntrack.Filter{Protocol: p, Dst: to.Addr()}, func(f conntrack.Flow) error {
			if f.Original.Src == local {
				found = append(found, f)
			}
			return nil
		}))
		if len(found) == 1 && found[0].Timeout > low && found[0].Timeout <= high {
			return found[0]
		}
		if time.Since(start) > limit {
			w.Fatalf("%v from %v to %v: %+v, want a time-out of more than %v and at most %v", p, local, to, found, low, high)
		}
	}
}

// listen answers each byte and datagram at the endpoints.
func (w *timed) listen(answers bool) (stop func()) {
	w.Helper()
	var ends []io.Closer
	for _, a := range w.server.Addrs {
		at := netip.AddrPortFrom(a, port).String()
		listener, err := w.server.NS.Listen(w.Context(), "tcp", at)
		w.must(err)
		packets, err := w.server.NS.ListenPacket(w.Context(), "udp", at)
		w.must(err)
		ends = append(ends, listener, packets)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return // closed
				}
				go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
			}
		}()
		go func() {
			b := make([]byte, 64)
			for {
				n, from, err := packets.ReadFrom(b)
				if err != nil {
					return // closed
				}
				if answers {
					_, _ = packets.WriteTo(b[:n], from)
				}
			}
		}()
	}
	return func() {
		for _, end := range ends {
			w.must(end.Close())
		}
	}
}

// TestServiceTimeouts: connections to a Service have the time-outs that it asks for, by each way in and in both
// families, and those to other Services have the node's.
func TestServiceTimeouts(t *testing.T) {
	w := newTimed(t)
	w.serve(options)
	const unreplied, replied, established = 10 * time.Minute, 24 * time.Hour, 2 * time.Hour
	type way struct {
		name string
		from *testnet.Namespace
		to   [2]string // IPv4, IPv6
		port uint16
	}
	node := [2]string{w.NodeAddrs.V4().String(), w.NodeAddrs.V6().String()}
	ways := []way{
		{"cluster IP", w.client.NS, [2]string{"10.96.0.1", "fd00:96::1"}, 80},
		{"range of ports", w.client.NS, [2]string{"10.96.0.1", "fd00:96::1"}, port},
		{"cluster IP from the node", w.Node, [2]string{"10.96.0.1", "fd00:96::1"}, 80},
		{"load balancer", w.Outside, [2]string{"198.51.100.1", "fd00:99::1"}, 80},
		{"node port", w.Outside, node, 30080},
		{"node port from the node", w.Node, node, 30080},
	}
	for _, answers := range []bool{false, true} {
		stop := w.listen(answers)
		for _, way := range ways {
			for i := range way.to {
				to := netip.AddrPortFrom(netip.MustParseAddr(way.to[i]), way.port)
				if answers {
					w.connect(way.from, service.TCP, to, established/2, established, true)
					w.connect(way.from, service.UDP, to, unreplied, replied, true)
				} else {
					w.connect(way.from, service.UDP, to, 0, unreplied, false)
				}
				t.Logf("%s, %v: as asked for, answered %v", way.name, to, answers)
			}
		}
		for _, other := range []string{"10.96.0.2", "fd00:96::2"} {
			to := netip.AddrPortFrom(netip.MustParseAddr(other), 80)
			if answers {
				w.connect(w.client.NS, service.TCP, to, nodeReplied, nodeEstablished, true)
				w.connect(w.client.NS, service.UDP, to, nodeUnreplied, nodeReplied, true)
			} else {
				w.connect(w.client.NS, service.UDP, to, replied, nodeUnreplied, false)
			}
		}
		stop()
	}
}

// TestServiceTimeoutsChange: connections keep what they have when the annotations change or go, and when the process is
// another one. Objects stay, and the kernel has none twice.
func TestServiceTimeoutsChange(t *testing.T) {
	w := newTimed(t)
	w.serve(options)
	defer w.listen(true)()
	to := netip.MustParseAddrPort("10.96.0.1:80")
	w.connect(w.client.NS, service.TCP, to, time.Hour, 2*time.Hour, true)
	conn, err := w.client.NS.Dial(w.Context(), "tcp", to.String())
	w.must(err)
	defer conn.Close()
	local := netip.MustParseAddrPort(conn.LocalAddr().String())
	stays := func() {
		t.Helper()
		_, err := conn.Write([]byte("?"))
		w.must(err)
		_, err = io.ReadFull(conn, make([]byte, 1))
		w.must(err)
		w.must(w.table.Flows(w.Context(), conntrack.Filter{Protocol: service.TCP, Dst: to.Addr()},
			func(f conntrack.Flow) error {
				if f.Original.Src == local && f.Timeout > 2*time.Hour {
					t.Errorf("the connection has a time-out of %v, which it had not asked for", f.Timeout)
				}
				return nil
			}))
	}
	stays()
	w.serve("option tcp-established-timeout 72h\n")
	w.connect(w.client.NS, service.TCP, to, 24*time.Hour, 72*time.Hour, true)
	stays()
	w.serve("")
	w.connect(w.client.NS, service.TCP, to, 72*time.Hour, nodeEstablished, true)
	stays()

	// Another process adopts the tables. Nothing differs, though no Service wants the objects.
	read, err := w.conn.Read(w.program)
	w.must(err)
	for _, f := range nft.Families() {
		if got := len(read.Table(w.program.Table(f).ID()).Timeouts); got != 3 {
			t.Errorf("table %v: %d objects, want 3", f, got)
		}
	}
	w.state = nft.Adopt(read, w.program)
	if batch, _ := w.state.Plan(w.program, time.Time{}); !batch.Empty() {
		t.Errorf("after a restart the tables differ:\n%s", batch)
	}
	w.serve(options)
	w.connect(w.client.NS, service.TCP, to, time.Hour, 2*time.Hour, true)
	stays()
}
