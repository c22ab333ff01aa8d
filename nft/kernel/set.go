package kernel

import (
	"bytes"
	"encoding/binary"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// nft's numbers of data types (datatype.h), which the kernel only stores. The number of a
// concatenation has six bits for each field.
const (
	typeInteger   = 4
	typeIPAddr    = 7
	typeIP6Addr   = 8
	typeInetProto = 12
	typeInetPort  = 13
	typeVerdict   = 0xffffff00
	typeBits      = 6
)

// nft's numbers of expressions in the user data of typeof declarations
// (expression.h, proto.h).
const (
	exprVerdict = 1
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	headerTransport = 11
	headerIPv4      = 12
	headerIPv6      = 13

	fieldIPv4Saddr = 11
	fieldIPv4Daddr = 12
	fieldIPv6Saddr = 8
	fieldIPv6Daddr = 9
	fieldSport     = 1
	fieldDport     = 2

	numgenMod = 2 // as nft.Index.Text says it
)

// The byte orders in nft's user data. Concatenations and verdicts have none.
const (
	orderNone = 0
	orderHost = 1
	orderBig  = 2
)

// Attributes of sets that x/sys/unix lacks (enum nft_set_attributes). They hold statements
// that each element has, such as counters.
const (
	attrSetExpr        = 17
	attrSetExpressions = 18
)

// Numbers for interval concatenations (Linux 5.6) that x/sys/unix lacks: the flag, the list
// of the fields' lengths in a set's description, and one such length.
const (
	setConcat     = 0x80 // NFT_SET_CONCAT
	attrDescList  = 2    // NFTA_SET_DESC_CONCAT
	attrDescField = 1    // NFTA_SET_FIELD_LEN
)

// maxTypeofFields is how many fields of a concatenation nft describes in the user data. nft
// lists a set with more fields by "type" instead of "typeof".
const maxTypeofFields = 4

// setFlags are NFTA_SET_FLAGS.
func setFlags(s *nft.Set) uint32 {
	var flags uint32
	if s.Verdicts || len(s.Data) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
		if len(s.Key) > 1 {
			flags |= setConcat
		}
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	return flags
}

// dataType is nft's number for the concatenation.
func dataType(fields nft.Fields, family nft.Family) uint32 {
	var n uint32
	for _, f := range fields {
		n = n<<typeBits | fieldType(f, family)
	}
	return n
}

func fieldType(f nft.Field, family nft.Family) uint32 {
	switch f {
	case nft.Saddr, nft.Daddr:
		if family == nft.IPv6 {
			return typeIP6Addr
		}
		return typeIPAddr
	case nft.L4Proto:
		return typeInetProto
	case nft.Dport, nft.Sport:
		return typeInetPort
	}
	return typeInteger
}

// kernelLen is a value's length in the kernel: that of a single field without
// padding, that of a concatenation with it.
func kernelLen(fields nft.Fields, family nft.Family) int {
	if len(fields) == 1 {
		return fields[0].Len(family)
	}
	return fields.Len(family)
}

// addDeclaration adds the attributes that declare a set. declaredAs compares them with a
// set that was read.
func (e *encoder) addDeclaration(s *nft.Set, family nft.Family) {
	if flags := setFlags(s); flags != 0 {
		e.Uint32(unix.NFTA_SET_FLAGS, flags)
	}
	e.Uint32(unix.NFTA_SET_KEY_TYPE, dataType(s.Key, family))
	e.Uint32(unix.NFTA_SET_KEY_LEN, uint32(kernelLen(s.Key, family)))
	switch {
	case s.Verdicts:
		e.Uint32(unix.NFTA_SET_DATA_TYPE, typeVerdict)
	case len(s.Data) > 0:
		e.Uint32(unix.NFTA_SET_DATA_TYPE, dataType(s.Data, family))
		e.Uint32(unix.NFTA_SET_DATA_LEN, uint32(kernelLen(s.Data, family)))
	}
	e.addDescription(s, family)
	e.Bytes(unix.NFTA_SET_USERDATA, setUserdata(s, family))
	if s.Counter {
		counter := e.BeginNest(attrSetExpr)
		e.Text(unix.NFTA_EXPR_NAME, counterName)
		e.EndNest(counter)
	}
}

// counterName is the kernel's name of the expression that counts packets.
const counterName = "counter"

// addDescription adds the size. For intervals of a concatenation it adds the lengths of the
// fields, which the kernel needs to split keys.
func (e *encoder) addDescription(s *nft.Set, family nft.Family) {
	concat := setFlags(s)&setConcat != 0
	if s.Size == 0 && !concat {
		return
	}
	desc := e.BeginNest(unix.NFTA_SET_DESC)
	if s.Size > 0 {
		e.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if concat {
		list := e.BeginNest(attrDescList)
		for _, f := range s.Key {
			field := e.BeginNest(unix.NFTA_LIST_ELEM)
			e.Uint32(attrDescField, uint32(f.Len(family)))
			e.EndNest(field)
		}
		e.EndNest(list)
	}
	e.EndNest(desc)
}

// sameDescription says that two descriptions have the same size and fields. A dynamic map
// that was declared without a size has nft.DynamicLimit once a rule adds to it.
func sameDescription(want, have nfnetlink.Attributes, dynamic bool) bool {
	wanted, size := want.Uint32(unix.NFTA_SET_DESC_SIZE), have.Uint32(unix.NFTA_SET_DESC_SIZE)
	return (wanted == size || dynamic && wanted == 0 && size == nft.DynamicLimit) &&
		sameList(want.Get(attrDescList), have.Get(attrDescList), func(want, have nfnetlink.Attributes) bool {
			return want.Uint32(attrDescField) == have.Uint32(attrDescField)
		})
}

// declaredAs says that a set with these attributes, which were read, is declared as s. It
// must have no other attribute that changes what a set does. If s has MinSize, any size is
// right.
func declaredAs(attrs nfnetlink.Attributes, s *nft.Set, family nft.Family) bool {
	var want encoder
	want.addDeclaration(s, family)
	for kind, value := range nfnetlink.Attributes(want.B).All() {
		if kind != unix.NFTA_SET_DESC && kind != attrSetExpr && !bytes.Equal(attrs.Get(kind), value) {
			return false
		}
	}
	if s.MinSize == 0 && !sameDescription(nfnetlink.Attributes(want.B).Get(unix.NFTA_SET_DESC),
		attrs.Get(unix.NFTA_SET_DESC), s.Dynamic) {
		return false
	}
	for kind, value := range attrs.All() {
		switch kind {
		case unix.NFTA_SET_FLAGS:
			if value.Number32() != setFlags(s) {
				return false
			}
		case unix.NFTA_SET_TIMEOUT, unix.NFTA_SET_GC_INTERVAL, unix.NFTA_SET_OBJ_TYPE, attrSetExpressions:
			return false
		}
	}
	return s.Counter == counts(attrs) && (s.Counter || attrs.Get(attrSetExpr) == nil)
}

// counts says that the elements of a set with these attributes have a counter and no other
// statement.
func counts(attrs nfnetlink.Attributes) bool {
	return attrs.Get(attrSetExpr).Text(unix.NFTA_EXPR_NAME) == counterName
}

// setUserdata is what nft stores with a set that is declared by typeof, so that
// its listing shows the same declaration. nft 1.0.6 and 1.1.3 write the same.
func setUserdata(s *nft.Set, family nft.Family) []byte {
	b := udataUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, byteOrder(s.Key))
	if setFlags(s)&unix.NFT_SET_MAP != 0 {
		b = udataUint32(b, userdata.NFTNL_UDATA_SET_DATABYTEORDER, byteOrder(s.Data))
	}
	b = userdata.Append(b, userdata.NFTNL_UDATA_SET_KEY_TYPEOF, typeofFields(s.Key, family))
	switch {
	case s.Verdicts:
		b = userdata.Append(b, userdata.NFTNL_UDATA_SET_DATA_TYPEOF, typeof(exprVerdict, nil))
	case len(s.Data) > 0:
		b = userdata.Append(b, userdata.NFTNL_UDATA_SET_DATA_TYPEOF, typeofFields(s.Data, family))
	default:
		return b
	}
	return udataUint32(b, userdata.NFTNL_UDATA_SET_DATA_INTERVAL, 0)
}

func byteOrder(fields nft.Fields) uint32 {
	if len(fields) != 1 {
		return orderNone
	}
	if fields[0] == nft.L4Proto || fields[0] == nft.Index {
		return orderHost
	}
	return orderBig
}

// typeof is nft's description of an expression: its kind, and details that depend on the
// kind.
func typeof(kind uint32, details []byte) []byte {
	return userdata.Append(udataUint32(nil, 0, kind), 1, details)
}

func typeofFields(fields nft.Fields, family nft.Family) []byte {
	if len(fields) == 1 {
		return typeofField(fields[0], family)
	}
	var all []byte
	for i, f := range fields[:min(len(fields), maxTypeofFields)] {
		all = userdata.Append(all, userdata.Type(i), typeofField(f, family))
	}
	return typeof(exprConcat, all)
}

func typeofField(f nft.Field, family nft.Family) []byte {
	switch f {
	case nft.Saddr:
		if family == nft.IPv6 {
			return typeofPayload(headerIPv6, fieldIPv6Saddr)
		}
		return typeofPayload(headerIPv4, fieldIPv4Saddr)
	case nft.Daddr:
		if family == nft.IPv6 {
			return typeofPayload(headerIPv6, fieldIPv6Daddr)
		}
		return typeofPayload(headerIPv4, fieldIPv4Daddr)
	case nft.L4Proto:
		return typeof(exprMeta, udataUint32(nil, 0, unix.NFT_META_L4PROTO))
	case nft.Dport:
		return typeofPayload(headerTransport, fieldDport)
	case nft.Sport:
		return typeofPayload(headerTransport, fieldSport)
	}
	b := udataUint32(nil, 0, unix.NFT_NG_RANDOM)
	b = udataUint32(b, 1, numgenMod)
	return typeof(exprNumgen, udataUint32(b, 2, 0))
}

func typeofPayload(header, field uint32) []byte {
	return typeof(exprPayload, udataUint32(udataUint32(nil, 0, header), 1, field))
}

// udataUint32 is userdata.AppendUint32 in host byte order, which nft uses.
func udataUint32(b []byte, kind userdata.Type, n uint32) []byte {
	return userdata.Append(b, kind, binary.NativeEndian.AppendUint32(nil, n))
}
