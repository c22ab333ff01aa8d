package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/conntrack"
	"nftproxy/nft/invalidtable"
	"nftproxy/nft/kernel"
	"nftproxy/nft/ruleset"
	"nftproxy/test/lib/testnet"
)

// beyond is how far ahead of its connection the sequence number of a segment is: more than any window.
const beyond = 1 << 27

const beLiberal = "net.netfilter.nf_conntrack_tcp_be_liberal"

// TestSegmentOutOfWindow: connection tracking does not know a segment out of the window, so it reaches the client with
// the endpoint's address in place of the Service's. The client answers with a reset, which ends the endpoint's side
// (https://github.com/kubernetes/kubernetes/issues/74839). nf_conntrack_tcp_be_liberal has the kernel translate it, for
// every client. A rule that drops it where packets are forwarded helps a client that the connection is forwarded to:
// the node itself, and clients whose connections are masqueraded, get it without.
func TestSegmentOutOfWindow(t *testing.T) {
	type fate struct{ plain, liberal, dropped string }
	const ends, lives = "ends", "lives"
	for name, c := range map[string]struct {
		from func(w *timed) *testnet.Namespace
		to   func(w *timed, i int) netip.Addr
		port uint16
		fate
	}{
		"from a pod": {func(w *timed) *testnet.Namespace { return w.client.NS }, clusterIP, 80,
			fate{ends, lives, lives}},
		"from the node": {func(w *timed) *testnet.Namespace { return w.Node }, clusterIP, 80,
			fate{ends, lives, ends}},
		"from outside, by a node port": {func(w *timed) *testnet.Namespace { return w.Outside }, nodeAddr, 30080,
			fate{ends, lives, ends}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newOpenWorld(t)
			from := c.from(w)
			for i, a := range w.server.Addrs {
				to := netip.AddrPortFrom(c.to(w, i), c.port)
				listener, err := w.server.NS.Listen(t.Context(), "tcp", netip.AddrPortFrom(a, port).String())
				w.must(err)
				defer listener.Close()
				try := func(setting, want string) {
					t.Helper()
					if got := w.outOfWindow(from, listener, to); got != want {
						t.Errorf("%s, at %v: the connection %s, want that it %s", setting, to, got, want)
					}
				}
				w.must(w.Node.Sysctl(beLiberal, "0"))
				try("without a guard", c.plain)
				before := w.keep()
				try("with the rule that drops it", c.dropped)
				if after := w.keep(); (after > before) != (c.dropped == lives) {
					t.Errorf("at %v: %d packets dropped before and %d after it", to, before, after)
				}
				_, err = invalidtable.Remove(ruleset.DefaultTable, w.Node.Fd())
				w.must(err)
				w.must(w.Node.Sysctl(beLiberal, "1"))
				try("with tcp_be_liberal", c.liberal)
			}
		})
	}
}

// keep returns how many packets the rule has dropped, and makes it unless it is there.
func (w *timed) keep() uint64 {
	w.Helper()
	dropped, err := invalidtable.Keep(ruleset.DefaultTable, w.Node.Fd())
	w.must(err)
	return dropped
}

func clusterIP(_ *timed, i int) netip.Addr {
	return netip.MustParseAddr([]string{"10.96.0.1", "fd00:96::1"}[i])
}

func nodeAddr(w *timed, i int) netip.Addr { return w.NodeAddrs[i] }

// newOpenWorld is newTimed for tests that need no time-outs.
func newOpenWorld(t *testing.T) *timed {
	w := &timed{network: newNetwork(t)}
	var err error
	w.client, err = w.AddPod("client")
	w.must(err)
	w.server, err = w.AddPod("server")
	w.must(err)
	w.conn, err = kernel.Open(kernel.Config{NetNS: w.Node.Fd()})
	w.must(err)
	t.Cleanup(func() { w.must(w.conn.Close()) })
	w.table, err = conntrack.Open(conntrack.Config{NetNS: w.Node.Fd()})
	w.must(err)
	t.Cleanup(func() { w.must(w.table.Close()) })
	w.serve("")
	return w
}

