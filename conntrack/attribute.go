package conntrack

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"

	"golang.org/x/sys/unix"
)

var errMalformed = errors.New("malformed conntrack message")

// attribute is one netlink attribute. Its data is part of the message. The package
// decodes attributes itself because the libraries allocate memory for each.
type attribute struct {
	kind uint16
	data []byte
}

// attributes yields the attributes in b, up to the first error.
func attributes(b []byte) iter.Seq2[attribute, error] {
	return func(yield func(attribute, error) bool) {
		for len(b) > 0 {
			if len(b) < unix.SizeofNlAttr {
				yield(attribute{}, errMalformed)
				return
			}
			length := int(binary.NativeEndian.Uint16(b))
			if length < unix.SizeofNlAttr || length > len(b) {
				yield(attribute{}, errMalformed)
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(attribute{kind, b[unix.SizeofNlAttr:length]}, nil) {
				return
			}
			b = b[min((length+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}

func (a attribute) uint8() (uint8, error) {
	if len(a.data) != 1 {
		return 0, errMalformed
	}
	return a.data[0], nil
}

func (a attribute) uint16() (uint16, error) {
	if len(a.data) != 2 {
		return 0, errMalformed
	}
	return binary.BigEndian.Uint16(a.data), nil
}

func (a attribute) uint32() (uint32, error) {
	if len(a.data) != 4 {
		return 0, errMalformed
	}
	return binary.BigEndian.Uint32(a.data), nil
}

func (a attribute) uint64() (uint64, error) {
	if len(a.data) != 8 {
		return 0, errMalformed
	}
	return binary.BigEndian.Uint64(a.data), nil
}

func (a attribute) addr() (netip.Addr, error) {
	addr, ok := netip.AddrFromSlice(a.data)
	if !ok {
		return addr, errMalformed
	}
	return addr, nil
}
