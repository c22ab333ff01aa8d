package datapath

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/model/service"
	"nftproxy/nft"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/gen"
	"nftproxy/test/lib/testnet"
)

// nodeDNS is the kernel's own time-out for UDP before an answer, and for two seconds after it.
const nodeDNS = 30 * time.Second

// resolving is a node with a DNS Service, whose endpoints answer each query after the time that the query says.
type resolving struct {
	testing.TB
	*testnet.Topology
	table   *conntrack.Table
	service netip.AddrPort
	other   netip.AddrPort // a Service of TCP
}

// query is what a client sends, and gets back: its number, and after how many milliseconds endpoint 0 and all others
// answer it. Those of never are not answered.
type query struct {
	number        uint32
	first, others uint16
}

const never = 0xffff

func (q query) bytes() []byte {
	b := binary.BigEndian.AppendUint32(nil, q.number)
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, q.first), q.others)
}

// newResolving makes the node, with rules by the value of --nftproxy-dns-udp-timeouts.
func newResolving(t testing.TB, timeouts string, endpoints int) *resolving {
	w := &resolving{TB: t, Topology: testnet.NewForTest(t, testnet.Config{}),
		service: netip.MustParseAddrPort("10.96.0.10:53"), other: netip.MustParseAddrPort("10.96.0.11:80")}
	conn, err := kernel.Open(kernel.Config{NetNS: w.Node.Fd()})
	w.must(err)
	defer conn.Close()
	if err := conn.TryTimeouts(); err != nil {
		t.Skipf("this kernel has no objects of time-outs: %v", err)
	}
	for _, name := range []string{"udp_timeout", "udp_timeout_stream"} {
		w.must(w.Node.Sysctl("net.netfilter.nf_conntrack_"+name, fmt.Sprint(nodeDNS.Seconds())))
	}
	w.table, err = conntrack.Open(conntrack.Config{NetNS: w.Node.Fd()})
	w.must(err)
	t.Cleanup(func() { w.must(w.table.Close()) })
	text := &strings.Builder{}
	const created = "created 2026-01-01T00:00:00Z"
	fmt.Fprintf(text, "node n\n  address %v\nservice a/dns %s\n  cluster-ip %v\n  port u udp 53\n", w.NodeAddrs.V4(),
		created, w.service.Addr())
	var web string
	for i := range endpoints {
		pod, err := w.AddPod(fmt.Sprintf("server%d", i))
		w.must(err)
		fmt.Fprintf(text, "    endpoint %v:5353 n ready serving\n", pod.Addrs.V4())
		web += fmt.Sprintf("    endpoint %v:8080 n ready serving\n", pod.Addrs.V4())
		w.serve(pod, i)
	}
	fmt.Fprintf(text, "service a/web %s\n  cluster-ip %v\n  port t tcp 80\n%s", created, w.other.Addr(), web)
	snapshot, err := gen.ReadSnapshot(strings.NewReader(text.String()))
	w.must(err)
	cfg := ruleset.Config{Table: ruleset.DefaultTable, Settings: service.Settings{ClusterCIDRs: w.ClusterCIDRs}}
	if timeouts != "off" {
		cfg.DNSTimeouts, err = service.ParseUDPTimeouts(timeouts)
		w.must(err)
	}
	batch, _ := nft.State{}.Plan(ruleset.Compile(cfg, snapshot), time.Time{})
	w.must(conn.Apply(batch))
	return w
}

func (w *resolving) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// serve answers queries, and accepts connections of TCP.
func (w *resolving) serve(pod *testnet.Pod, endpoint int) {
	packets, err := pod.NS.ListenPacket(w.Context(), "udp", netip.AddrPortFrom(pod.Addrs.V4(), 5353).String())
	w.must(err)
	enlarge(w, packets.(*net.UDPConn))
	listener, err := pod.NS.Listen(w.Context(), "tcp", netip.AddrPortFrom(pod.Addrs.V4(), 8080).String())
	w.must(err)
	w.Cleanup(func() { packets.Close(); listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			conn.Close()
		}
	}()
	go func() {
		b := make([]byte, 64)
		for {
			n, from, err := packets.ReadFrom(b)
			if err != nil {
				return // closed
			}
			after := binary.BigEndian.Uint16(b[4:])
			if endpoint > 0 {
				after = binary.BigEndian.Uint16(b[6:])
			}
			switch after {
			case never:
			case 0:
				_, _ = packets.WriteTo(b[:n], from)
			default:
				answer := append([]byte(nil), b[:n]...)
				time.AfterFunc(time.Duration(after)*time.Millisecond, func() { _, _ = packets.WriteTo(answer, from) })
			}
		}
	}()
}

