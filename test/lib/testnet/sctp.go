package testnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"strings"
)

// SCTP is spoken over raw sockets, so that kernels without SCTP sockets pass
// the packets too: an INIT, and an INIT ACK whose state cookie, which SCTP
// leaves to the server, is the server's line.

// Chunk and parameter types and lengths, RFC 9260 sections 3.2, 3.3.2, 3.3.3.
const (
	sctpProtocol = 132

	chunkInit      = 1
	chunkInitAck   = 2
	paramCookie    = 7
	commonHeader   = 12
	initFixed      = 20 // chunk header and fixed parameters of INIT and INIT ACK
	paramHeader    = 4
	receiverWindow = 65536 // RFC 9260 section 3.3.2 asks for 1500 at least
)

// sctpPacket is the common header and the first chunk, which is an INIT or an
// INIT ACK.
type sctpPacket struct {
	srcPort, dstPort uint16
	verificationTag  uint32 // 0 for INIT; the INIT's initiate tag for INIT ACK
	chunk            uint8
	initiateTag      uint32
	cookie           []byte // INIT ACK only
}

// marshal returns the packet with its CRC32c.
func (p sctpPacket) marshal() []byte {
	be := binary.BigEndian
	b := be.AppendUint16(nil, p.srcPort)
	b = be.AppendUint16(b, p.dstPort)
	b = be.AppendUint32(b, p.verificationTag)
	b = be.AppendUint32(b, 0) // checksum
	length := initFixed
	if p.cookie != nil {
		length += paramHeader + len(p.cookie)
	}
	b = append(b, p.chunk, 0)
	b = be.AppendUint16(b, uint16(length))
	b = be.AppendUint32(b, p.initiateTag)
	b = be.AppendUint32(b, receiverWindow)
	b = be.AppendUint16(b, 1)             // outbound streams
	b = be.AppendUint16(b, 1)             // inbound streams
	b = be.AppendUint32(b, p.initiateTag) // initial TSN: as good as any
	if p.cookie != nil {
		b = be.AppendUint16(b, paramCookie)
		b = be.AppendUint16(b, uint16(paramHeader+len(p.cookie)))
		b = append(b, p.cookie...)
		b = append(b, make([]byte, -len(p.cookie)&3)...) // padding, not counted
	}
	binary.LittleEndian.PutUint32(b[8:], checksum(b)) // RFC 9260 appendix A
	return b
}

// parseSCTP reads a packet without its IP header.
func parseSCTP(b []byte) (sctpPacket, error) {
	if len(b) < commonHeader+initFixed {
		return sctpPacket{}, fmt.Errorf("SCTP packet of %d bytes is too short for an INIT", len(b))
	}
	if got, want := binary.LittleEndian.Uint32(b[8:]), checksum(b); got != want {
		return sctpPacket{}, fmt.Errorf("SCTP checksum is %#x instead of %#x", got, want)
	}
	be := binary.BigEndian
	p := sctpPacket{
		srcPort: be.Uint16(b), dstPort: be.Uint16(b[2:]), verificationTag: be.Uint32(b[4:]),
		chunk: b[commonHeader], initiateTag: be.Uint32(b[commonHeader+4:]),
	}
	end := commonHeader + int(be.Uint16(b[commonHeader+2:]))
	if p.chunk != chunkInit && p.chunk != chunkInitAck {
		return sctpPacket{}, fmt.Errorf("SCTP chunk type %d is neither INIT nor INIT ACK", p.chunk)
	}
	if end < commonHeader+initFixed || end > len(b) {
		return sctpPacket{}, fmt.Errorf("SCTP chunk ends at %d of %d bytes", end, len(b))
	}
	for params := b[commonHeader+initFixed : end]; len(params) >= paramHeader; {
		length := int(be.Uint16(params[2:]))
		if length < paramHeader || length > len(params) {
			return sctpPacket{}, fmt.Errorf("SCTP parameter of %d bytes in %d", length, len(params))
		}
		if be.Uint16(params) == paramCookie {
			p.cookie = params[paramHeader:length]
		}
		params = params[min(len(params), (length+3)&^3):]
	}
	return p, nil
}

// checksum is the CRC32c of a packet as if its checksum field were zero.
func checksum(b []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, b[:8])
	sum = crc32.Update(sum, table, make([]byte, 4))
	return crc32.Update(sum, table, b[commonHeader:])
}

