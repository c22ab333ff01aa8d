package netlinkfault

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// The messages that begin and end a transaction.
const (
	Begin = "begin"
	End   = "end"
)

const (
	headerLen = unix.SizeofNlMsghdr
	genLen    = 4 // struct nfgenmsg
)

// message is a netlink message with its header.
type message []byte

func (m message) kind() uint16     { return binary.NativeEndian.Uint16(m[4:]) }
func (m message) flags() uint16    { return binary.NativeEndian.Uint16(m[6:]) }
func (m message) seq() uint32      { return binary.NativeEndian.Uint32(m[8:]) }
func (m message) dump() bool       { return m.flags()&unix.NLM_F_DUMP == unix.NLM_F_DUMP }
func (m message) setFlag(f uint16) { binary.NativeEndian.PutUint16(m[6:], m.flags()|f) }

// errno is the error of an NLMSG_ERROR; ok is false for other messages.
func (m message) errno() (errno unix.Errno, seq uint32, ok bool) {
	if len(m) < headerLen+4+headerLen || m.kind() != unix.NLMSG_ERROR {
		return 0, 0, false
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m[headerLen:]))), binary.NativeEndian.Uint32(m[headerLen+4+8:]),
		true
}

// split is the messages of a datagram, which is whole.
func split(datagram []byte) []message {
	var all []message
	for len(datagram) >= headerLen {
		size := int(binary.NativeEndian.Uint32(datagram))
		all = append(all, datagram[:size:size])
		datagram = datagram[min((size+3)&^3, len(datagram)):]
	}
	return all
}

// name says what a message asks for, in the words of nft and conntrack.
func (m message) name() string {
	const conntrack = unix.NFNL_SUBSYS_CTNETLINK << 8
	const tables = unix.NFNL_SUBSYS_NFTABLES << 8
	switch m.kind() {
	case unix.NFNL_MSG_BATCH_BEGIN:
		return Begin
	case unix.NFNL_MSG_BATCH_END:
		return End
	}
	verb := "get "
	if m.dump() {
		verb = "dump "
	}
	if object, ok := map[uint16]string{
		tables | unix.NFT_MSG_GETTABLE: "table", tables | unix.NFT_MSG_GETCHAIN: "chain",
		tables | unix.NFT_MSG_GETRULE: "rule",
		tables | unix.NFT_MSG_GETSET:  "set", tables | unix.NFT_MSG_GETSETELEM: "element",
		tables | unix.NFT_MSG_GETGEN: "generation",
		tables | unix.NFT_MSG_GETOBJ: "object",
		conntrack | 1:                "entry", conntrack | 5: "count",
	}[m.kind()]; ok {
		return verb + object
	}
	if name, ok := map[uint16]string{
		tables | unix.NFT_MSG_NEWTABLE: "add table", tables | unix.NFT_MSG_DELTABLE: "delete table",
		tables | unix.NFT_MSG_NEWCHAIN: "add chain", tables | unix.NFT_MSG_DELCHAIN: "delete chain",
		tables | unix.NFT_MSG_NEWOBJ:  "add object",
		tables | unix.NFT_MSG_NEWRULE: "add rule", tables | unix.NFT_MSG_DELRULE: "delete rule",
		tables | unix.NFT_MSG_NEWSET: "add set", tables | unix.NFT_MSG_DELSET: "delete set",
		tables | unix.NFT_MSG_NEWSETELEM: "add element", tables | unix.NFT_MSG_DELSETELEM: "delete element",
		tables | destroySetElement: "destroy element", conntrack | 2: "delete entry",
	}[m.kind()]; ok {
		return name
	}
	return "other"
}

// destroySetElement is NFT_MSG_DESTROYSETELEM, which x/sys/unix lacks.
const destroySetElement = 30

// impossible is a message of a transaction that the kernel refuses with ENOENT: it deletes a table
// that is not there. It has the number of another message.
func impossible(seq uint32) message {
	const name = "no such table\x00"
	m := make(message, headerLen, 64)
	m = append(m, unix.AF_INET, unix.NFNETLINK_V0, 0, 0)
	m = binary.NativeEndian.AppendUint16(m, unix.SizeofNlAttr+uint16(len(name)))
	m = binary.NativeEndian.AppendUint16(m, unix.NFTA_TABLE_NAME)
	m = append(m, name...)
	for len(m)%4 != 0 {
		m = append(m, 0)
	}
	m.fillHeader(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_DELTABLE, unix.NLM_F_REQUEST, seq)
	return m
}

func (m message) fillHeader(kind, flags uint16, seq uint32) {
	binary.NativeEndian.PutUint32(m, uint32(len(m)))
	binary.NativeEndian.PutUint16(m[4:], kind)
	binary.NativeEndian.PutUint16(m[6:], flags)
	binary.NativeEndian.PutUint32(m[8:], seq)
}

// refusal is the kernel's answer to a message: an error without the message's body. An offset below 0
// is not told.
func refusal(of message, seq uint32, errno unix.Errno, offset int) []byte {
	m := make(message, headerLen, 64)
	m = binary.NativeEndian.AppendUint32(m, uint32(-int32(errno)))
	m = append(m, of[:headerLen]...)
	binary.NativeEndian.PutUint32(m[headerLen+4+8:], seq)
	flags := uint16(unix.NLM_F_CAPPED)
	if offset >= 0 {
		flags |= unix.NLM_F_ACK_TLVS
		m = binary.NativeEndian.AppendUint16(m, unix.SizeofNlAttr+4)
		m = binary.NativeEndian.AppendUint16(m, unix.NLMSGERR_ATTR_OFFS)
		m = binary.NativeEndian.AppendUint32(m, uint32(offset))
	}
	m.fillHeader(unix.NLMSG_ERROR, flags, seq)
	return m
}

// done is the end of a dump with an error.
func done(seq uint32, errno unix.Errno) []byte {
	m := make(message, headerLen, headerLen+4)
	m = binary.NativeEndian.AppendUint32(m, uint32(-int32(errno)))
	m.fillHeader(unix.NLMSG_DONE, unix.NLM_F_MULTI, seq)
	return m
}

// firstItem is the offset of the first item of the message's last attribute, which is a list: in
// messages with elements, that of the first element.
func (m message) firstItem() int {
	at := headerLen + genLen
	for {
		size := int(binary.NativeEndian.Uint16(m[at:]))
		next := at + (size+3)&^3
		if next >= len(m) {
			return at + unix.SizeofNlAttr
		}
		at = next
	}
}
