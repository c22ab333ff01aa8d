package kernel

import (
	"slices"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// recogniseSet returns the declaration of a set that was read and is not wanted. If no
// program could declare such a set, it has only a name. recogniseSet guesses, and then
// compares the encoding of the guess. After the fourth field, source and destination look
// alike, and it guesses destination.
func recogniseSet(attrs nfnetlink.Attributes, name string, family nft.Family) *nft.Set {
	flags := attrs.Uint32(unix.NFTA_SET_FLAGS)
	s := nft.Set{
		Name: name, Interval: flags&unix.NFT_SET_INTERVAL != 0, Dynamic: flags&unix.NFT_SET_EVAL != 0,
		Size: attrs.Get(unix.NFTA_SET_DESC).Uint32(unix.NFTA_SET_DESC_SIZE),
	}
	if s.Dynamic && s.Size == nft.DynamicLimit {
		s.Size = 0 // programs declare such a map without a size, and the kernel sets this one
	}
	s.Counter = counts(attrs)
	datas := []nft.Fields{nil}
	switch kind := attrs.Uint32(unix.NFTA_SET_DATA_TYPE); {
	case flags&unix.NFT_SET_MAP == 0:
	case kind == typeVerdict:
		s.Verdicts = true
	default:
		datas = fieldsOfType(kind, family)
	}
	for _, s.Key = range fieldsOfType(attrs.Uint32(unix.NFTA_SET_KEY_TYPE), family) {
		for _, s.Data = range datas {
			if s.Check() == nil && declaredAs(attrs, &s, family) {
				return &s
			}
		}
	}
	return &nft.Set{Name: name}
}

// fieldsOfType is all concatenations for which dataType gives this number.
func fieldsOfType(kind uint32, family nft.Family) []nft.Fields {
	var all []nft.Fields
	for ; kind != 0; kind >>= typeBits {
		var longer []nft.Fields
		for _, f := range []nft.Field{nft.Daddr, nft.Saddr, nft.L4Proto, nft.Dport, nft.Sport, nft.Index} {
			if fieldType(f, family) != kind&(1<<typeBits-1) {
				continue
			}
			if all == nil {
				longer = append(longer, nft.Fields{f})
			}
			for _, fields := range all {
				longer = append(longer, slices.Concat(nft.Fields{f}, fields))
			}
		}
		if longer == nil {
			return nil
		}
		all = longer
	}
	return all
}
