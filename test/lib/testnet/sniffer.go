package testnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Packet is a packet that a sniffer saw.
type Packet struct {
	Src, Dst netip.AddrPort // ports are 0 unless TCP, UDP or SCTP
	Protocol uint8          // as in the IP header: 6 TCP, 17 UDP, 132 SCTP...
}

// String names the packet in one line, as in "tcp 10.0.0.1:1 -> 10.0.0.2:2".
func (p Packet) String() string {
	name := fmt.Sprintf("protocol %d", p.Protocol)
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		name = TCP
	case unix.IPPROTO_UDP:
		name = UDP
	case sctpProtocol:
		name = SCTP
	}
	return fmt.Sprintf("%s %v -> %v", name, p.Src, p.Dst)
}

// Sniffer records packets towards some prefixes.
type Sniffer struct {
	wire   wire
	socket *os.File      // listens at the far end
	marker *os.File      // sends from the near end
	ended  chan struct{} // closed when the reading has ended

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when marks arrive
	packets []Packet
	lost    int
	marks   map[uint64]bool
	err     error // why the reading ended
}

// wire is a pair of links: a sniffer listens at the far end for packets from the near one.
type wire struct{ far, near End }

const (
	// markerType is the type of the frames that Packets sends to itself: IEEE
	// 802 local experimental, so that no stack takes them.
	markerType = 0x88b5
	// snapLength is enough for the longest IPv4 header and the ports.
	snapLength = 128
	// snifferBuffer is the size to ask for, in bytes: an ordinary user gets rmem_max.
	snifferBuffer = 32 << 20
	// mostHops is how many queues a packet may have before it: from pod to node
	// and from node to LAN, each after a question to a neighbour and its answer.
	mostHops = 6
	// markerTimeout bounds the wait for a frame over a veth pair.
	markerTimeout = 10 * time.Second
)

// SniffUplink records, at the far end of the node's uplink, every packet from the node to
// one of the prefixes. No rule has translated a packet to a service address that is seen
// there. The sniffer runs when SniffUplink returns, until Close or the topology's end.
func (t *Topology) SniffUplink(prefixes ...netip.Prefix) (*Sniffer, error) {
	return Sniff(End{t.Outside, "node"}, End{t.Node, uplink}, prefixes...)
}

// Sniff records, at the far end of a pair, every packet towards one of the
// prefixes that the near end sends. The sniffer runs when Sniff returns, until Close or
// the end of the far namespace.
func Sniff(far, near End, prefixes ...netip.Prefix) (*Sniffer, error) {
	s := &Sniffer{
		wire:    wire{far: far, near: near},
		ended:   make(chan struct{}),
		changed: make(chan struct{}),
		marks:   map[uint64]bool{},
	}
	err := s.listen(prefixes)
	if err == nil {
		s.marker, err = packetSocket(s.wire.near.NS)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("sniff at %v: %w", far, err), s.closeSockets())
	}
	go s.read()
	far.NS.own(s)
	return s, nil
}

// listen opens the socket. AF_PACKET shows the packets of an interface before
// any rule of its namespace.
func (s *Sniffer) listen(prefixes []netip.Prefix) error {
	link, err := s.wire.far.NS.handle.LinkByName(s.wire.far.Link)
	if err != nil {
		return err
	}
	if s.socket, err = packetSocket(s.wire.far.NS); err != nil {
		return err
	}
	conn, err := s.socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		failed = prepareSniffing(int(fd), prefixes)
		if failed == nil { // bound last: before, nothing is received, filtered or not
			failed = os.NewSyscallError("bind", unix.Bind(int(fd), &unix.SockaddrLinklayer{
				Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: link.Attrs().Index,
			}))
		}
	})
	return errors.Join(err, failed)
}

// packetSocket opens an AF_PACKET socket that receives nothing until it is
// bound.
func packetSocket(ns *Namespace) (*os.File, error) {
	var fd int
	err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "packet socket"), nil
}

