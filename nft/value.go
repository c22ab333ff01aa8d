package nft

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"nftproxy/model/ip"
)

// Family is a table's address family, by the kernel's NFPROTO number.
type Family = ip.Family

// The families that the program has a table in.
const (
	IPv4 = ip.V4
	IPv6 = ip.V6
)

// Families lists both, in the order in which their tables are written.
func Families() [2]Family { return ip.Families() }

// Field is a field of a packet that a set's key or a map's data can have. In a
// concatenation each takes a multiple of four bytes.
type Field uint8

// The fields. Index is the result of numgen or jhash: a number in host byte order. The
// Orig fields are those of the connection's first packet as it arrived, before
// any translation (Linux 4.17). Sets are declared with the plain fields, since nft
// 1.0.6 prints a declaration with "ct original" wrongly. It also prints OrigDport in
// a concatenation, but only nft 1.1 and newer parse that.
const (
	Saddr Field = iota + 1
	Daddr
	L4Proto
	Dport
	Index
	OrigSaddr
	OrigDaddr
	OrigDport
	// Sport is hashed (DNAT.Hash, Sample), or part of the key of a dynamic set.
	Sport
)

// Text returns nft's expression for the field, in a rule and behind typeof in a set's
// declaration.
func (f Field) Text(family Family) string {
	switch f {
	case Saddr:
		return family.String() + " saddr"
	case Daddr:
		return family.String() + " daddr"
	case L4Proto:
		return "meta l4proto"
	case Dport:
		return "th dport"
	case Index:
		// Any modulus declares the same type; nft keeps what it was given.
		return "numgen random mod 2"
	case OrigSaddr:
		return "ct original " + family.String() + " saddr"
	case OrigDaddr:
		return "ct original " + family.String() + " daddr"
	case OrigDport:
		return "ct original proto-dst"
	case Sport:
		return "th sport"
	}
	return fmt.Sprintf("field-%d", uint8(f))
}

// Len returns the length of the field's value in bytes, without padding.
func (f Field) Len(family Family) int {
	switch f {
	case Saddr, Daddr, OrigSaddr, OrigDaddr:
		return family.AddrLen()
	case L4Proto:
		return 1
	case Dport, OrigDport, Sport:
		return 2
	}
	return 4
}

// Value is a concatenation as the kernel's registers hold it: each field in
// network byte order (Index in host byte order) and padded to four bytes. It is
// a string so that it can be a map's key and never changes.
type Value string

// Fields lists what a concatenation is made of.
type Fields []Field

// Len returns the length of a Value of these fields.
func (fs Fields) Len(family Family) int {
	n := 0
	for _, f := range fs {
		n += (f.Len(family) + 3) &^ 3
	}
	return n
}

// Text returns nft's expression for the concatenation.
func (fs Fields) Text(family Family) string {
	words := make([]string, len(fs))
	for i, f := range fs {
		words[i] = f.Text(family)
	}
	return strings.Join(words, " . ")
}

// Format prints a value as nft does. A value of another length is printed as
// hexadecimal digits.
func (fs Fields) Format(family Family, v Value) string { return fs.FormatRange(family, v, v) }

// FormatRange prints what an element of an interval set covers, from one value
// to the other in each field, as nft does: 10.0.0.0/8, and 80-90 where it is
// not a prefix.
func (fs Fields) FormatRange(family Family, from, to Value) string {
	if len(from) != fs.Len(family) || len(to) != len(from) {
		return fmt.Sprintf("0x%x", string(from))
	}
	words := make([]string, len(fs))
	for i, f := range fs {
		n := f.Len(family)
		words[i] = f.formatRange([]byte(from[:n]), []byte(to[:n]))
		from, to = from[(n+3)&^3:], to[(n+3)&^3:]
	}
	return strings.Join(words, " . ")
}

func (f Field) formatRange(from, to []byte) string {
	if bytes.Equal(from, to) {
		return f.format(from)
	}
	if first, ok := netip.AddrFromSlice(from); ok {
		for bits := first.BitLen() - 1; bits >= 0; bits-- {
			if p := netip.PrefixFrom(first, bits); p == p.Masked() && bytes.Equal(LastAddr(p).AsSlice(), to) {
				return p.String()
			}
		}
	}
	return f.format(from) + "-" + f.format(to)
}

// LastAddr returns the last address of the prefix.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

func (f Field) format(b []byte) string {
	switch f {
	case Saddr, Daddr, OrigSaddr, OrigDaddr:
		a, _ := netip.AddrFromSlice(b)
		return a.String()
	case L4Proto:
		return ProtocolText(b[0])
	case Dport, OrigDport, Sport:
		return strconv.Itoa(int(binary.BigEndian.Uint16(b)))
	}
	return strconv.FormatUint(uint64(binary.NativeEndian.Uint32(b)), 10)
}

// The IP protocols of echo requests.
const (
	ICMP   uint8 = 1
	ICMPv6 uint8 = 58
)

// EchoProtocol returns the protocol of the family's echo requests.
func EchoProtocol(f Family) uint8 {
	if f == IPv6 {
		return ICMPv6
	}
	return ICMP
}

// ProtocolText returns nft's name for an IP protocol number, or the number.
func ProtocolText(p uint8) string {
	switch p {
	case ICMP:
		return "icmp"
	case 6:
		return "tcp"
	case 17:
		return "udp"
	case ICMPv6:
		return "ipv6-icmp"
	case 132:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}

// FamilyText returns nft's word for a table's family, by the kernel's NFPROTO number, or the number.
func FamilyText(family uint8) string {
	words := map[uint8]string{1: "inet", uint8(IPv4): "ip", familyARP: "arp", familyNetdev: "netdev", 7: "bridge",
		uint8(IPv6): "ip6"}
	return cmp.Or(words[family], fmt.Sprintf("family %d", family))
}

// HookText returns nft's word for a hook of a family, by the kernel's numbers, or the number.
func HookText(family uint8, hook uint32) string {
	words := []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	switch family {
	case familyNetdev:
		words = []string{"ingress", "egress"}
	case familyARP:
		words = []string{"input", "output"}
	}
	if int(hook) < len(words) {
		return words[hook]
	}
	return fmt.Sprintf("hook %d", hook)
}

// The families whose hooks are others than those of IP.
const (
	familyARP    = 3
	familyNetdev = 5
)

// AppendAddr adds an address to a concatenation, as AppendProto, AppendPort and
// AppendIndex add other fields.
func AppendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		v4 := a.As4()
		return append(b, v4[:]...)
	}
	v6 := a.As16()
	return append(b, v6[:]...)
}

// AppendProto adds an L4Proto.
func AppendProto(b []byte, p uint8) []byte { return append(b, p, 0, 0, 0) }

// AppendPort adds a Dport.
func AppendPort(b []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(b, port), 0, 0)
}

// AppendIndex adds an Index.
func AppendIndex(b []byte, i uint32) []byte { return binary.NativeEndian.AppendUint32(b, i) }

// indexLen is the length of an Index, in bytes.
const indexLen = 4

// WithIndex returns the value followed by an Index.
func (v Value) WithIndex(i int) Value {
	var room [64]byte // any key of a pool fits, so it need not be on the heap
	return Value(AppendIndex(append(room[:0], v...), uint32(i)))
}

// SplitIndex takes a trailing Index off the value.
func (v Value) SplitIndex() (prefix Value, index int) {
	at := len(v) - indexLen
	return v[:at], int(binary.NativeEndian.Uint32([]byte(v[at:])))
}
