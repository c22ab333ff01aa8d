package kernel

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// recogniseRule returns the rule with these expressions in the kernel. The rule ends with
// nft.Unknown if it has more than the statements of package nft, from the first other expression
// on. recogniseRule guesses loosely, and then compares the encoding of the guess.
func recogniseRule(have rawRule, family nft.Family) nft.Rule {
	r := recogniser{family: family, raw: have.expressions}
	known := true
	for _, attrs := range have.expressions.All() {
		r.read += nfnetlink.Align(nfnetlink.AttributeAt + len(attrs))
		if known = r.addExpression(attrs.Text(unix.NFTA_EXPR_NAME), attrs.Get(unix.NFTA_EXPR_DATA)); !known {
			break
		}
	}
	known = known && r.empty()
	whole := r.rule
	if c, ok := readUserdata(have.userdata); ok && len(c) > 0 {
		whole = append(r.rule[:len(r.rule):len(r.rule)], nft.Comment(c))
	}
	if known && sameRule(whole, have, family) {
		return whole
	}
	if have.compat { // the expressions do not say everything
		return nft.Rule{nft.Unknown{}}
	}
	for n := len(r.rule); n > 0; n-- {
		if r.isBeginning(r.rule[:n], r.ends[n-1]) {
			return append(r.rule[:n:n], nft.Unknown{})
		}
	}
	return nft.Rule{nft.Unknown{}}
}

func sameRule(want nft.Rule, have rawRule, family nft.Family) bool {
	var e encoder
	if have.compat || e.addRule(want, family) != nil {
		return false
	}
	return sameExpressions(nfnetlink.Attributes(e.B).Get(unix.NFTA_RULE_EXPRESSIONS), have.expressions) &&
		bytes.Equal(nfnetlink.Attributes(e.B).Get(unix.NFTA_RULE_USERDATA), have.userdata)
}

// recogniser walks through the expressions of one rule.
type recogniser struct {
	family nft.Family
	raw    []byte
	rule   nft.Rule
	// read is how many bytes of raw have been read, and ends how many each statement and those before
	// it take.
	read int
	ends []int
	registers
}

// isBeginning says whether the first bytes of the expressions are those of the rule.
func (r *recogniser) isBeginning(rule nft.Rule, bytes int) bool {
	return sameRule(rule, rawRule{expressions: r.raw[:min(bytes, len(r.raw))]}, r.family)
}

// registers says what the registers hold.
type registers struct {
	// loaded is the fields in the registers, and mod the modulus of a random number behind them, or of the hash of the
	// last fields. hashed is how many these are.
	loaded nft.Fields
	mod    uint32
	hashed int
	// data is the map whose data has taken the place of the fields.
	data string
	// Instead of fields, they may hold one of these: the name of the input interface, whether an
	// address is local, the packet's mark, the connection's status, its labels, the type of ICMP, the flags of TCP, a
	// constant.
	input, mark, status, labels, icmpType, tcpFlags bool
	localness                                       nft.Field
	localInput                                      bool // localness is about the input interface
	constant                                        []byte
	// mask and xor are of the last bitwise expression.
	mask, xor []byte
}

func (r *registers) empty() bool {
	return r.loaded == nil && r.mod == 0 && r.data == "" && !r.input && !r.mark && !r.status && !r.labels && !r.icmpType &&
		!r.tcpFlags && r.localness == 0 && r.constant == nil
}

