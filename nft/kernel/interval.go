package kernel

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// An interval of one field is two elements in the kernel's tree: one where the interval
// starts, and one with a flag at the first key after it. An interval that reaches to the
// last key has no end. (An interval of a concatenation is one element with two keys.)

// The user data by which nft marks the start of an interval that has no end.
const (
	udataElementFlags = 1 // NFTNL_UDATA_SET_ELEM_FLAGS
	intervalOpen      = 1
)

// endsInterval says whether an element with these attributes ends an interval.
func endsInterval(attrs nfnetlink.Attributes) bool {
	return attrs.Uint32(unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0
}

// keyAfter is the key after an interval's last one, in the form of the kernel. If there
// is none, the interval is open.
func keyAfter(last nft.Value, size int) (end []byte, open bool) {
	end = []byte(last[:size])
	for i := size - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end, false
		}
	}
	return nil, true
}

// addIntervalEnd adds the element that ends an interval.
func (e *encoder) addIntervalEnd(end []byte) {
	at := e.BeginNest(unix.NFTA_LIST_ELEM)
	e.Uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	key := e.BeginNest(unix.NFTA_SET_ELEM_KEY)
	e.Bytes(unix.NFTA_DATA_VALUE, end)
	e.EndNest(key)
	e.EndNest(at)
}

// addElementUserdata adds what nft stores with an element: its comment, and a flag if it
// starts an interval without end.
func (e *encoder) addElementUserdata(comment string, open bool) {
	if comment == "" && !open {
		return
	}
	// This writes what userdata.AppendString would, without its copies.
	at := len(e.B)
	e.AttributeHeader(unix.NFTA_SET_ELEM_USERDATA, 0)
	if comment != "" {
		e.B = append(e.B, byte(userdata.NFTNL_UDATA_SET_ELEM_COMMENT), byte(len(comment)+1))
		e.B = append(append(e.B, comment...), 0)
	}
	if open {
		e.B = append(e.B, udataElementFlags, 4)
		e.B = binary.NativeEndian.AppendUint32(e.B, intervalOpen)
	}
	e.EndNest(at)
	e.Pad()
}

// readUserdata returns the comment in the user data of an element or a rule; false if the user data has anything that
// nft does not store.
func readUserdata(b []byte) (comment []byte, ok bool) {
	for len(b) >= 2 {
		kind, size := b[0], int(b[1])
		if b = b[2:]; size > len(b) {
			return nil, false
		}
		switch {
		case kind == byte(userdata.NFTNL_UDATA_SET_ELEM_COMMENT) && size > 0:
			comment = b[:size-1]
		case kind != udataElementFlags:
			return nil, false
		}
		b = b[size:]
	}
	return comment, len(b) == 0
}

// pairIntervals gives each interval the last key that it covers, by the ends that were
// read. It returns false where starts and ends do not pair. Intervals may adjoin: then one
// ends where the next starts.
func pairIntervals(elements map[nft.Value]nft.Element, ends map[nft.Value]bool, shape setShape) bool {
	starts, sorted := slices.Sorted(maps.Keys(elements)), slices.Sorted(maps.Keys(ends))
	// nft writes an end at the first of all keys, without a start.
	if len(sorted) > 0 && sorted[0] == nft.Value(make([]byte, shape.key)) {
		sorted = sorted[1:]
	}
	for i, start := range starts {
		e := elements[start]
		switch {
		case len(sorted) == 0 && i == len(starts)-1:
			e.KeyEnd = lastKey(shape)
		case len(sorted) == 0 || sorted[0] <= start, i+1 < len(starts) && sorted[0] > starts[i+1]:
			return false
		default:
			e.KeyEnd, sorted = keyBefore(sorted[0], shape.keyKernel), sorted[1:]
		}
		elements[start] = e
	}
	return len(sorted) == 0
}

// lastKey is the last of all keys.
func lastKey(shape setShape) nft.Value {
	key := make([]byte, shape.key)
	for i := range shape.keyKernel {
		key[i] = 0xff
	}
	return nft.Value(key)
}

// keyBefore is the key before one that is not the first.
func keyBefore(key nft.Value, size int) nft.Value {
	b := []byte(key)
	for i := size - 1; i >= 0; i-- {
		if b[i]--; b[i] != 0xff {
			break
		}
	}
	return nft.Value(b)
}
