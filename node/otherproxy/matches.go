package otherproxy

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/nfnetlink"
)

// matches is what a rule of iptables matches: a destination address, a protocol and a port. Zero
// values stand for any.
type matches struct {
	family   ip.Family
	addr     []byte
	protocol uint8
	port     uint16
}

// Fields of a packet, as expressions load them into registers.
type field int

const (
	otherField field = iota
	fieldAddr
	fieldProtocol
	fieldPort
)

// read reads the expressions of a rule of iptables-nft. It writes ports as its own expressions, or
// as matches of iptables.
func (m *matches) read(expressions nfnetlink.Attributes) (err error) {
	registers := map[uint32]field{}
	for _, expression := range expressions.Strict(&err) {
		data := expression.Get(unix.NFTA_EXPR_DATA)
		switch expression.Text(unix.NFTA_EXPR_NAME) {
		case "payload":
			registers[data.Uint32(unix.NFTA_PAYLOAD_DREG)] = m.payload(data)
		case "meta":
			f := otherField
			if data.Uint32(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO {
				f = fieldProtocol
			}
			registers[data.Uint32(unix.NFTA_META_DREG)] = f
		case "bitwise": // a part of an address is none
			registers[data.Uint32(unix.NFTA_BITWISE_DREG)] = otherField
		case "cmp":
			if data.Uint32(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
				m.set(registers[data.Uint32(unix.NFTA_CMP_SREG)], data.Get(unix.NFTA_CMP_DATA).Get(unix.NFTA_DATA_VALUE))
			}
		case "match":
			m.port = max(m.port, portOf(data.Text(attrMatchName), data.Get(attrMatchInfo)))
		}
	}
	return err
}

// payload says which field of a packet an expression loads.
func (m *matches) payload(data nfnetlink.Attributes) field {
	base, offset, size := data.Uint32(unix.NFTA_PAYLOAD_BASE), data.Uint32(unix.NFTA_PAYLOAD_OFFSET),
		data.Uint32(unix.NFTA_PAYLOAD_LEN)
	addrOffset, addrSize := uint32(16), uint32(4)
	if m.family == ip.V6 {
		addrOffset, addrSize = 24, 16
	}
	switch {
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && offset == addrOffset && size == addrSize:
		return fieldAddr
	case base == unix.NFT_PAYLOAD_NETWORK_HEADER && m.family == ip.V4 && offset == 9 && size == 1:
		return fieldProtocol
	case base == unix.NFT_PAYLOAD_TRANSPORT_HEADER && offset == 2 && size == 2:
		return fieldPort
	}
	return otherField
}

func (m *matches) set(f field, value []byte) {
	switch {
	case f == fieldAddr:
		m.addr = bytes.Clone(value)
	case f == fieldProtocol && len(value) > 0:
		m.protocol = value[0]
	case f == fieldPort && len(value) == 2:
		m.port = binary.BigEndian.Uint16(value)
	}
}

// portOf returns the destination port of a match of iptables for one port, or 0. struct xt_tcp and
// xt_udp begin with the range of source ports and that of destination ports, struct xt_sctp_info with
// that of destination ports.
func portOf(match string, info []byte) uint16 {
	at := map[string]int{"tcp": 4, "udp": 4, "sctp": 0}
	offset, known := at[match]
	if !known || len(info) < offset+4 {
		return 0
	}
	first, last := binary.NativeEndian.Uint16(info[offset:]), binary.NativeEndian.Uint16(info[offset+2:])
	if first != last {
		return 0
	}
	return first
}

// matches reads what an entry of iptables-legacy matches: struct ipt_ip or ip6t_ip6, then the
// matches.
func (e *entry) matches(f ip.Family) matches {
	m := matches{family: f}
	addr, mask, protocol, size := 4, 12, 80, 4
	if f == ip.V6 {
		addr, mask, protocol, size = 16, 48, 128, 16
	}
	if bytes.Count(e.raw[mask:mask+size], []byte{0xff}) == size {
		m.addr = bytes.Clone(e.raw[addr : addr+size])
	}
	m.protocol = uint8(binary.NativeEndian.Uint16(e.raw[protocol:]))
	targetAt, at := entryLayout(f)
	for target := int(binary.NativeEndian.Uint16(e.raw[targetAt:])); at < target; {
		next := at + int(binary.NativeEndian.Uint16(e.raw[at:])) // parse has checked the sizes
		m.port = max(m.port, portOf(unix.ByteSliceToString(e.raw[at+xtName:at+xtHeader-1]), e.raw[at+xtHeader:next]))
		at = next
	}
	return m
}