// ask has the pod send the query from a port of its own, at the time of each try as long as no answer comes. It says
// whether one came until the end.
func (w *resolving) ask(conn net.Conn, q query, tries []time.Duration, end time.Duration) bool {
	start, b := time.Now(), make([]byte, 64)
	for i := range tries {
		if _, err := conn.Write(q.bytes()); err != nil {
			continue // the kernel tells of an answer that came back with another sender
		}
		until := end
		if i+1 < len(tries) {
			until = tries[i+1]
		}
		_ = conn.SetReadDeadline(start.Add(until))
		for time.Since(start) < until {
			if n, err := conn.Read(b); err == nil && n == 8 && binary.BigEndian.Uint32(b) == q.number {
				return true
			}
		}
	}
	return false
}

// TestDNSRetries counts the queries of resolvers with the tries of glibc (5 s apart, from the same port) that are
// answered, with endpoints of which one or all are silent or slow.
func TestDNSRetries(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for time-outs of 5 s")
	}
	const clients, most = 400, 240                    // Half of 400, and three quarters of them, are far from 240.
	const again = 5*time.Second + 20*time.Millisecond // A timer of 5 s and then the resolver's code.
	for _, timeouts := range []string{"off", "5s,15s", "10s,30s"} {
		t.Run(timeouts, func(t *testing.T) {
			t.Parallel()
			w := newResolving(t, timeouts, 2)
			client, err := w.AddPod("client")
			w.must(err)
			for _, c := range []struct {
				name  string
				query query
				want  func(n int) bool
			}{
				{"one endpoint of two is silent", query{0, never, 0}, func(n int) bool {
					if timeouts == "5s,15s" {
						return n > most // three of four: the second try chooses anew
					}
					return n < most // the second try goes where the first went
				}},
				{"one endpoint answers after 6 s", query{0, 6000, 0}, func(n int) bool { return n == clients }},
				{"both answer after 3 s", query{0, 3000, 3000}, func(n int) bool { return n == clients }},
				{"both answer after 6 s", query{0, 6000, 6000}, func(n int) bool {
					return timeouts == "5s,15s" && n < clients*3/4 || timeouts != "5s,15s" && n == clients // half of them
				}},
			} {
				var answered atomic.Int64
				var all sync.WaitGroup
				for i := range clients {
					conn, err := client.NS.Dial(t.Context(), "udp", w.service.String())
					w.must(err)
					q := c.query
					q.number = uint32(i)
					all.Go(func() {
						defer conn.Close()
						if w.ask(conn, q, []time.Duration{0, again}, 10*time.Second) {
							answered.Add(1)
						}
					})
				}
				all.Wait()
				t.Logf("%s: %d of %d clients have an answer within 10 s", c.name, answered.Load(), clients)
				if !c.want(int(answered.Load())) {
					t.Errorf("%s: %d of %d clients have an answer, which is not what the page says", c.name, answered.Load(),
						clients)
				}
			}
		})
	}
}