func prepareSniffing(fd int, prefixes []netip.Prefix) error {
	// Forced, the buffer may exceed rmem_max; that takes CAP_NET_ADMIN over the
	// first user namespace.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, snifferBuffer) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, snifferBuffer); err != nil {
			return os.NewSyscallError("set SO_RCVBUF", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
		return os.NewSyscallError("set PACKET_IGNORE_OUTGOING", err) // Linux 4.20
	}
	raw, err := bpf.Assemble(filter(prefixes))
	if err != nil {
		return fmt.Errorf("assemble packet filter: %w", err)
	}
	program := make([]unix.SockFilter, 0, len(raw))
	for _, i := range raw {
		program = append(program, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
	return os.NewSyscallError("set SO_ATTACH_FILTER", err)
}

// filter makes the kernel accept only markers and IP packets to the prefixes, since a
// flood of other packets may pass the wire.
func filter(prefixes []netip.Prefix) []bpf.Instruction {
	const accept = 1
	program := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtProto},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: markerType, SkipTrue: accept},
		bpf.RetConstant{Val: snapLength},
	}
	for _, p := range prefixes {
		etherType, offset := uint32(unix.ETH_P_IP), uint32(16)
		if p.Addr().Is6() {
			etherType, offset = unix.ETH_P_IPV6, 24
		}
		var checks []bpf.Instruction
		address := p.Masked().Addr().AsSlice()
		for at, bits := 0, p.Bits(); bits > 0; at, bits = at+4, bits-32 {
			mask := ^uint32(0) << max(0, 32-bits)
			checks = append(checks,
				bpf.LoadAbsolute{Off: offset + uint32(at), Size: 4},
				bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: mask},
				bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(address[at:])},
			)
		}
		checks = append([]bpf.Instruction{
			bpf.LoadExtension{Num: bpf.ExtProto},
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherType},
		}, checks...)
		for i, check := range checks {
			if jump, ok := check.(bpf.JumpIf); ok { // a failed check goes on after the accept
				jump.SkipTrue = uint8(len(checks) - i - 1 + accept)
				checks[i] = jump
			}
		}
		program = append(append(program, checks...), bpf.RetConstant{Val: snapLength})
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// read records until the socket is closed.
func (s *Sniffer) read() {
	defer close(s.ended)
	buf := make([]byte, snapLength)
	for {
		n, err := s.socket.Read(buf)
		s.mu.Lock()
		if err != nil {
			s.err = err
			s.mu.Unlock()
			return
		}
		if p, ok := parsePacket(buf[:n]); ok {
			s.packets = append(s.packets, p)
		} else if n >= 8 {
			s.marks[binary.BigEndian.Uint64(buf)] = true
			close(s.changed)
			s.changed = make(chan struct{})
		}
		s.mu.Unlock()
	}
}

// parsePacket reads an IP header and the ports. Fragments after the first and
// IPv6 extension headers hide the ports.
func parsePacket(b []byte) (Packet, bool) {
	if len(b) == 0 {
		return Packet{}, false
	}
	var src, dst netip.Addr
	var p Packet
	var payload []byte
	switch version := b[0] >> 4; {
	case version == 4 && len(b) >= 20:
		src, _ = netip.AddrFromSlice(b[12:16])
		dst, _ = netip.AddrFromSlice(b[16:20])
		p.Protocol = b[9]
		if first := binary.BigEndian.Uint16(b[6:])&0x1fff == 0; first {
			payload = b[min(len(b), int(b[0]&15)*4):]
		}
	case version == 6 && len(b) >= 40:
		src, _ = netip.AddrFromSlice(b[8:24])
		dst, _ = netip.AddrFromSlice(b[24:40])
		p.Protocol = b[6]
		payload = b[40:]
	default:
		return Packet{}, false
	}
	var srcPort, dstPort uint16
	switch p.Protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, sctpProtocol:
		if len(payload) >= 4 {
			srcPort, dstPort = binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])
		}
	}
	p.Src, p.Dst = netip.AddrPortFrom(src, srcPort), netip.AddrPortFrom(dst, dstPort)
	return p, true
}