func (r *recogniser) addExpression(name string, data nfnetlink.Attributes) bool {
	switch name {
	case "payload", "meta", "ct", "fib", "numgen", "hash", "bitwise":
		return r.load(name, data)
	case "cmp":
		var x expr.Cmp
		return r.decodeExpression(data, &x) && r.addMatch(x.Op == expr.CmpOpNeq, x.Data)
	case "lookup":
		var x expr.Lookup
		return r.decodeExpression(data, &x) && r.addLookup(&x)
	case "nat":
		if to, ok := netip.AddrFromSlice(r.constant); ok {
			var x expr.NAT
			if r.decodeExpression(data, &x) && x.Type == expr.NATTypeSourceNAT {
				return r.addStatement(nft.SNATTo{Addr: to})
			}
			return r.addStatement(nft.DNATTo{Addr: to})
		}
		key := len(r.loaded) - r.hashed
		return r.addStatement(nft.DNAT{Key: r.loaded[:key:key], KeepPort: len(data.Get(unix.NFTA_NAT_REG_PROTO_MIN)) == 0,
			Mod: r.mod, Hash: r.loaded[key:], Map: r.data})
	case "objref":
		var x expr.Objref
		return r.decodeExpression(data, &x) && x.Type == objectTimeout && r.addStatement(nft.SetTimeout{Name: x.Name})
	case "limit":
		var x expr.Limit
		return r.decodeExpression(data, &x) && r.addStatement(nft.Limit{PerSecond: uint32(x.Rate), Burst: x.Burst})
	case "log":
		var x expr.Log
		return len(data.Get(unix.NFTA_LOG_PREFIX)) > 0 && r.decodeExpression(data, &x) &&
			x.Snaplen > 0 && r.addStatement(nft.Log{Prefix: string(x.Data), Group: x.Group, Bytes: x.Snaplen})
	case "dynset":
		var x expr.Dynset
		return r.decodeExpression(data, &x) && r.addUpdate(&x)
	case "masq":
		return r.addStatement(nft.Masquerade{})
	case "reject":
		var x expr.Reject
		return r.decodeExpression(data, &x) && r.addStatement(nft.Reject{TCPReset: x.Type == unix.NFT_REJECT_TCP_RST})
	case counterName:
		return r.addStatement(nft.Counter{})
	case "immediate":
		// The library panics on a verdict without a code (FuzzRead).
		value := data.Get(unix.NFTA_IMMEDIATE_DATA)
		if constant := value.Get(unix.NFTA_DATA_VALUE); constant != nil {
			r.constant = constant
			return true
		}
		code, chain, ok := decodeVerdict(value)
		return ok && r.addStatement(nft.Verdict{Code: code, Chain: string(chain)})
	}
	return false
}

func (r *recogniser) decodeExpression(data nfnetlink.Attributes, x expr.Any) bool {
	return data != nil && expr.Unmarshal(byte(r.family), withoutPadding(data), x) == nil
}

// withoutPadding leaves out what some kernels put before numbers of 64 bits (saysNothing): expr takes it for an unknown
// attribute of a limit.
func withoutPadding(data nfnetlink.Attributes) nfnetlink.Attributes {
	var kept nfnetlink.Attributes
	for rest := data; len(rest) >= nfnetlink.AttributeAt; {
		size := int(binary.NativeEndian.Uint16(rest))
		whole := min(nfnetlink.Align(max(size, nfnetlink.AttributeAt)), len(rest))
		if size != nfnetlink.AttributeAt {
			kept = append(kept, rest[:whole]...)
		}
		rest = rest[whole:]
	}
	return kept
}

// load reads an expression that only changes the registers, or sets the packet's mark or a label.
func (r *recogniser) load(name string, data nfnetlink.Attributes) bool {
	switch name {
	case "payload":
		var x expr.Payload
		return r.decodeExpression(data, &x) && r.loadPayload(&x)
	case "meta":
		var x expr.Meta
		return r.decodeExpression(data, &x) && r.loadMeta(&x)
	case "ct":
		var x expr.Ct
		return r.decodeExpression(data, &x) && r.loadConnection(&x)
	case "fib":
		var x expr.Fib
		r.localness = nft.Daddr
		ok := r.decodeExpression(data, &x)
		if x.FlagSADDR {
			r.localness = nft.Saddr
		}
		r.localInput = x.FlagIIF
		ok = ok && !(x.FlagIIF && x.FlagSADDR)
		return ok
	case "numgen":
		var x expr.Numgen
		ok := r.decodeExpression(data, &x)
		r.mod = x.Modulus
		return ok
	case "hash":
		return r.loadHash(data)
	}
	var x expr.Bitwise
	ok := r.decodeExpression(data, &x)
	r.mask, r.xor = x.Mask, x.Xor
	return ok
}

