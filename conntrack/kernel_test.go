package conntrack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"nftproxy/model/service"
	"nftproxy/nfnetlink"
	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// loadRules loads nft text. A chain of type nat makes the kernel track connections in the
// namespace.
func loadRules(t testing.TB, ns *testnet.Namespace, rules string) {
	t.Helper()
	if err := netfilter.NFTForTest(t).Load(ns, rules); err != nil {
		t.Fatal(err)
	}
}

// entry is the part of a flow that a test knows before the flow exists.
type entry struct {
	protocol service.Protocol
	original Tuple
}

func (e entry) String() string { return fmt.Sprintf("%v %v", e.protocol, e.original) }

func entries(flows []Flow) map[entry]Status {
	m := map[entry]Status{}
	for _, f := range flows {
		m[entry{f.Protocol, f.Original}] = f.Status
	}
	return m
}

// events reports the entries that come into the table.
type events struct {
	conn *netlink.Conn
	seen map[entry]bool
}

func listen(t testing.TB, ns *testnet.Namespace) *events {
	t.Helper()
	// NFNLGRP_CONNTRACK_NEW
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.Fd(), Groups: 1 << 0})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &events{conn, map[entry]bool{}}
}

// await waits until the entry exists.
func (e *events) await(t testing.TB, want entry) {
	t.Helper()
	for !e.seen[want] {
		messages, err := e.conn.Receive()
		if err != nil {
			t.Fatalf("await %v: %v; seen: %v", want, err, slices.Collect(maps.Keys(e.seen)))
		}
		for _, m := range messages {
			f, err := parseFlow(nfnetlink.Message{Body: m.Data}.Attributes())
			if err != nil {
				t.Fatal(err)
			}
			e.seen[entry{f.Protocol, f.Original}] = true
		}
	}
}

// world is a topology with the addresses of one family.
type world struct {
	*testnet.Topology
	pod                                *testnet.Pod
	family                             string // as nft names it
	podAddr, nodeAddr, outside         netip.Addr
	clusterIP, dnatedIP, unallocatedIP netip.Addr
	icmp                               service.Protocol
	echo                               byte // ICMP type
}

func worlds(t *testing.T) map[string]*world {
	topology := testnet.NewForTest(t, testnet.Config{})
	pod, err := topology.AddPod("client")
	if err != nil {
		t.Fatal(err)
	}
	ip := netip.MustParseAddr
	return map[string]*world{
		"IPv4": {topology, pod, "ip", pod.Addrs.V4(), topology.NodeAddrs.V4(), topology.OutsideAddrs.V4(),
			ip("10.96.0.1"), ip("10.96.0.9"), ip("10.96.0.77"), icmp, 8},
		"IPv6": {topology, pod, "ip6", pod.Addrs.V6(), topology.NodeAddrs.V6(), topology.OutsideAddrs.V6(),
			ip("fd00:96::1"), ip("fd00:96::9"), ip("fd00:96::77"), icmpv6, 128},
	}
}

// rules returns rules that DNAT one address and track all connections.
func (w *world) rules() string {
	return strings.NewReplacer("FAMILY", w.family, "DNATED", w.dnatedIP.String(), "OUTSIDE", w.outside.String()).Replace(`
table FAMILY other {
	chain prerouting {
		type nat hook prerouting priority dstnat; policy accept;
		FAMILY daddr DNATED udp dport 53 dnat to OUTSIDE
	}
}`)
}

// snapshot returns the Services: a cluster IP with three ports without endpoints, and a
// Service with the DNATed address.
func (w *world) snapshot(t *testing.T) service.Snapshot {
	return parse(t, fmt.Sprintf(`
node node
  address %[1]v
  host-address %[1]v
service default/web created 2026-01-01T00:00:00Z
  cluster-ip %[2]v
  port tcp tcp 80 node-port 30080
  port udp udp 80 node-port 30081
  port sctp sctp 80
service default/dnated created 2026-01-01T00:00:00Z
  cluster-ip %[3]v
  port dns udp 53
    endpoint %[4]v - ready serving
`, w.nodeAddr, w.clusterIP, w.dnatedIP, netip.AddrPortFrom(w.outside, 53)))
}

