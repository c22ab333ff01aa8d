package nfnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The sizes, in bytes, of the headers before a message's attributes (struct nlmsghdr, struct nfgenmsg), and of the
// header of an attribute.
const (
	HeaderLen     = unix.SizeofNlMsghdr
	nfgenmsgLen   = 4
	BodyAt        = HeaderLen + nfgenmsgLen // where a message's attributes begin
	AttributeAt   = unix.SizeofNlAttr       // where an attribute's value begins
	attributeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
)

// Align is netlink's padding, of messages and attributes alike.
func Align(n int) int { return (n + 3) &^ 3 }

// Encoder appends messages and attributes to B. Numbers are in network byte order, as all numbers of netfilter
// are but a few. The zero value is ready. Methods that add one attribute return the Encoder.
type Encoder struct{ B []byte }

// BeginMessage starts a message and returns its offset, for EndMessage. The kind includes the subsystem.
func (e *Encoder) BeginMessage(kind, flags uint16, seq uint32, family uint8) int {
	return e.begin(kind, flags, seq, family, 0)
}

// BeginBatch starts the message that begins a transaction of nf_tables, EndBatch the one that ends it.
func (e *Encoder) BeginBatch(seq uint32) int {
	return e.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, seq, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
}

// EndBatch adds the message that ends a transaction.
func (e *Encoder) EndBatch(flags uint16, seq uint32) {
	e.EndMessage(e.begin(unix.NFNL_MSG_BATCH_END, flags, seq, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES))
}

func (e *Encoder) begin(kind, flags uint16, seq uint32, family uint8, resource uint16) int {
	at := len(e.B)
	e.B = append(e.B, 0, 0, 0, 0) // the length: see EndMessage
	e.B = binary.NativeEndian.AppendUint16(e.B, kind)
	e.B = binary.NativeEndian.AppendUint16(e.B, unix.NLM_F_REQUEST|flags)
	e.B = binary.NativeEndian.AppendUint32(e.B, seq)
	e.B = append(e.B, 0, 0, 0, 0) // port ID: the kernel knows it
	e.B = append(e.B, family, unix.NFNETLINK_V0)
	e.B = binary.BigEndian.AppendUint16(e.B, resource)
	return at
}

// EndMessage fills in the length of the message that starts at the offset.
func (e *Encoder) EndMessage(at int) {
	binary.NativeEndian.PutUint32(e.B[at:], uint32(len(e.B)-at))
}

// BeginNest starts an attribute that contains others, and returns its offset, for EndNest.
func (e *Encoder) BeginNest(kind uint16) int {
	at := len(e.B)
	e.AttributeHeader(kind|unix.NLA_F_NESTED, 0)
	return at
}

// EndNest fills in the length of the attribute that starts at the offset.
func (e *Encoder) EndNest(at int) {
	binary.NativeEndian.PutUint16(e.B[at:], uint16(len(e.B)-at))
}

// AttributeHeader starts an attribute of so many bytes. The caller appends these to B, and then calls Pad.
func (e *Encoder) AttributeHeader(kind uint16, size int) {
	e.B = binary.NativeEndian.AppendUint16(e.B, uint16(AttributeAt+size))
	e.B = binary.NativeEndian.AppendUint16(e.B, kind)
}

// Pad fills an attribute up to the next place where one can begin.
func (e *Encoder) Pad() {
	for len(e.B)&3 != 0 {
		e.B = append(e.B, 0)
	}
}

// Bytes adds an attribute of bytes.
func (e *Encoder) Bytes(kind uint16, value []byte) *Encoder {
	e.AttributeHeader(kind, len(value))
	e.B = append(e.B, value...)
	e.Pad()
	return e
}

// Raw is Bytes for bytes in a string, without a copy.
func (e *Encoder) Raw(kind uint16, value string) *Encoder {
	e.AttributeHeader(kind, len(value))
	e.B = append(e.B, value...)
	e.Pad()
	return e
}

// Text adds an attribute with a text and its final zero.
func (e *Encoder) Text(kind uint16, value string) *Encoder {
	e.AttributeHeader(kind, len(value)+1)
	e.B = append(append(e.B, value...), 0)
	e.Pad()
	return e
}

// Uint8 adds a number of one byte.
func (e *Encoder) Uint8(kind uint16, value uint8) *Encoder {
	e.AttributeHeader(kind, 1)
	e.B = append(e.B, value, 0, 0, 0)
	return e
}

// Uint16 adds a number of two bytes.
func (e *Encoder) Uint16(kind, value uint16) *Encoder {
	e.AttributeHeader(kind, 2)
	e.B = append(binary.BigEndian.AppendUint16(e.B, value), 0, 0)
	return e
}

// Uint32 adds a number of four bytes.
func (e *Encoder) Uint32(kind uint16, value uint32) *Encoder {
	e.AttributeHeader(kind, 4)
	e.B = binary.BigEndian.AppendUint32(e.B, value)
	return e
}

// Uint64 adds a number of eight bytes.
func (e *Encoder) Uint64(kind uint16, value uint64) *Encoder {
	e.AttributeHeader(kind, 8)
	e.B = binary.BigEndian.AppendUint64(e.B, value)
	return e
}

// HostOrder returns a number in the byte order of the machine, as the kernel has it in a register.
func HostOrder(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
