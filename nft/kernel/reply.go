package kernel

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// opError returns the answer as an error of the operation that it is about.
func (e *batchEncoder) opError(b nft.Batch, a nfnetlink.Answer) OpError {
	i := a.Seq - e.seq // the batch's begin is one before the first message
	if i >= uint32(len(e.spans)) {
		return OpError{Errno: a.Errno}
	}
	s := e.spans[i]
	result := OpError{Op: b.Ops[s.op], Table: nft.TableOf(b.Ops[s.op]), Errno: a.Errno, located: a.Offset >= 0}
	switch op := result.Op.(type) {
	case nft.AddRules:
		chain := *op.Chain
		chain.Rules = chain.Rules[s.first : s.first+1]
		op.Chain = &chain
		result.Op = op
		result.Hint = e.missingExpression(int(i), a)
	case nft.AddElements, nft.DeleteElements:
		var elements []nft.OwnedElement
		elements, result.Element = e.refusedElements(nft.ElementsOf(op), int(i), a.Offset)
		result.Op = withElements(op, elements)
	}
	return result
}

// refusedElements returns the elements of message i, and the refused one where that is
// known: from the offset, or because the message has only one.
func (e *batchEncoder) refusedElements(elements []nft.OwnedElement, i,
	offset int) ([]nft.OwnedElement, *nft.OwnedElement) {
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
func (e *batchEncoder) missingExpression(i int, a nfnetlink.Answer) string {
	if a.Errno != unix.ENOENT {
		return ""
	}
	for item, holds := range e.listItems(i, unix.NFTA_RULE_EXPRESSIONS, a.Offset) {
		name := item.Text(unix.NFTA_EXPR_NAME)
		if holds && name != "immediate" && name != "lookup" {
			return fmt.Sprintf("the kernel has no nftables expression %q, nor a module for it", name)
		}
	}
	return ""
}

// listItems yields the items of a message's last attribute, which is a list. holds says
// whether the offset, in bytes from the message's start, is in the item.
func (e *batchEncoder) listItems(i int, list uint16, offset int) func(yield func(item nfnetlink.Attributes,
	holds bool) bool) {
	at := e.spans[i].at
	size := int(binary.NativeEndian.Uint32(e.B[at:]))
	items := nfnetlink.Attributes(e.B[at+nfnetlink.BodyAt : at+size]).Get(list)
	return func(yield func(nfnetlink.Attributes, bool) bool) {
		start := size - len(items)
		for _, item := range items.All() {
			end := start + nfnetlink.AttributeAt + nfnetlink.Align(len(item))
			if !yield(item, start <= offset && offset < end) {
				return
			}
			start = end
		}
	}
}
