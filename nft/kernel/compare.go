package kernel

import (
	"bytes"
	"encoding/binary"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// sameExpressions says that a rule's expressions, as the kernel dumps them, do the same as
// the encoded ones. The kernel leaves some attributes out, spells defaults out, and has an
// order of its own. Kernels differ in all of this.
func sameExpressions(want, have nfnetlink.Attributes) bool {
	return sameList(want, have, sameExpression)
}

// sameList compares attributes of one type pairwise, in their order.
func sameList(want, have nfnetlink.Attributes, same func(want, have nfnetlink.Attributes) bool) bool {
	var wanted []nfnetlink.Attributes
	for _, v := range want.All() {
		wanted = append(wanted, v)
	}
	i := 0
	for _, v := range have.All() {
		if i == len(wanted) || !same(wanted[i], v) {
			return false
		}
		i++
	}
	return i == len(wanted)
}

func sameExpression(want, have nfnetlink.Attributes) bool {
	name := want.Text(unix.NFTA_EXPR_NAME)
	if have.Text(unix.NFTA_EXPR_NAME) != name {
		return false
	}
	if name == counterName {
		return true // a counter has only its numbers
	}
	return sameAttributes(name, want.Get(unix.NFTA_EXPR_DATA), have.Get(unix.NFTA_EXPR_DATA))
}

// sameAttributes compares attributes by type. If only one side has an attribute, it must
// be one that says nothing: a zero number, or padding.
func sameAttributes(name string, want, have nfnetlink.Attributes) bool {
	for kind, v := range have.All() {
		if want.Get(kind) == nil && !saysNothing(name, kind, v) {
			return false
		}
	}
	for b := want; len(b) >= nfnetlink.AttributeAt; {
		size := int(binary.NativeEndian.Uint16(b))
		flagged := binary.NativeEndian.Uint16(b[2:])
		kind, wanted := flagged&^unix.NLA_F_NESTED, b[nfnetlink.AttributeAt:size]
		b = b[nfnetlink.Align(size):]

		found := have.Get(kind)
		switch {
		case found == nil:
			if !saysNothing(name, kind, wanted) {
				return false
			}
		case name == "nat" && kind == unix.NFTA_NAT_FLAGS && found.Number32()&^3 == wanted.Number32()&^3:
			// See saysNothing.
		case name == "objref" && kind == unix.NFTA_OBJREF_IMM_NAME && bytes.Equal(found.WithoutZero(), wanted.WithoutZero()):
			// The encoding does not end the name with a zero, and the kernel does.
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

func saysNothing(name string, kind uint16, v nfnetlink.Attributes) bool {
	switch {
	case len(v) == 0:
		return true // before a number of 64 bits, where the processor reads only aligned ones fast (nla_align_64bit)
	case name == "lookup" && kind == unix.NFTA_LOOKUP_SET_ID:
		return true // only within a transaction; never dumped
	case name == "nat" && kind == unix.NFTA_NAT_FLAGS:
		// NF_NAT_RANGE_MAP_IPS and _PROTO_SPECIFIED say that address and port are
		// given. The registers say so already.
		return v.Number32()&^3 == 0
	}
	for _, c := range v {
		if c != 0 {
			return false
		}
	}
	return name != "" && (len(v) == 4 || len(v) == 1)
}