// Real flows go to addresses that no Service has yet; then the Services come.
func TestCleaner(t *testing.T) {
	for name, w := range worlds(t) {
		t.Run(name, func(t *testing.T) {
			loadRules(t, w.Node, w.rules())
			table, made := open(t, w.Node), listen(t, w.Node)

			goes := map[entry]Reason{
				w.send(t, service.UDP, 41001, w.clusterIP, 80):   ServiceAddress,
				w.send(t, service.TCP, 41002, w.clusterIP, 80):   ServiceAddress,
				w.send(t, service.SCTP, 41003, w.clusterIP, 80):  ServiceAddress,
				w.send(t, service.UDP, 41004, w.clusterIP, 81):   ClusterIP,
				w.send(t, service.TCP, 41005, w.clusterIP, 81):   ClusterIP,
				w.ping(t, w.clusterIP):                           ClusterIP,
				w.send(t, service.UDP, 41006, w.nodeAddr, 30081): NodePort,
			}
			stays := map[entry]bool{
				w.send(t, service.UDP, 41007, w.outside, 80):       true,
				w.send(t, service.TCP, 41008, w.unallocatedIP, 80): true,
				w.send(t, service.UDP, 41009, w.dnatedIP, 53):      true, // DNATed
				w.ping(t, w.outside):                               true,
				w.establish(t, 41010, w.nodeAddr, 30080):           true,
			}
			all := maps.Clone(stays)
			for e := range goes {
				all[e] = true
			}
			for e := range all {
				made.await(t, e)
			}

			run := cleanOnce(t, table, w.snapshot(t))
			want := map[Reason]int{}
			for _, reason := range goes {
				want[reason]++
			}
			if diff := cmp.Diff(want, run.Removed); diff != "" || run.Err != nil {
				t.Errorf("removed (-want +got):\n%s, error: %v", diff, run.Err)
			}
			left := entries(flows(t, table, Filter{}))
			for e, reason := range goes {
				if _, found := left[e]; found {
					t.Errorf("%v is still there, wanted it removed: %s", e, reason)
				}
			}
			for e := range stays {
				if _, found := left[e]; !found {
					t.Errorf("%v is gone", e)
				}
			}
			if status := left[entry{service.UDP, w.tuple(41009, w.dnatedIP, 53)}]; status&DstNAT == 0 {
				t.Errorf("flow to %v is [%v]: not DNATed, so it proves nothing", w.dnatedIP, status)
			}
		})
	}
}

// cleanOnce runs a Cleaner until its first pass is over.
func cleanOnce(t *testing.T, table *Table, s service.Snapshot) Run {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	runs, done := make(chan Run, 1), make(chan error)
	c := NewCleaner(table, NewIndex(Options{}), CleanerConfig{Observe: func(r Run) {
		runs <- r
		stop()
	}})
	go func() { done <- c.Run(ctx) }()
	c.SyncDone(s, true)
	run := <-runs
	if err := <-done; err != nil {
		t.Error(err)
	}
	return run
}

func (w *world) tuple(from uint16, to netip.Addr, port uint16) Tuple {
	return Tuple{netip.AddrPortFrom(w.podAddr, from), netip.AddrPortFrom(to, port)}
}

// send lets the pod send a first packet and returns the entry that the packet makes.
func (w *world) send(t *testing.T, protocol service.Protocol, from uint16, to netip.Addr, port uint16) entry {
	t.Helper()
	e := entry{protocol, w.tuple(from, to, port)}
	var err error
	switch protocol {
	case service.UDP:
		var conn net.Conn
		if conn, err = w.pod.NS.DialFrom(t.Context(), "udp", e.original.Src.String(), e.original.Dst.String()); err == nil {
			_, err = conn.Write([]byte("hello"))
			err = errors.Join(err, conn.Close())
		}
	case service.SCTP:
		err = w.pod.NS.SendSCTPInit(e.original.Src, e.original.Dst)
	case service.TCP:
		err = w.pod.NS.Do(func() error { return sendSYN(t, e.original) })
	}
	if err != nil {
		t.Fatalf("send %v: %v", e, err)
	}
	return e
}

