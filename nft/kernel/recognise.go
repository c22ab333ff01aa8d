package kernel

import (
	"bytes"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"nftproxy/nft"
)

// recogniseRule returns the rule with these expressions in the kernel, if it consists of
// matches of addresses, interfaces, protocols and sets, of lookups and of a verdict. It
// guesses loosely, and then compares the encoding of the guess.
func recogniseRule(have rawRule, family nft.Family) (nft.Rule, bool) {
	r := recogniser{family: family}
	for _, attrs := range attributes(have.expressions) {
		if !r.addExpression(text(attribute(attrs, unix.NFTA_EXPR_NAME)), attribute(attrs, unix.NFTA_EXPR_DATA)) {
			return nil, false
		}
	}
	return r.rule, sameRule(r.rule, have, family)
}

func sameRule(want nft.Rule, have rawRule, family nft.Family) bool {
	var e encoder
	if have.more || e.addRule(want, family) != nil {
		return false
	}
	return sameExpressions(e.b[attrHeader:], have.expressions)
}

// recogniser walks through the expressions of one rule.
type recogniser struct {
	family nft.Family
	rule   nft.Rule
	// loaded is the fields in the registers. Instead of fields, they may hold the name of
	// the input interface, or whether an address is local.
	loaded    nft.Fields
	input     bool
	localness nft.Field
	mask      []byte
}

func (r *recogniser) addExpression(name string, data []byte) bool {
	switch name {
	case "payload":
		var x expr.Payload
		return r.decodeExpression(data, &x) && r.loadPayload(&x)
	case "meta":
		var x expr.Meta
		return r.decodeExpression(data, &x) && r.loadMeta(&x)
	case "fib":
		var x expr.Fib
		r.localness = nft.Daddr
		ok := r.decodeExpression(data, &x)
		if x.FlagSADDR {
			r.localness = nft.Saddr
		}
		return ok
	case "bitwise":
		var x expr.Bitwise
		ok := r.decodeExpression(data, &x)
		r.mask = x.Mask
		return ok
	case "cmp":
		var x expr.Cmp
		return r.decodeExpression(data, &x) && r.addMatch(x.Op == expr.CmpOpNeq, x.Data)
	case "lookup":
		var x expr.Lookup
		return r.decodeExpression(data, &x) && r.addLookup(&x)
	case "immediate":
		var x expr.Verdict
		return r.decodeExpression(data, &x) && r.addVerdict(&x)
	}
	return false
}

func (r *recogniser) decodeExpression(data []byte, x expr.Any) bool {
	return data != nil && expr.Unmarshal(byte(r.family), data, x) == nil
}

func (r *recogniser) loadPayload(x *expr.Payload) bool {
	for _, f := range []nft.Field{nft.Saddr, nft.Daddr, nft.Dport} {
		if known := loadField(f, r.family, 0).(*expr.Payload); known.Base == x.Base && known.Offset == x.Offset {
			r.loaded = append(r.loaded, f)
			return true
		}
	}
	return false
}

func (r *recogniser) loadMeta(x *expr.Meta) bool {
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

// addMatch adds a match of what the registers hold.
func (r *recogniser) addMatch(not bool, data []byte) bool {
	switch {
	case r.input:
		name := string(bytes.TrimRight(data, "\x00"))
		r.addStatement(nft.MatchInput{Not: not, Name: name, Prefix: len(data) < unix.IFNAMSIZ})
	case r.localness != 0:
		r.addStatement(nft.MatchLocal{Field: r.localness, Not: not})
	case len(r.loaded) != 1:
		return false
	case r.loaded[0] == nft.L4Proto && len(data) == 1:
		r.addStatement(nft.MatchProto{Protocol: data[0]})
	case r.loaded[0] != nft.Dport && len(data) <= r.family.AddrLen():
		bits := 8 * len(data)
		if r.mask != nil {
			bits = 0
			for bits < 8*len(r.mask) && r.mask[bits/8]&(0x80>>(bits%8)) != 0 {
				bits++
			}
		}
		addr, _ := netip.AddrFromSlice(append(bytes.Clone(data), make([]byte, r.family.AddrLen()-len(data))...))
		r.addStatement(nft.MatchAddr{Field: r.loaded[0], Not: not, Prefix: netip.PrefixFrom(addr, bits)})
	default:
		return false
	}
	return true
}

func (r *recogniser) addLookup(x *expr.Lookup) bool {
	if x.IsDestRegSet {
		r.addStatement(nft.VMap{Key: r.loaded, Map: x.SetName})
	} else {
		r.addStatement(nft.InSet{Key: r.loaded, Set: x.SetName})
	}
	return true
}

func (r *recogniser) addVerdict(x *expr.Verdict) bool {
	v := nft.Verdict{Code: nft.VerdictCode(x.Kind), Chain: x.Chain}
	if x.Kind == expr.VerdictDrop {
		v.Code = nft.Drop
	}
	r.addStatement(v)
	return true
}

// addStatement ends a statement and clears the registers.
func (r *recogniser) addStatement(s nft.Statement) {
	*r = recogniser{family: r.family, rule: append(r.rule, s)}
}