// Packets returns all packets seen so far. Whatever the node or its pods had
// sent before the call is included. Packets that the kernel had no room to
// record are an error.
func (s *Sniffer) Packets() ([]Packet, error) {
	for range mostHops {
		if err := s.flush(); err != nil {
			return nil, fmt.Errorf("wait for sniffed packets: %w", err)
		}
	}
	lost, err := s.countLost()
	if err != nil {
		return nil, fmt.Errorf("read packet statistics: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lost += lost; s.lost > 0 {
		return nil, fmt.Errorf("the sniffer lost %d packets beside the %d it has", s.lost, len(s.packets))
	}
	return slices.Clone(s.packets), nil
}

// countLost returns how many packets were lost since the last call.
func (s *Sniffer) countLost() (int, error) {
	conn, err := s.socket.SyscallConn()
	if err != nil {
		return 0, err
	}
	var stats *unix.TpacketStats
	var failed error
	err = conn.Control(func(fd uintptr) {
		stats, failed = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	})
	if err := errors.Join(err, failed); err != nil {
		return 0, err
	}
	return int(stats.Drops), nil
}

// flush sends a marker over the wire from every CPU and waits for all of them.
// A veth pair queues packets for each CPU, first in first out, so that every
// packet that was queued before has gone one hop then, and has been recorded if
// that was the last.
func (s *Sniffer) flush() error {
	marks, err := s.sendMarks()
	if err != nil {
		return err
	}
	timeout := time.After(markerTimeout)
	for {
		s.mu.Lock()
		for len(marks) > 0 && s.marks[marks[0]] {
			delete(s.marks, marks[0])
			marks = marks[1:]
		}
		changed := s.changed
		s.mu.Unlock()
		if len(marks) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-s.ended:
			return s.err
		case <-timeout:
			return fmt.Errorf("a marker did not arrive within %v", markerTimeout)
		}
	}
}

func (s *Sniffer) sendMarks() (marks []uint64, err error) {
	link, err := s.wire.near.NS.handle.LinkByName(s.wire.near.Link)
	if err != nil {
		return nil, err
	}
	conn, err := s.marker.SyscallConn()
	if err != nil {
		return nil, err
	}
	to := &unix.SockaddrLinklayer{
		Protocol: bigEndian(markerType), Ifindex: link.Attrs().Index,
		Halen: 6, Addr: [8]byte{1, 0x80, 0xc2, 0, 0, 0xe}, // IEEE 802.1D: bridges do not pass it on
	}
	err = onThread(func() error {
		return onEachCPU(func() error {
			mark := rand.Uint64() >> 4 // the first four bits are no IP version
			marks = append(marks, mark)
			var failed error
			err := conn.Control(func(fd uintptr) {
				failed = unix.Sendto(int(fd), binary.BigEndian.AppendUint64(nil, mark), 0, to)
			})
			return errors.Join(err, os.NewSyscallError("sendto", failed))
		})
	})
	return marks, err
}

// onEachCPU runs fn on every CPU that the thread may use. The caller has locked
// the thread.
func onEachCPU(fn func() error) error {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &all) }() // what was allowed is still allowed
	for cpu := range len(all) * 64 {
		if !all.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return os.NewSyscallError("sched_setaffinity", err)
		}
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}

// Close stops the sniffer. A second Close does nothing.
func (s *Sniffer) Close() error {
	s.wire.far.NS.disown(s)
	err := s.closeSockets()
	<-s.ended
	return err
}

func (s *Sniffer) closeSockets() error {
	var errs []error
	for _, f := range []*os.File{s.socket, s.marker} {
		if f == nil {
			continue
		}
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// bigEndian is htons: the kernel wants EtherTypes in network byte order.
func bigEndian(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}
