package flows

import (
	"encoding/binary"
	"net/netip"

	"nftproxy/model/flows"
	"nftproxy/model/service"
)

// packet is what the beginning of a packet says.
type packet struct {
	flows.Key
	// reset says that it is a TCP reset, or an ABORT of SCTP. icmp says that Key is of the packet that an ICMP error is
	// for.
	reset, icmp bool
}

// The numbers of protocols, and of what is read of them.
const (
	icmpv4, icmpv6 = 1, 58
	// unreachable are the types of errors that say that nobody has the packet (RFC 792, RFC 4443), and tooBig the code of
	// those that ask for a smaller one.
	unreachable4, unreachable6, tooBig = 3, 1, 4
	icmpHeader                         = 8
	flagsAt, flagReset                 = 13, 4
	chunkAt, chunkAbort                = 12, 6 // the first chunk's type; an ABORT for an INIT is the only one (RFC 9260)
)

// parse reads a packet from its network header on; ok is false if it is none that a rule of ours tells of.
func parse(b []byte) (p packet, ok bool) {
	protocol, src, dst, rest, ok := network(b)
	switch {
	case !ok:
		return p, false
	case protocol == icmpv4 || protocol == icmpv6:
		if len(rest) < icmpHeader || protocol == icmpv4 && (rest[0] != unreachable4 || rest[1] == tooBig) ||
			protocol == icmpv6 && rest[0] != unreachable6 {
			return p, false
		}
		inner, ok := parse(rest[icmpHeader:])
		inner.icmp = true
		return inner, ok && !inner.reset
	case len(rest) < 4:
		return p, false
	}
	p.Key = flows.Key{Protocol: service.Protocol(protocol),
		Src: netip.AddrPortFrom(src, binary.BigEndian.Uint16(rest)),
		Dst: netip.AddrPortFrom(dst, binary.BigEndian.Uint16(rest[2:]))}
	p.reset = p.Protocol == service.TCP && len(rest) > flagsAt && rest[flagsAt]&flagReset != 0 ||
		p.Protocol == service.SCTP && len(rest) > chunkAt && rest[chunkAt] == chunkAbort
	return p, p.Protocol == service.TCP || p.Protocol == service.UDP || p.Protocol == service.SCTP
}

// network reads the network header, and what follows the extension headers of IPv6.
func network(b []byte) (protocol byte, src, dst netip.Addr, rest []byte, ok bool) {
	const v4, v6 = 20, 40
	switch {
	case len(b) >= v4 && b[0]>>4 == 4:
		length := int(b[0]&15) * 4
		if length < v4 || length > len(b) {
			return 0, src, dst, nil, false
		}
		return b[9], netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:])), b[length:], true
	case len(b) >= v6 && b[0]>>4 == 6:
		protocol, src, dst, rest = b[6], netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:])), b[v6:]
		for protocol == 0 || protocol == 43 || protocol == 60 { // hop-by-hop, routing, destination (RFC 8200)
			if len(rest) < 2 || len(rest) < 8+8*int(rest[1]) {
				return 0, src, dst, nil, false
			}
			protocol, rest = rest[0], rest[8+8*int(rest[1]):]
		}
		return protocol, src, dst, rest, true
	}
	return 0, src, dst, nil, false
}