// sendSYN begins to connect. The socket stays open until the end of the test, since the
// kernel would not repeat the SYN without it.
func sendSYN(t *testing.T, tuple Tuple) error {
	family := unix.AF_INET
	if tuple.Dst.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Bind(fd, sockaddr(tuple.Src)); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(tuple.Dst)); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w instead of EINPROGRESS", err)
	}
	return nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// ping lets the pod send an echo request.
func (w *world) ping(t *testing.T, to netip.Addr) entry {
	t.Helper()
	const id = 0x1234
	network := fmt.Sprintf("%s:%d", map[bool]string{false: "ip4", true: "ip6"}[to.Is6()], w.icmp)
	conn, err := w.pod.NS.Dial(t.Context(), network, to.String())
	if err != nil {
		t.Fatal(err)
	}
	packet := []byte{w.echo, 0, 0, 0, id >> 8, id & 0xff, 0, 1}
	// The kernel computes the checksum of ICMPv6.
	sum := ^(uint16(w.echo)<<8 + id + 1)
	packet[2], packet[3] = byte(sum>>8), byte(sum)
	_, err = conn.Write(packet)
	if err := errors.Join(err, conn.Close()); err != nil {
		t.Fatal(err)
	}
	e := entry{w.icmp, w.tuple(id, to, 0)}
	e.original.Dst = netip.AddrPortFrom(to, uint16(w.echo)<<8)
	return e
}

// establish connects the pod to a listener on the node, and sends once over the
// connection.
func (w *world) establish(t *testing.T, from uint16, to netip.Addr, port uint16) entry {
	t.Helper()
	e := entry{service.TCP, w.tuple(from, to, port)}
	l, err := w.Node.Listen(t.Context(), "tcp", e.original.Dst.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	conn, err := w.pod.NS.DialFrom(t.Context(), "tcp", e.original.Src.String(), e.original.Dst.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return e
}

// A SYN and a datagram leaked before there was a Service. Once the rules are in and the
// Cleaner has made a pass, the same client reaches the Service without a new start.
func TestLeakedFlowsReachTheirService(t *testing.T) {
	for name, w := range worlds(t) {
		t.Run(name, func(t *testing.T) {
			loadRules(t, w.Node, w.rules())
			table, made := open(t, w.Node), listen(t, w.Node)
			to := netip.AddrPortFrom(w.clusterIP, 80)
			backend := netip.AddrPortFrom(w.outside, 80)
			for _, proto := range []string{testnet.TCP, testnet.UDP} {
				server, err := w.Outside.Serve(proto, backend, "backend")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = server.Close() })
			}
			if err := w.Outside.AddRoute(netip.PrefixFrom(w.podAddr, w.podAddr.BitLen()), w.nodeAddr); err != nil {
				t.Fatal(err)
			}

			udp, err := w.pod.NS.DialFrom(t.Context(), "udp", netip.AddrPortFrom(w.podAddr, 41001).String(), to.String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = udp.Close() })
			ask := func() error { _, err := udp.Write([]byte("?")); return err }
			if err := ask(); err != nil {
				t.Fatal(err)
			}
			connected := make(chan error, 1)
			go func() {
				conn, err := w.pod.NS.DialFrom(t.Context(), "tcp", netip.AddrPortFrom(w.podAddr, 41002).String(), to.String())
				if err == nil {
					_ = conn.Close()
				}
				connected <- err
			}()
			made.await(t, entry{service.UDP, w.tuple(41001, w.clusterIP, 80)})
			made.await(t, entry{service.TCP, w.tuple(41002, w.clusterIP, 80)})

			loadRules(t, w.Node, fmt.Sprintf("add rule %s other prerouting %s daddr %v meta l4proto {tcp, udp} dnat to %v",
				w.family, w.family, w.clusterIP, w.outside))
			if run := cleanOnce(t, table, w.snapshot(t)); run.Removed[ServiceAddress] != 2 {
				t.Errorf("removed %v, want both flows", run.Removed)
			}
			if err := ask(); err != nil {
				t.Fatal(err)
			}
			if err := udp.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if n, err := udp.Read(make([]byte, 100)); err != nil {
				t.Errorf("UDP answer: %d bytes, %v", n, err)
			}
			if err := <-connected; err != nil {
				t.Errorf("TCP connection: %v", err)
			}
		})
	}
}
