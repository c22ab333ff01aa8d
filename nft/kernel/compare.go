package kernel

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// sameExpressions says that a rule's expressions as the kernel dumps them do
// what the encoded ones do. The kernel leaves out what it does not keep and
// spells out defaults, in an order of its own; kernels differ in both.
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
	return sameAttributes(name, attribute(want, unix.NFTA_EXPR_DATA), attribute(have, unix.NFTA_EXPR_DATA))
}

// sameAttributes compares by type. An attribute that only one side has must be
// one that says nothing: a zero number.
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
			// Below the expression's own attributes, numbers differ in meaning.
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
		// That address and port are given (NF_NAT_RANGE_MAP_IPS and
		// _PROTO_SPECIFIED) follows from the registers.
		return number(v)&^3 == 0
	}
	for _, c := range v {
		if c != 0 {
			return false
		}
	}
	return name != "" && (len(v) == 4 || len(v) == 1)
}