// loadHash reads the hash of a client's address, or of that and its port, or of all that a sample is by.
func (r *recogniser) loadHash(data nfnetlink.Attributes) bool {
	var x expr.Hash
	ok := r.decodeExpression(data, &x)
	r.mod, r.hashed = x.Modulus, 1
	if len(r.loaded) > 0 && r.loaded[len(r.loaded)-1] == nft.Sport {
		r.hashed = 2
	}
	if slices.Equal(r.loaded, nft.Sample{}.Hash()) {
		r.hashed = len(r.loaded)
	}
	return ok && len(r.loaded) >= r.hashed
}

func (r *recogniser) loadPayload(x *expr.Payload) bool {
	if x.Base == expr.PayloadBaseTransportHeader && x.Offset == icmpTypeOffset && x.Len == 1 {
		r.icmpType = true
		return true
	}
	if x.Base == expr.PayloadBaseTransportHeader && x.Offset == tcpFlagsOffset && x.Len == 1 {
		r.tcpFlags = true
		return true
	}
	for _, f := range []nft.Field{nft.Saddr, nft.Daddr, nft.Dport, nft.Sport} {
		if known := loadField(f, r.family, 0).(*expr.Payload); known.Base == x.Base && known.Offset == x.Offset {
			r.loaded = append(r.loaded, f)
			return true
		}
	}
	return false
}

func (r *recogniser) loadMeta(x *expr.Meta) bool {
	switch {
	case x.Key == expr.MetaKeyMARK && x.SourceRegister:
		return r.mark && len(r.mask) == 4 && len(r.xor) == 4 && r.addMark(binary.NativeEndian.Uint32(r.mask),
			binary.NativeEndian.Uint32(r.xor))
	case x.SourceRegister:
		return false
	case x.Key == expr.MetaKeyMARK:
		r.mark = true
	case x.Key == expr.MetaKeyL4PROTO:
		r.loaded = append(r.loaded, nft.L4Proto)
	case x.Key == expr.MetaKeyIIFNAME:
		r.input = true
	default:
		return false
	}
	return true
}

// addMark adds a statement that sets bits of the mark, or clears bits.
func (r *recogniser) addMark(mask, set uint32) bool {
	if set != 0 {
		return r.addStatement(nft.SetMark{Mask: set})
	}
	return r.addStatement(nft.ClearMark{Mask: ^mask})
}

func (r *recogniser) loadConnection(x *expr.Ct) bool {
	switch {
	case x.Key == expr.CtKeyLABELS && x.SourceRegister:
		bit, ok := labelOf(r.constant)
		return ok && r.addStatement(nft.SetLabel{Bit: bit})
	case x.SourceRegister:
		return false
	case x.Key == expr.CtKeySTATUS:
		r.status = true
		return true
	case x.Key == expr.CtKeyLABELS:
		r.labels = true
		return true
	}
	for _, f := range []nft.Field{nft.OrigSaddr, nft.OrigDaddr, nft.OrigDport} {
		if known := loadField(f, r.family, 0).(*expr.Ct); known.Key == x.Key {
			r.loaded = append(r.loaded, f)
			return true
		}
	}
	return false
}

