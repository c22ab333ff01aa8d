package kernel

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// answer is what the kernel says about one message. Errno 0 is success.
type answer struct {
	seq   uint32
	errno syscall.Errno
	// offset of what is wrong, from the message's start; -1 if not told.
	offset int
}

// parseAnswer reads an NLMSG_ERROR: struct nlmsgerr, which has the message's
// header and, unless capped, the rest of the message; then, if flagged,
// attributes (uapi/linux/netlink.h).
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

// opError says what an answer is about.
func (e *batchEncoder) opError(b nft.Batch, a answer) OpError {
	i := a.seq - e.seq // the batch's begin is one before the first message
	if i >= uint32(len(e.spans)) {
		return OpError{Errno: a.errno}
	}
	s := e.spans[i]
	result := OpError{Op: b.Ops[s.op], Table: tableOf(b.Ops[s.op]), Errno: a.errno}
	switch op := result.Op.(type) {
	case nft.AddRules:
		chain := *op.Chain
		chain.Rules = chain.Rules[s.first : s.first+1]
		op.Chain = &chain
		result.Op = op
	case nft.AddElements:
		op.Elements, result.Element = e.refused(op.Elements, int(i), a.offset)
		result.Op = op
	case nft.DeleteElements:
		op.Elements, result.Element = e.refused(op.Elements, int(i), a.offset)
		result.Op = op
	}
	return result
}

// refused narrows the elements of an operation to those of the message and, if
// the answer tells it or there is no other, to the one that it is about.
func (e *batchEncoder) refused(elements []nft.OwnedElement, i, offset int) ([]nft.OwnedElement, *nft.OwnedElement) {
	first, at := e.spans[i].first, e.spans[i].at
	size := int(binary.NativeEndian.Uint32(e.b[at:]))
	list := attribute(e.b[at+headerLen+nfgenmsgLen:at+size], unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	// The list's start within the message: it is the message's last attribute.
	end, which, count := size-len(list), -1, 0
	for _, v := range attributes(list) {
		start := end
		end += attrHeader + align(len(v))
		if start <= offset && offset < end {
			which = count
		}
		count++
	}
	if count == 1 {
		which = 0
	}
	elements = elements[first : first+count]
	if which < 0 {
		return elements, nil
	}
	return elements[which : which+1], &elements[which]
}

func tableOf(op nft.Op) nft.TableID {
	switch op := op.(type) {
	case nft.AddTable:
		return op.Table
	case nft.DeleteTable:
		return op.Table
	case nft.AddSet:
		return op.Table
	case nft.AddChain:
		return op.Table
	case nft.FlushChain:
		return op.Table
	case nft.DeleteChain:
		return op.Table
	case nft.AddRules:
		return op.Table
	case nft.AddElements:
		return op.Table
	case nft.DeleteElements:
		return op.Table
	}
	return nft.TableID{}
}
