package kernel

import (
	"bytes"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// recognise finds the rule that a kernel's expressions were written for, if it
// consists of matches of addresses, interfaces, protocols and sets, of lookups
// and of a verdict. It guesses loosely, and then sees whether the guess is
// written in the same way.
func recognise(have rawRule, family nft.Family) (nft.Rule, bool) {
	r := recogniser{family: family}
	for _, attrs := range attributes(have.expressions) {
		if !r.expression(text(attribute(attrs, unix.NFTA_EXPR_NAME)), attribute(attrs, unix.NFTA_EXPR_DATA)) {
			return nil, false
		}
	}
	return r.rule, sameRule(r.rule, have, family)
}

func sameRule(want nft.Rule, have rawRule, family nft.Family) bool {
	var e encoder
	if have.more || e.rule(want, family) != nil {
		return false
	}
	return sameExpressions(e.b[attrHeader:], have.expressions)
}

// recogniser goes through the expressions of one rule.
type recogniser struct {
	family nft.Family
	rule   nft.Rule
	// loaded are the fields in the registers. Instead of them there may be the
	// name of the input interface, or whether an address is local.
	loaded    nft.Fields
	input     bool
	localness nft.Field
	mask      []byte
}

func (r *recogniser) expression(name string, data []byte) bool {
	switch name {
	case "payload":
		var x expr.Payload
		return r.decode(data, &x) && r.payload(&x)
	case "meta":
		var x expr.Meta
		return r.decode(data, &x) && r.meta(&x)
	case "fib":
		var x expr.Fib
		r.localness = nft.Daddr
		ok := r.decode(data, &x)
		if x.FlagSADDR {
			r.localness = nft.Saddr
		}
		return ok
	case "bitwise":
		var x expr.Bitwise
		ok := r.decode(data, &x)
		r.mask = x.Mask
		return ok
	case "cmp":
		var x expr.Cmp
		return r.decode(data, &x) && r.compare(x.Op == expr.CmpOpNeq, x.Data)
	case "lookup":
		var x expr.Lookup
		return r.decode(data, &x) && r.lookup(&x)
	case "immediate":
		var x expr.Verdict
		return r.decode(data, &x) && r.verdict(&x)
	}
	return false
}

func (r *recogniser) decode(data []byte, x expr.Any) bool {
	return data != nil && expr.Unmarshal(byte(r.family), data, x) == nil
}

func (r *recogniser) payload(x *expr.Payload) bool {
	for _, f := range []nft.Field{nft.Saddr, nft.Daddr, nft.Dport} {
		if known := load(f, r.family, 0).(*expr.Payload); known.Base == x.Base && known.Offset == x.Offset {
			r.loaded = append(r.loaded, f)
			return true
		}
	}
	return false
}

func (r *recogniser) meta(x *expr.Meta) bool {
	switch {
	case x.SourceRegister:
		return false
	case x.Key == expr.MetaKeyL4PROTO:
		r.loaded = append(r.loaded, nft.L4Proto)
	case x.Key == expr.MetaKeyIIFNAME:
		r.input = true
	default:
		return false
	}
	return true
}

// compare makes a match of what is in the registers.
func (r *recogniser) compare(not bool, data []byte) bool {
	switch {
	case r.input:
		name := string(bytes.TrimRight(data, "\x00"))
		r.add(nft.MatchInput{Not: not, Name: name, Prefix: len(data) < unix.IFNAMSIZ})
	case r.localness != 0:
		r.add(nft.MatchLocal{Field: r.localness, Not: not})
	case len(r.loaded) != 1:
		return false
	case r.loaded[0] == nft.L4Proto && len(data) == 1:
		r.add(nft.MatchProto{Protocol: data[0]})
	case r.loaded[0] != nft.Dport && len(data) <= r.family.AddrLen():
		bits := 8 * len(data)
		if r.mask != nil {
			bits = 0
			for bits < 8*len(r.mask) && r.mask[bits/8]&(0x80>>(bits%8)) != 0 {
				bits++
			}
		}
		addr, _ := netip.AddrFromSlice(append(bytes.Clone(data), make([]byte, r.family.AddrLen()-len(data))...))
		r.add(nft.MatchAddr{Field: r.loaded[0], Not: not, Prefix: netip.PrefixFrom(addr, bits)})
	default:
		return false
	}
	return true
}

func (r *recogniser) lookup(x *expr.Lookup) bool {
	if x.IsDestRegSet {
		r.add(nft.VMap{Key: r.loaded, Map: x.SetName})
	} else {
		r.add(nft.InSet{Key: r.loaded, Set: x.SetName})
	}
	return true
}

func (r *recogniser) verdict(x *expr.Verdict) bool {
	v := nft.Verdict{Code: nft.VerdictCode(x.Kind), Chain: x.Chain}
	if x.Kind == expr.VerdictDrop {
		v.Code = nft.Drop
	}
	r.add(v)
	return true
}

// add ends a statement: the next one loads anew.
func (r *recogniser) add(s nft.Statement) {
	*r = recogniser{family: r.family, rule: append(r.rule, s)}
}
