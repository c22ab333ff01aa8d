package kernel

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// sameExpressions says that a rule's expressions, as the kernel dumps them, do the same as
// the encoded ones. The kernel leaves some attributes out, spells defaults out, and has an
// order of its own. Kernels differ in all of this.
func sameExpressions(want, have []byte) bool {
	return sameList(want, have, sameExpression)
}

// sameList compares attributes of one type pairwise, in their order.
func sameList(want, have []byte, same func(want, have []byte) bool) bool {
	var wanted [][]byte
	for _, v := range attributes(want) {
		wanted = append(wanted, v)
	}
	i := 0
	for _, v := range attributes(have) {
		if i == len(wanted) || !same(wanted[i], v) {
			return false
		}
		i++
	}
	return i == len(wanted)
}

func sameExpression(want, have []byte) bool {
	name := text(attribute(want, unix.NFTA_EXPR_NAME))
	if text(attribute(have, unix.NFTA_EXPR_NAME)) != name {
		return false
	}
	if name == counterName {
		return true // a counter has only its numbers
	}
	return sameAttributes(name, attribute(want, unix.NFTA_EXPR_DATA), attribute(have, unix.NFTA_EXPR_DATA))
}

// sameAttributes compares attributes by type. If only one side has an attribute, it must
// be one that says nothing: a zero number.
func sameAttributes(name string, want, have []byte) bool {
	for kind, v := range attributes(have) {
		if attribute(want, kind) == nil && !saysNothing(name, kind, v) {
			return false
		}
	}
	for b := want; len(b) >= attrHeader; {
		size := int(binary.NativeEndian.Uint16(b))
		flagged := binary.NativeEndian.Uint16(b[2:])
		kind, wanted := flagged&typeMask, b[attrHeader:size]
		b = b[align(size):]

		found := attribute(have, kind)
		switch {
		case found == nil:
			if !saysNothing(name, kind, wanted) {
				return false
			}
		case flagged&unix.NLA_F_NESTED != 0:
			// In nested attributes, a number's meaning depends on the expression.
			if !sameAttributes("", wanted, found) {
				return false
			}
		case !bytes.Equal(wanted, found):
			return false
		}
	}
	return true
}

func saysNothing(name string, kind uint16, v []byte) bool {
	switch {
	case name == "lookup" && kind == unix.NFTA_LOOKUP_SET_ID:
		return true // only within a transaction; never dumped
	case name == "nat" && kind == unix.NFTA_NAT_FLAGS:
		// NF_NAT_RANGE_MAP_IPS and _PROTO_SPECIFIED say that address and port are
		// given. The registers say so already.
		return number(v)&^3 == 0
	}
	for _, c := range v {
		if c != 0 {
			return false
		}
	}
	return name != "" && (len(v) == 4 || len(v) == 1)
}