func sctpNetwork(a netip.Addr) string {
	if a.Is4() {
		return fmt.Sprintf("ip4:%d", sctpProtocol)
	}
	return fmt.Sprintf("ip6:%d", sctpProtocol)
}

// initTag is the initiate tag of the INITs sent from here. It must not be 0. It
// need not be random: a test network has no attackers.
const initTag = 0x6e667470

// SendSCTPInit sends one SCTP INIT.
func (ns *Namespace) SendSCTPInit(src, dst netip.AddrPort) error {
	ctx := context.Background() // a raw socket connects without waiting
	conn, err := ns.DialFrom(ctx, sctpNetwork(dst.Addr()), src.Addr().String(), dst.Addr().String())
	if err == nil {
		_, err = conn.Write(newInit(src.Port(), dst.Port()))
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("send SCTP INIT from %v to %v: %w", src, dst, err)
	}
	return nil
}

func newInit(srcPort, dstPort uint16) []byte {
	return sctpPacket{srcPort: srcPort, dstPort: dstPort, chunk: chunkInit, initiateTag: initTag}.marshal()
}

// SCTPInit is an INIT as it arrived.
type SCTPInit struct {
	From, To netip.AddrPort

	tag uint32
}

// SCTPReceiver yields the INITs that arrive at an address.
type SCTPReceiver struct {
	ns      *Namespace
	conn    net.PacketConn
	address netip.AddrPort
}

// ListenSCTP receives INITs for address without answering them. Port 0 stands
// for every port.
func (ns *Namespace) ListenSCTP(address netip.AddrPort) (*SCTPReceiver, error) {
	r, err := ns.receiveSCTP(address)
	if err == nil {
		ns.own(r)
	}
	return r, err
}

// receiveSCTP is ListenSCTP for an owner that closes the receiver itself.
func (ns *Namespace) receiveSCTP(address netip.AddrPort) (*SCTPReceiver, error) {
	conn, err := ns.ListenPacket(context.Background(), sctpNetwork(address.Addr()), address.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("listen for SCTP on %v in %s: %w", address, ns, err)
	}
	return &SCTPReceiver{ns: ns, conn: conn, address: address}, nil
}

// Next waits for the next INIT with a valid checksum. The error is ctx's when
// that ends first, and net.ErrClosed after Close. One call at a time.
func (r *SCTPReceiver) Next(ctx context.Context) (SCTPInit, error) {
	defer interruptOnDone(ctx, r.conn)()
	buf := make([]byte, 2048)
	for {
		n, from, err := r.conn.ReadFrom(buf)
		if err != nil {
			return SCTPInit{}, errors.Join(ctx.Err(), err)
		}
		p, err := parseSCTP(buf[:n])
		if err != nil || p.chunk != chunkInit || r.address.Port() != 0 && p.dstPort != r.address.Port() {
			continue // not for us
		}
		peer, err := netip.ParseAddr(from.String())
		if err != nil {
			return SCTPInit{}, err
		}
		return SCTPInit{
			From: netip.AddrPortFrom(peer, p.srcPort),
			To:   netip.AddrPortFrom(r.address.Addr(), p.dstPort),
			tag:  p.initiateTag,
		}, nil
	}
}

// reply answers an INIT with an INIT ACK that carries line.
func (r *SCTPReceiver) reply(init SCTPInit, line string) error {
	ack := sctpPacket{
		srcPort: init.To.Port(), dstPort: init.From.Port(), verificationTag: init.tag,
		chunk: chunkInitAck, initiateTag: initTag, cookie: []byte(line),
	}
	_, err := r.conn.WriteTo(ack.marshal(), &net.IPAddr{IP: init.From.Addr().AsSlice(), Zone: init.From.Addr().Zone()})
	return err
}

// Close stops receiving.
func (r *SCTPReceiver) Close() error {
	r.ns.disown(r)
	if err := r.conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// awaitCookie reads from a raw socket connected to the server until the INIT
// ACK for the given ports is there, and returns its cookie.
func awaitCookie(socket *rawSocket, local, remote uint16) (string, error) {
	buf := make([]byte, 2048)
	for {
		n, err := socket.read(buf)
		if err != nil {
			return "", err
		}
		p, err := parseSCTP(buf[:n])
		if err == nil && p.chunk == chunkInitAck && p.srcPort == remote && p.dstPort == local &&
			p.verificationTag == initTag {
			return strings.TrimSpace(string(p.cookie)), nil
		}
	}
}
