package kernel

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// The sizes of the headers before a message's attributes (struct nlmsghdr, struct
// nfgenmsg), and of the header of an attribute.
const (
	headerLen   = unix.SizeofNlMsghdr
	nfgenmsgLen = 4
	attrHeader  = unix.SizeofNlAttr
)

// typeMask removes the flags (nested, byte order) from an attribute's type.
const typeMask = ^uint16(unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)

// align is netlink's padding, of messages and attributes alike.
func align(n int) int { return (n + 3) &^ 3 }

// encoder appends netlink messages and attributes to one buffer.
type encoder struct{ b []byte }

// beginMessage starts a message of nf_tables and returns its offset, for endMessage.
func (e *encoder) beginMessage(kind, flags uint16, seq uint32, family nft.Family) int {
	at := e.addHeader(unix.NFNL_SUBSYS_NFTABLES<<8|kind, unix.NLM_F_REQUEST|flags, seq)
	e.b = append(e.b, byte(family), unix.NFNETLINK_V0, 0, 0)
	return at
}

// addFence adds the message that begins or ends a transaction.
func (e *encoder) addFence(kind, flags uint16, seq uint32) {
	at := e.addHeader(kind, unix.NLM_F_REQUEST|flags, seq)
	e.b = append(e.b, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	e.b = binary.BigEndian.AppendUint16(e.b, unix.NFNL_SUBSYS_NFTABLES) // res_id
	e.endMessage(at)
}

func (e *encoder) addHeader(kind, flags uint16, seq uint32) int {
	at := len(e.b)
	e.b = append(e.b, 0, 0, 0, 0) // the length: see endMessage
	e.b = binary.NativeEndian.AppendUint16(e.b, kind)
	e.b = binary.NativeEndian.AppendUint16(e.b, flags)
	e.b = binary.NativeEndian.AppendUint32(e.b, seq)
	e.b = append(e.b, 0, 0, 0, 0) // port ID: the kernel knows it
	return at
}

// endMessage fills in the length of the message that starts at the offset.
func (e *encoder) endMessage(at int) {
	binary.NativeEndian.PutUint32(e.b[at:], uint32(len(e.b)-at))
}

// beginNest starts an attribute that contains others, and returns its offset, for
// endNest.
func (e *encoder) beginNest(kind uint16) int {
	at := len(e.b)
	e.addAttrHeader(kind|unix.NLA_F_NESTED, 0)
	return at
}

// endNest fills in the length of the attribute that starts at the offset.
func (e *encoder) endNest(at int) {
	binary.NativeEndian.PutUint16(e.b[at:], uint16(len(e.b)-at))
}

func (e *encoder) addAttrHeader(kind uint16, size int) {
	e.b = binary.NativeEndian.AppendUint16(e.b, uint16(attrHeader+size))
	e.b = binary.NativeEndian.AppendUint16(e.b, kind)
}

func (e *encoder) addPadding() {
	for len(e.b)&3 != 0 {
		e.b = append(e.b, 0)
	}
}

// addBytes adds an attribute of bytes.
func (e *encoder) addBytes(kind uint16, value []byte) {
	e.addAttrHeader(kind, len(value))
	e.b = append(e.b, value...)
	e.addPadding()
}

// addText is addBytes for a string, without a copy.
func (e *encoder) addText(kind uint16, value string) {
	e.addAttrHeader(kind, len(value))
	e.b = append(e.b, value...)
	e.addPadding()
}

// addString adds an attribute with a string and its final zero.
func (e *encoder) addString(kind uint16, value string) {
	e.addAttrHeader(kind, len(value)+1)
	e.b = append(append(e.b, value...), 0)
	e.addPadding()
}

// addUint32 adds a number in network byte order, as all numbers of nf_tables are.
func (e *encoder) addUint32(kind uint16, value uint32) {
	e.addAttrHeader(kind, 4)
	e.b = binary.BigEndian.AppendUint32(e.b, value)
}

// attributes yields the attributes in b, their types without flags. It stops at a
// malformed one; the kernel sends none.
func attributes(b []byte) func(yield func(kind uint16, value []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= attrHeader {
			size := int(binary.NativeEndian.Uint16(b))
			if size < attrHeader || size > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&typeMask, b[attrHeader:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// attribute returns the first attribute of the type, or nil.
func attribute(b []byte, kind uint16) []byte {
	for k, v := range attributes(b) {
		if k == kind {
			return v
		}
	}
	return nil
}

// attributeUint32 returns a number in network byte order, or 0.
func attributeUint32(b []byte, kind uint16) uint32 { return number(attribute(b, kind)) }

func number(v []byte) uint32 {
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// text is a string attribute without its final zero.
func text(v []byte) string {
	if n := len(v); n > 0 && v[n-1] == 0 {
		v = v[:n-1]
	}
	return string(v)
}

// message is a netlink message that was received.
type message struct {
	kind, flags uint16
	seq         uint32
	// body is everything after the header.
	body []byte
}

// attrs is the bytes after the nfgenmsg: the attributes.
func (m message) attrs() []byte {
	if len(m.body) < nfgenmsgLen {
		return nil
	}
	return m.body[nfgenmsgLen:]
}

// messages yields the messages of a datagram.
func messages(b []byte) func(yield func(message) bool) {
	return func(yield func(message) bool) {
		for len(b) >= headerLen {
			size := int(binary.NativeEndian.Uint32(b))
			if size < headerLen || size > len(b) {
				return
			}
			m := message{
				kind:  binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				seq:   binary.NativeEndian.Uint32(b[8:]),
				body:  b[headerLen:size],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// wholeMessages says that a datagram ends where its last message ends.
func wholeMessages(b []byte) bool {
	for len(b) > 0 {
		if len(b) < headerLen {
			return false
		}
		size := int(binary.NativeEndian.Uint32(b))
		if size < headerLen || size > len(b) {
			return false
		}
		b = b[min(align(size), len(b)):]
	}
	return true
}

// askAcknowledgement has the last of the messages ask the kernel for an acknowledgement.
func askAcknowledgement(messages []byte) {
	for {
		size := align(int(binary.NativeEndian.Uint32(messages)))
		if size >= len(messages) {
			break
		}
		messages = messages[size:]
	}
	flags := binary.NativeEndian.Uint16(messages[6:])
	binary.NativeEndian.PutUint16(messages[6:], flags|unix.NLM_F_ACK)
}