// BenchmarkDNS sends queries from fresh ports at a rate for 45 s, beside new connections of TCP to another Service. It
// reports the most entries in the conntrack table, the queries without an answer within 5 s, and the failed
// connections.
func BenchmarkDNS(b *testing.B) {
	const (
		rate    = 10_000
		clients = 20
		period  = 45 * time.Second
	)
	for _, timeouts := range []string{"off", "10s,30s", "5s,15s"} {
		b.Run(timeouts, func(b *testing.B) {
			for b.Loop() {
				w := newResolving(b, timeouts, 2)
				ctx, cancel := context.WithTimeout(b.Context(), period)
				defer cancel()
				var all sync.WaitGroup
				var load dnsLoad
				for i := range clients {
					pod, err := w.AddPod(fmt.Sprintf("client%d", i))
					w.must(err)
					var conn net.PacketConn
					w.must(pod.NS.Do(func() error {
						conn, err = net.ListenPacket("ip4:udp", pod.Addrs.V4().String())
						return err
					}))
					enlarge(b, conn.(*net.IPConn))
					// No socket has the ports, so that the kernel would refuse each answer.
					w.must(pod.NS.Sysctl("net.ipv4.icmp_msgs_per_sec", "0"))
					all.Go(func() { load.queries(ctx, conn, w.service, rate/clients) })
				}
				pod, err := w.AddPod("browser")
				w.must(err)
				all.Go(func() { _ = pod.NS.Do(func() error { load.connects(ctx, w.other); return nil }) })
				most := 0
				for ticker := time.NewTicker(time.Second); ctx.Err() == nil; <-ticker.C {
					entries, _, err := w.table.Count(b.Context())
					w.must(err)
					most = max(most, entries)
				}
				all.Wait()
				b.ReportMetric(float64(most), "entries")
				b.ReportMetric(float64(load.sent.Load())/period.Seconds(), "queries/s")
				b.ReportMetric(float64(load.sent.Load()-load.answered.Load()), "lost")
				b.ReportMetric(float64(load.connected.Load()), "connects")
				b.ReportMetric(float64(load.failed.Load()), "failed")
			}
		})
	}
}

// enlarge gives the socket room for what comes while the machine is busy.
func enlarge(t testing.TB, socket syscall.Conn) {
	t.Helper()
	conn, err := socket.SyscallConn()
	if err == nil {
		err = conn.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// dnsLoad counts queries and connections.
type dnsLoad struct{ sent, answered, connected, failed atomic.Int64 }

// queries sends queries at the rate, each from a port that no other has had for a minute, and takes the answers until
// there are all, or 5 s after the last query. A raw socket stands for those of the ports: a process may not have so
// many.
func (l *dnsLoad) queries(ctx context.Context, conn net.PacketConn, to netip.AddrPort, rate int) {
	const first, ports, patience = 10_000, 50_000, 5 * time.Second
	var asked [ports]atomic.Int64 // when, in nanoseconds; 0 for ports without an open query
	start := time.Now()
	var all sync.WaitGroup
	var open atomic.Int64 // queries without an answer
	var sentAll atomic.Bool
	endIfAnswered := func() {
		if sentAll.Load() && open.Load() == 0 {
			conn.Close()
		}
	}
	all.Go(func() {
		for b := make([]byte, 128); ; {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return // closed
			}
			if n < 8 || binary.BigEndian.Uint16(b) != to.Port() {
				continue
			}
			if i := int(binary.BigEndian.Uint16(b[2:])) - first; i >= 0 && i < ports {
				if at := asked[i].Swap(0); at != 0 && time.Since(start)-time.Duration(at) < patience {
					l.answered.Add(1)
					open.Add(-1)
					endIfAnswered()
				}
			}
		}
	})
	payload := query{}.bytes()
	for n := 0; ctx.Err() == nil; n++ {
		if ahead := time.Duration(n)*time.Second/time.Duration(rate) - time.Since(start); ahead > 0 {
			select {
			case <-time.After(ahead):
			case <-ctx.Done():
			}
		}
		packet := binary.BigEndian.AppendUint16(nil, uint16(first+n%ports))
		packet = binary.BigEndian.AppendUint16(packet, to.Port())
		packet = binary.BigEndian.AppendUint16(packet, uint16(8+len(payload)))
		packet = append(append(packet, 0, 0), payload...) // without a checksum
		asked[n%ports].Store(int64(time.Since(start)))
		l.sent.Add(1)
		open.Add(1)
		_, _ = conn.WriteTo(packet, &net.IPAddr{IP: to.Addr().AsSlice()}) // not sent is not answered
	}
	sentAll.Store(true)
	endIfAnswered()
	defer time.AfterFunc(patience, func() { conn.Close() }).Stop()
	all.Wait()
}

// connects opens 50 connections a second, and counts those that are not there at once.
func (l *dnsLoad) connects(ctx context.Context, to netip.AddrPort) {
	for ticker := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-ticker.C {
		conn, err := net.DialTimeout("tcp", to.String(), time.Second)
		if err != nil {
			l.failed.Add(1)
			continue
		}
		l.connected.Add(1)
		conn.Close()
	}
}
