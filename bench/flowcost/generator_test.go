package flowcost

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/test/lib/netfilter"
	"nftproxy/test/lib/testnet"
)

// site is a node between a client and a server. Both are only interfaces: the generator sends the packets of both,
// and nobody receives them. So all of the kernel's work for a connection happens in the generator's thread, whose CPU
// time is exact, whatever else runs on the machine.
type site struct {
	*testing.T
	node *testnet.Namespace
	nft  netfilter.NFT
	// sockets are packet sockets at the client and at the server.
	sockets     [2]int
	connections [][]packet
}

type packet struct {
	side  int // the index of a socket
	frame []byte
}

// most is the number of different connections, each with a port of its own.
const most = 5000

var (
	clientAddr  = netip.MustParseAddr("10.244.1.2")
	serverAddr  = netip.MustParseAddr("10.244.2.2")
	serviceAddr = netip.MustParseAddr("10.96.0.1")
	clusterCIDR = netip.MustParsePrefix("10.244.0.0/16")
)

func newSite(t *testing.T) *site {
	s := &site{T: t, nft: netfilter.NFTForTest(t), node: testnet.NamespaceForTest(t, "node")}
	testnet.Require(t, s.node.Forward())
	var far, near [2]net.HardwareAddr
	for i, addr := range []netip.Addr{clientAddr, serverAddr} {
		name := []string{"client", "server"}[i]
		a, b := testnet.End{NS: s.node, Link: name}, testnet.End{NS: testnet.NamespaceForTest(t, name), Link: name}
		testnet.Require(t, testnet.Pair(a, b))
		testnet.Require(t, a.Route(netip.PrefixFrom(addr, 24).Masked(), netip.Addr{}))
		testnet.Require(t, a.Meet(addr, b))
		here, err := a.NS.Handle().LinkByName(name)
		testnet.Require(t, err)
		there, err := b.NS.Handle().LinkByName(name)
		testnet.Require(t, err)
		near[i], far[i] = here.Attrs().HardwareAddr, there.Attrs().HardwareAddr
		testnet.Require(t, b.NS.Do(func() (err error) {
			s.sockets[i], err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			return unix.Bind(s.sockets[i], &unix.SockaddrLinklayer{Ifindex: there.Attrs().Index})
		}))
		t.Cleanup(func() { unix.Close(s.sockets[i]) })
	}
	for i := range most {
		s.connections = append(s.connections, conversation(uint16(firstPort+i), far, near))
	}
	s.sysctl("nf_conntrack_acct", "1")
	return s
}

const firstPort = 20_000

func (s *site) sysctl(name, value string) {
	s.Helper()
	testnet.Require(s, s.node.Sysctl("net.netfilter."+name, value))
}

// load loads the Service, a rule for its first packets before and one after the translation, and a chain.
func (s *site) load(before, after, chain string) {
	s.Helper()
	to := "ip daddr " + serviceAddr.String() + " tcp dport 80 "
	if before != "" {
		before = to + before
	}
	_, err := s.nft.Run(s.node, fmt.Sprintf(`table ip t
delete table ip t
table ip t {
	chain prerouting {
		type nat hook prerouting priority -100
		%s
		%s dnat to %s:8080
	}
	chain postrouting {
		type nat hook postrouting priority -190
		%s
	}
	%s
}`, before, to, serverAddr, after, chain), "-f", "-")
	testnet.Require(s, err)
}

// The flags of TCP.
const fin, syn, psh, ack = 1, 2, 8, 16

// conversation is a connection of the client to the Service: a request of 100 bytes, an answer of 500, and its end.
func conversation(port uint16, far, near [2]net.HardwareAddr) []packet {
	from := [2]netip.AddrPort{netip.AddrPortFrom(clientAddr, port), netip.AddrPortFrom(serverAddr, 8080)}
	to := [2]netip.AddrPort{netip.AddrPortFrom(serviceAddr, 80), netip.AddrPortFrom(clientAddr, port)}
	seq := [2]uint32{1000, 5000}
	send := func(side int, flags byte, size int) packet {
		p := packet{side, slices.Concat(near[side], far[side], []byte{8, 0},
			segment(from[side], to[side], seq[side], seq[1-side], flags, size))}
		if seq[side] += uint32(size); flags&(syn|fin) != 0 {
			seq[side]++
		}
		return p
	}
	return []packet{send(0, syn, 0), send(1, syn|ack, 0), send(0, ack, 0), send(0, psh|ack, 100), send(1, psh|ack, 500),
		send(0, fin|ack, 0), send(1, fin|ack, 0), send(0, ack, 0)}
}

func segment(from, to netip.AddrPort, seq, answered uint32, flags byte, size int) []byte {
	ip := make([]byte, 40+size)
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	copy(ip[12:], from.Addr().AsSlice())
	copy(ip[16:], to.Addr().AsSlice())
	binary.BigEndian.PutUint16(ip[10:], ^fold(sum(ip[:20])))
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	binary.BigEndian.PutUint32(tcp[4:], seq)
	if flags&ack != 0 {
		binary.BigEndian.PutUint32(tcp[8:], answered)
	}
	tcp[12], tcp[13] = 5<<4, flags
	binary.BigEndian.PutUint16(tcp[14:], 64_000)
	binary.BigEndian.PutUint16(tcp[16:], ^fold(sum(tcp)+sum(ip[12:20])+unix.IPPROTO_TCP+uint32(len(tcp))))
	return ip
}

// sum and fold are the two halves of the Internet checksum (RFC 1071).
func sum(b []byte) (n uint32) {
	for ; len(b) > 1; b = b[2:] {
		n += uint32(binary.BigEndian.Uint16(b))
	}
	return n
}

func fold(n uint32) uint16 {
	for n > 0xffff {
		n = n>>16 + n&0xffff
	}
	return uint16(n)
}

// open opens connections, and returns the CPU time of the thread.
func (s *site) open(connections [][]packet) time.Duration {
	start := threadTime()
	for _, c := range connections {
		for _, p := range c {
			if _, err := unix.Write(s.sockets[p.side], p.frame); err != nil {
				s.Fatal(err)
			}
		}
	}
	return threadTime() - start
}

// generate opens n connections over each of two sites, at a rate per second, burst by burst in turn. It returns by
// how many microseconds a connection of the second takes more CPU time, and that of the first, of a number of
// connections each.
func generate(first, second *site, n, rate int) (more, of []float64, reached float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const chunk = 20
	start := time.Now()
	var a, b time.Duration
	for done, round := 0, 0; done < n; round++ {
		time.Sleep(time.Until(start.Add(time.Duration(done) * time.Second / time.Duration(rate))))
		next := done + min(max(1, rate/1000), n-done)
		if round%2 == 0 {
			a += first.open(first.connections[done:next])
			b += second.open(second.connections[done:next])
		} else {
			b += second.open(second.connections[done:next])
			a += first.open(first.connections[done:next])
		}
		if done = next; done%chunk == 0 {
			more = append(more, float64(b-a)/chunk/1e3)
			of = append(of, float64(a)/chunk/1e3)
			a, b = 0, 0
		}
	}
	return more, of, float64(n) / time.Since(start).Seconds()
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
