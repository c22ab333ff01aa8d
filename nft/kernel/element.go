package kernel

import (
	"strings"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// elementDecoder turns dumped elements into nft.Elements.
type elementDecoder struct {
	set   *nft.Set
	shape setShape
	// chains has the name of each chain, so that verdicts share it.
	chains map[string]string
	// foreign says that an element had a form that no program's element has.
	foreign bool

	// ends are the keys that follow intervals of one field (see pairIntervals).
	ends map[nft.Value]bool

	arena []byte
	found []element
}

// element is an nft.Element with its strings in the arena, as offsets.
type element struct {
	key, keyEnd, data, comment [2]int
	verdict                    nft.Verdict
	// end says that this is no element of the program, but the end of an interval.
	end bool
}

// reset forgets the elements that were gathered.
func (d *elementDecoder) reset() { d.arena, d.found = d.arena[:0], d.found[:0] }

// gather takes the elements of one message, until keep.
func (d *elementDecoder) gather(list nfnetlink.Attributes) {
	for _, attrs := range list.All() {
		e, ok := d.element(attrs)
		if !ok {
			d.foreign = true
			return
		}
		d.found = append(d.found, e)
	}
}

// keep adds the elements that were gathered to the map and returns their number.
func (d *elementDecoder) keep(to map[nft.Value]nft.Element) int {
	if d.foreign {
		return 0
	}
	// All elements share one string, instead of three each.
	arena := string(d.arena)
	cut := func(at [2]int) string { return arena[at[0]:at[1]] }
	for i := range d.found {
		e := &d.found[i]
		key := nft.Value(cut(e.key))
		if e.end {
			d.ends[key] = true
			continue
		}
		to[key] = nft.Element{
			Set: d.set.Name, Key: key, KeyEnd: nft.Value(cut(e.keyEnd)), Data: nft.Value(cut(e.data)),
			Verdict: e.verdict, Comment: cut(e.comment),
		}
	}
	return len(d.found)
}

func (d *elementDecoder) element(attrs nfnetlink.Attributes) (e element, ok bool) {
	for kind, v := range attrs.All() {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.key, ok = d.value(v, d.shape.keyKernel, d.shape.key)
			if !ok {
				return e, false
			}
		case attrElementKeyEnd:
			e.keyEnd, ok = d.value(v, d.shape.keyKernel, d.shape.key)
			if !ok || !d.shape.interval || d.shape.paired {
				return e, false
			}
		case unix.NFTA_SET_ELEM_DATA:
			if d.shape.verdicts {
				e.verdict, ok = d.verdict(v)
			} else {
				e.data, ok = d.value(v, d.shape.dataKernel, d.shape.data)
			}
			if !ok {
				return e, false
			}
		case unix.NFTA_SET_ELEM_USERDATA:
			comment, ok := readUserdata(v)
			if !ok {
				return e, false
			}
			e.comment[0] = len(d.arena)
			d.arena = append(d.arena, comment...)
			e.comment[1] = len(d.arena)
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = v.Number32() == unix.NFT_SET_ELEM_INTERVAL_END
			if !e.end || !d.shape.paired {
				return e, false
			}
		case unix.NFTA_SET_ELEM_EXPR:
			// Of a set with counters.
			if !d.set.Counter || v.Text(unix.NFTA_EXPR_NAME) != counterName {
				return e, false
			}
		case unix.NFTA_SET_ELEM_PAD:
		default:
			// A time-out, a statement of its own.
			return e, false
		}
	}
	if d.shape.interval && !d.shape.paired && e.keyEnd[1] == 0 {
		e.keyEnd = e.key // as the kernel reads it
	}
	hasData := e.data[1] > e.data[0] || e.verdict.Code != 0
	wantsData := !e.end && (d.shape.verdicts || d.shape.data > 0)
	return e, e.key[1] > e.key[0] && hasData == wantsData
}

// value copies an NFTA_DATA_VALUE to the arena, padded to the length that a
// Value has.
func (d *elementDecoder) value(nested nfnetlink.Attributes, size, padded int) (at [2]int, ok bool) {
	v := nested.Get(unix.NFTA_DATA_VALUE)
	if len(v) != size {
		return at, false
	}
	at[0] = len(d.arena)
	d.arena = append(d.arena, v...)
	for range padded - size {
		d.arena = append(d.arena, 0)
	}
	at[1] = len(d.arena)
	return at, true
}

func (d *elementDecoder) verdict(nested nfnetlink.Attributes) (nft.Verdict, bool) {
	code, name, ok := decodeVerdict(nested)
	if !ok {
		return nft.Verdict{}, false
	}
	chain, known := d.chains[string(name)]
	if !known {
		chain = strings.Clone(string(name))
		d.chains[chain] = chain
	}
	return nft.Verdict{Code: code, Chain: chain}, true
}

// decodeVerdict reads the data of an element or of the expression immediate. ok is false if that is
// no verdict. The chain's name is part of nested.
func decodeVerdict(nested nfnetlink.Attributes) (code nft.VerdictCode, chain []byte, ok bool) {
	v := nested.Get(unix.NFTA_DATA_VERDICT)
	if v == nil {
		return 0, nil, false
	}
	code = nft.VerdictCode(int32(v.Uint32(unix.NFTA_VERDICT_CODE)))
	if code == 0 { // NF_DROP
		code = nft.Drop
	}
	return code, v.Get(unix.NFTA_VERDICT_CHAIN).WithoutZero(), true
}