// outOfWindow opens a connection, has the endpoint that listens send a segment that is out of the window, and tells
// what becomes of the connection: the endpoint sees that it ends, or it carries more data.
func (w *timed) outOfWindow(from *testnet.Namespace, listener net.Listener, to netip.AddrPort) string {
	w.Helper()
	client, err := from.Dial(w.Context(), "tcp", to.String())
	w.must(err)
	defer client.Close()
	server, err := listener.Accept()
	w.must(err)
	defer server.Close()
	for _, end := range []net.Conn{client, server} {
		w.must(end.SetDeadline(time.Now().Add(limit)))
	}
	w.must(carry(client, server))
	w.must(carry(server, client))
	before, err := w.table.Invalid(w.Context())
	w.must(err)
	segment, err := outOfWindowSegment(server.(*net.TCPConn))
	w.must(err)
	w.must(w.server.NS.Do(func() error { return sendRaw(segment) }))
	// The segment, the reset and the data that follow it take the same way, one behind the other.
	for range 3 {
		if err = errors.Join(carry(server, client), carry(client, server)); err != nil {
			break
		}
	}
	after, failed := w.table.Invalid(w.Context())
	w.must(failed)
	if liberal, err := w.Node.ReadSysctl(beLiberal); err != nil || after > before != (liberal == "0") {
		w.Errorf("%d invalid packets before and %d after it, with %s = %s (%v)", before, after, beLiberal, liberal, err)
	}
	switch {
	case err == nil:
		return "lives"
	case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return "ends"
	}
	w.Fatal(err)
	return ""
}

// carry sends a byte.
func carry(from, to net.Conn) error {
	if _, err := from.Write([]byte("?")); err != nil {
		return err
	}
	_, err := io.ReadFull(to, make([]byte, 1))
	return err
}

// outOfWindowSegment is an IP packet from one end of a connection to the other, with a valid acknowledgement.
func outOfWindowSegment(end *net.TCPConn) ([]byte, error) {
	seq, ack, err := sequence(end)
	if err != nil {
		return nil, err
	}
	local, remote := netip.MustParseAddrPort(end.LocalAddr().String()), netip.MustParseAddrPort(end.RemoteAddr().String())
	tcp := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, local.Port()), remote.Port())
	tcp = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(tcp, seq+beyond), ack)
	const flagsACK, header = 0x10, 5 << 4
	tcp = append(tcp, header, flagsACK, 0xff, 0xff, 0, 0, 0, 0, 'x')
	pseudo := append(local.Addr().AsSlice(), remote.Addr().AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(tcp)))
	pseudo = append(pseudo, 0, 0, 0, unix.IPPROTO_TCP)
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	if local.Addr().Is4() { // the kernel fills in the header's checksum
		ip := []byte{0x45, 0, 0, byte(20 + len(tcp)), 0, 0, 0, 0, 64, unix.IPPROTO_TCP, 0, 0}
		return append(append(append(ip, local.Addr().AsSlice()...), remote.Addr().AsSlice()...), tcp...), nil
	}
	ip := []byte{0x60, 0, 0, 0, 0, byte(len(tcp)), unix.IPPROTO_TCP, 64}
	return append(append(append(ip, local.Addr().AsSlice()...), remote.Addr().AsSlice()...), tcp...), nil
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	if len(b)%2 != 0 {
		b = append(b, 0)
	}
	sum := uint32(0)
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// sequence returns the next sequence number that an end of a connection sends, and the next one that it expects. The
// kernel tells them in repair mode (tcp.h), which CRIU made.
func sequence(end *net.TCPConn) (next, expected uint32, err error) {
	const sendQueue, receiveQueue, offWithoutProbe = 2, 1, -1
	conn, err := end.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		set := func(option, value int) {
			failed = errors.Join(failed, unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value))
		}
		get := func(queue int) uint32 {
			set(unix.TCP_REPAIR_QUEUE, queue)
			n, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
			failed = errors.Join(failed, err)
			return uint32(n)
		}
		set(unix.TCP_REPAIR, 1)
		next, expected = get(sendQueue), get(receiveQueue)
		set(unix.TCP_REPAIR, offWithoutProbe)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, 0, fmt.Errorf("read the sequence numbers of a connection: %w", err)
	}
	return next, expected, nil
}

// sendRaw sends an IP packet from the namespace of the calling thread.
func sendRaw(packet []byte) error {
	domain, to := unix.AF_INET, unix.Sockaddr(nil)
	if packet[0]>>4 == 4 {
		to = &unix.SockaddrInet4{Addr: [4]byte(packet[16:20])}
	} else {
		domain, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte(packet[24:40])}
	}
	fd, err := unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, packet, 0, to)
}
