package kernel

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// answer is what the kernel says about one message. Errno 0 is success.
type answer struct {
	seq   uint32
	errno syscall.Errno
	// offset is where the error is, in bytes from the message's start; -1 if unknown.
	offset int
}

// parseAnswer reads an NLMSG_ERROR (uapi/linux/netlink.h). It starts with a struct nlmsgerr,
// which has the header of our message and, unless capped, the rest of it. Attributes
// follow if a flag says so.
func parseAnswer(m message) (answer, bool) {
	const errorLen = 4
	if m.kind != unix.NLMSG_ERROR || len(m.body) < errorLen+headerLen {
		return answer{}, false
	}
	original := m.body[errorLen:]
	a := answer{
		seq:    binary.NativeEndian.Uint32(original[8:]),
		errno:  syscall.Errno(-int32(binary.NativeEndian.Uint32(m.body))),
		offset: -1,
	}
	if m.flags&unix.NLM_F_ACK_TLVS == 0 {
		return a, true
	}
	skip := headerLen
	if m.flags&unix.NLM_F_CAPPED == 0 && a.errno != 0 {
		skip = align(int(binary.NativeEndian.Uint32(original)))
	}
	if skip > len(original) {
		return a, true
	}
	if v := attribute(original[skip:], unix.NLMSGERR_ATTR_OFFS); len(v) == 4 {
		a.offset = int(binary.NativeEndian.Uint32(v))
	}
	return a, true
}

// opError returns the answer as an error of the operation that it is about.
func (e *batchEncoder) opError(b nft.Batch, a answer) OpError {
	i := a.seq - e.seq // the batch's begin is one before the first message
	if i >= uint32(len(e.spans)) {
		return OpError{Errno: a.errno}
	}
	s := e.spans[i]
	result := OpError{Op: b.Ops[s.op], Table: nft.TableOf(b.Ops[s.op]), Errno: a.errno, located: a.offset >= 0}
	switch op := result.Op.(type) {
	case nft.AddRules:
		chain := *op.Chain
		chain.Rules = chain.Rules[s.first : s.first+1]
		op.Chain = &chain
		result.Op = op
		result.Hint = e.missingExpression(int(i), a)
	case nft.AddElements:
		op.Elements, result.Element = e.refusedElements(op.Elements, int(i), a.offset)
		result.Op = op
	case nft.DeleteElements:
		op.Elements, result.Element = e.refusedElements(op.Elements, int(i), a.offset)
		result.Op = op
	}
	return result
}

// refusedElements returns the elements of message i, and the refused one where that is
// known: from the offset, or because the message has only one.
func (e *batchEncoder) refusedElements(elements []nft.OwnedElement, i, offset int) ([]nft.OwnedElement, *nft.OwnedElement) {
	which, count := -1, 0
	for item, holds := range e.listItems(i, unix.NFTA_SET_ELEM_LIST_ELEMENTS, offset) {
		if !endsInterval(item) {
			count++
		}
		if holds {
			which = count - 1
		}
	}
	if count == 1 && offset < 0 {
		which = 0
	}
	first := e.spans[i].first
	elements = elements[first : first+count]
	if which < 0 {
		return elements, nil
	}
	return elements[which : which+1], &elements[which]
}

// missingExpression is the hint for an expression that the kernel has neither built in nor
// as a module. In expressions that all kernels have, ENOENT is about a chain or a set.
func (e *batchEncoder) missingExpression(i int, a answer) string {
	if a.errno != unix.ENOENT {
		return ""
	}
	for item, holds := range e.listItems(i, unix.NFTA_RULE_EXPRESSIONS, a.offset) {
		name := text(attribute(item, unix.NFTA_EXPR_NAME))
		if holds && name != "immediate" && name != "lookup" {
			return fmt.Sprintf("the kernel has no nftables expression %q, nor a module for it", name)
		}
	}
	return ""
}

// listItems yields the items of a message's last attribute, which is a list. holds says
// whether the offset, in bytes from the message's start, is in the item.
func (e *batchEncoder) listItems(i int, list uint16, offset int) func(yield func(item []byte, holds bool) bool) {
	at := e.spans[i].at
	size := int(binary.NativeEndian.Uint32(e.b[at:]))
	items := attribute(e.b[at+headerLen+nfgenmsgLen:at+size], list)
	return func(yield func([]byte, bool) bool) {
		start := size - len(items)
		for _, item := range attributes(items) {
			end := start + attrHeader + align(len(item))
			if !yield(item, start <= offset && offset < end) {
				return
			}
			start = end
		}
	}
}