// addMatch adds a match of what the registers hold.
func (r *recogniser) addMatch(not bool, data nfnetlink.Attributes) bool {
	switch {
	case r.input:
		name := string(bytes.TrimRight(data, "\x00"))
		return r.addStatement(nft.MatchInput{Not: not, Name: name, Prefix: len(data) < unix.IFNAMSIZ})
	case r.localness != 0:
		return r.addStatement(nft.MatchLocal{Field: r.localness, Not: not, Input: r.localInput})
	case r.mark:
		return len(r.mask) == 4 && r.addStatement(nft.MatchMark{Mask: binary.NativeEndian.Uint32(r.mask)})
	case r.icmpType:
		return r.addBehindProtocol(nft.EchoProtocol(r.family), nft.MatchEcho{})
	case r.tcpFlags:
		return r.addBehindProtocol(unix.IPPROTO_TCP, nft.MatchMidstream{})
	case r.labels:
		bit, ok := labelOf(r.mask)
		return ok && r.addStatement(nft.MatchLabel{Bit: bit})
	case r.status:
		return r.addStatement(nft.MatchDNATed{})
	case r.mod != 0 && r.hashed > 0 && r.hashed == len(r.loaded):
		return r.addStatement(nft.Sample{Of: r.mod})
	case len(r.loaded) != 1:
		return false
	case r.loaded[0] == nft.L4Proto && len(data) == 1:
		return r.addStatement(nft.MatchProto{Protocol: data[0]})
	case (r.loaded[0] == nft.Saddr || r.loaded[0] == nft.Daddr) && len(data) <= r.family.AddrLen():
		bits := 8 * len(data)
		if r.mask != nil {
			bits = 0
			for bits < 8*len(r.mask) && r.mask[bits/8]&(0x80>>(bits%8)) != 0 {
				bits++
			}
		}
		addr, _ := netip.AddrFromSlice(append(bytes.Clone(data), make([]byte, r.family.AddrLen()-len(data))...))
		return r.addStatement(nft.MatchAddr{Field: r.loaded[0], Not: not, Prefix: netip.PrefixFrom(addr, bits)})
	}
	return false
}

// addBehindProtocol adds a statement that has the match of the protocol before it as a part.
func (r *recogniser) addBehindProtocol(protocol uint8, s nft.Statement) bool {
	last := len(r.rule) - 1
	if last < 0 || r.rule[last] != (nft.MatchProto{Protocol: protocol}) {
		return false
	}
	r.rule, r.ends = r.rule[:last], r.ends[:last]
	return r.addStatement(s)
}

func (r *recogniser) addLookup(x *expr.Lookup) bool {
	switch {
	case x.IsDestRegSet && x.DestRegister != unix.NFT_REG_VERDICT:
		r.data = x.SetName // a translation follows
		return true
	case x.IsDestRegSet:
		return r.addStatement(nft.VMap{Key: r.loaded, Map: x.SetName})
	}
	return r.addStatement(nft.InSet{Key: r.loaded, Set: x.SetName})
}

// addUpdate divides the fields into key and data. The register at which the data begins does not always
// tell: a key of one field has a whole register of 128 bits.
func (r *recogniser) addUpdate(x *expr.Dynset) bool {
	for n := 1; n <= len(r.loaded); n++ {
		u := nft.Update{Map: x.SetName, Key: r.loaded[:n:n], Data: r.loaded[n:], Timeout: x.Timeout}
		if r.isBeginning(append(r.rule[:len(r.rule):len(r.rule)], u), r.read) {
			return r.addStatement(u)
		}
	}
	return false
}

// addStatement ends a statement and clears the registers, if it is known what the statement does. What a limit lets
// through depends on earlier packets, which the model does not have: of a limited rule it knows the translation of
// pings, which takes any single packet, and, as of a sampled rule, what decides nothing about the packet.
func (r *recogniser) addStatement(s nft.Statement) bool {
	_, translates := s.(nft.DNATTo)
	if slices.ContainsFunc(r.rule, limited) && !translates && !idle(s) {
		return false
	}
	if slices.ContainsFunc(r.rule, sampled) && !idle(s) {
		return false
	}
	r.rule, r.ends = append(r.rule, s), append(r.ends, r.read)
	r.registers = registers{}
	return true
}

func limited(s nft.Statement) bool {
	_, ok := s.(nft.Limit)
	return ok
}

func sampled(s nft.Statement) bool {
	_, ok := s.(nft.Sample)
	return ok
}

// idle says that a statement behind a sample decides nothing about the packet: no rule of ours matches a label that
// another one sets for a sample, and a limit is about what follows it in the rule.
func idle(s nft.Statement) bool {
	switch s.(type) {
	case nft.SetLabel, nft.Log, nft.Limit:
		return true
	}
	return false
}
