package kernel

import (
	"strings"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// elementDecoder turns dumped elements into those of a program.
type elementDecoder struct {
	set   *nft.Set
	shape setShape
	// chains has the name of each chain, so that verdicts share it.
	chains map[string]string
	// foreign says that there was an element that no program has.
	foreign bool

	arena []byte
	found []element
}

// element is an nft.Element with its strings in the arena, as offsets.
type element struct {
	key, keyEnd, data, comment [2]int
	verdict                    nft.Verdict
}

// decode adds the elements of one message to the map and returns their number.
func (d *elementDecoder) decode(list []byte, to map[nft.Value]nft.Element) int {
	d.arena, d.found = d.arena[:0], d.found[:0]
	for _, attrs := range attributes(list) {
		e, ok := d.element(attrs)
		if !ok {
			d.foreign = true
			return 0
		}
		d.found = append(d.found, e)
	}
	// One string for all, instead of three for each.
	arena := string(d.arena)
	cut := func(at [2]int) string { return arena[at[0]:at[1]] }
	for i := range d.found {
		e := &d.found[i]
		key := nft.Value(cut(e.key))
		to[key] = nft.Element{
			Set: d.set.Name, Key: key, KeyEnd: nft.Value(cut(e.keyEnd)), Data: nft.Value(cut(e.data)),
			Verdict: e.verdict, Comment: cut(e.comment),
		}
	}
	return len(d.found)
}

func (d *elementDecoder) element(attrs []byte) (e element, ok bool) {
	for kind, v := range attributes(attrs) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.key, ok = d.value(v, d.shape.keyKernel, d.shape.key)
			if !ok {
				return e, false
			}
		case attrElementKeyEnd:
			e.keyEnd, ok = d.value(v, d.shape.keyKernel, d.shape.key)
			if !ok || !d.shape.interval {
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
			if len(v) < 2 || v[0] != byte(userdata.NFTNL_UDATA_SET_ELEM_COMMENT) || int(v[1]) != len(v)-2 {
				return e, false
			}
			e.comment[0] = len(d.arena)
			d.arena = append(d.arena, v[2:len(v)-1]...)
			e.comment[1] = len(d.arena)
		case unix.NFTA_SET_ELEM_PAD:
		default:
			// Flags (an interval's end, a catch-all), a time-out, a counter.
			return e, false
		}
	}
	if d.shape.interval && e.keyEnd[1] == 0 {
		e.keyEnd = e.key // as the kernel takes it
	}
	hasData := e.data[1] > e.data[0] || e.verdict.Code != 0
	return e, e.key[1] > e.key[0] && hasData == (d.shape.verdicts || d.shape.data > 0)
}

// value copies an NFTA_DATA_VALUE to the arena, padded to the length that a
// Value has.
func (d *elementDecoder) value(nested []byte, size, padded int) (at [2]int, ok bool) {
	v := attribute(nested, unix.NFTA_DATA_VALUE)
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

func (d *elementDecoder) verdict(nested []byte) (nft.Verdict, bool) {
	v := attribute(nested, unix.NFTA_DATA_VERDICT)
	if v == nil {
		return nft.Verdict{}, false
	}
	code := nft.VerdictCode(int32(attributeUint32(v, unix.NFTA_VERDICT_CODE)))
	if code == 0 { // NF_DROP
		code = nft.Drop
	}
	name := attribute(v, unix.NFTA_VERDICT_CHAIN)
	if n := len(name); n > 0 && name[n-1] == 0 {
		name = name[:n-1]
	}
	chain, known := d.chains[string(name)]
	if !known {
		chain = strings.Clone(string(name))
		d.chains[chain] = chain
	}
	return nft.Verdict{Code: code, Chain: chain}, true
}
