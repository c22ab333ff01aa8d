package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
	"nftproxy/nft"
)

// Offsets in packet headers, in bytes.
const (
	ipv4SaddrOffset = 12
	ipv4DaddrOffset = 16
	ipv6SaddrOffset = 8
	ipv6DaddrOffset = 24
	sportOffset     = 0 // in TCP, UDP and SCTP alike
	dportOffset     = 2
	icmpTypeOffset  = 0 // in ICMP and ICMPv6 alike
	tcpFlagsOffset  = 13
)

// The values that matches compare with.
const (
	statusDNAT = 1 << 5 // IPS_DST_NAT of enum ip_conntrack_status

	icmpPortUnreachable   = 3 // ICMP_PORT_UNREACH
	icmpv6PortUnreachable = 4 // ICMPV6_PORT_UNREACH
)

// The flags of TCP that say what a packet does, and the one of a packet that opens a connection (RFC 9293, 3.1).
const (
	tcpFlags = 0x01 | tcpSYN | 0x04 | 0x10 // FIN, SYN, RST, ACK
	tcpSYN   = 0x02
)

// echoRequest is the type of the family's echo requests: ICMP_ECHO or ICMPV6_ECHO_REQUEST.
func echoRequest(family nft.Family) byte {
	if family == nft.IPv6 {
		return 128
	}
	return 8
}

// register is the number of the register that starts at the 32-bit word. Each fourth word
// has the number of the 128-bit register, as in the kernel's dumps and in nft.
func register(word int) uint32 {
	if word%4 == 0 {
		return uint32(unix.NFT_REG_1 + word/4)
	}
	return uint32(unix.NFT_REG32_00 + word)
}

// addRule adds the expressions of a rule as an attribute, and its comment as another one. They are the same that nft
// writes for the rule's text, so nft can print them.
func (e *encoder) addRule(r nft.Rule, family nft.Family) error {
	list := e.BeginNest(unix.NFTA_RULE_EXPRESSIONS)
	var comment nft.Comment
	for i, s := range r {
		if c, ok := s.(nft.Comment); ok && i == len(r)-1 {
			comment = c
			break
		}
		exprs, err := statementExpressions(s, family)
		if err != nil {
			return err
		}
		for _, x := range exprs {
			b, err := expr.Marshal(byte(family), x)
			if err != nil {
				return fmt.Errorf("encode %T of %q: %w", x, s.Text(family), err)
			}
			e.Bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, b)
		}
	}
	e.EndNest(list)
	if comment != "" {
		e.Bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, string(comment)))
	}
	return nil
}

func statementExpressions(s nft.Statement, family nft.Family) ([]expr.Any, error) {
	switch s := s.(type) {
	case nft.MatchAddr:
		return matchAddrExpressions(s, family)
	case nft.MatchProto:
		return []expr.Any{loadField(nft.L4Proto, family, 0), compareExpression(false, []byte{s.Protocol})}, nil
	case nft.MatchEcho:
		return []expr.Any{
			loadField(nft.L4Proto, family, 0), compareExpression(false, []byte{nft.EchoProtocol(family)}),
			&expr.Payload{DestRegister: register(0), Base: expr.PayloadBaseTransportHeader, Offset: icmpTypeOffset, Len: 1},
			compareExpression(false, []byte{echoRequest(family)}),
		}, nil
	case nft.MatchMidstream:
		return []expr.Any{
			loadField(nft.L4Proto, family, 0), compareExpression(false, []byte{unix.IPPROTO_TCP}),
			&expr.Payload{DestRegister: register(0), Base: expr.PayloadBaseTransportHeader, Offset: tcpFlagsOffset, Len: 1},
			bitwiseExpression([]byte{tcpFlags}, []byte{0}), compareExpression(true, []byte{tcpSYN}),
		}, nil
	case nft.MatchLocal:
		return []expr.Any{
			&expr.Fib{Register: register(0), ResultADDRTYPE: true, FlagSADDR: s.Field == nft.Saddr,
				FlagDADDR: s.Field == nft.Daddr, FlagIIF: s.Input},
			compareExpression(s.Not, nfnetlink.HostOrder(unix.RTN_LOCAL)),
		}, nil
	case nft.MatchInput:
		return matchInputExpressions(s)
	case nft.MatchMark:
		return []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)},
			bitwiseExpression(nfnetlink.HostOrder(s.Mask), nfnetlink.HostOrder(0)),
			compareExpression(true, nfnetlink.HostOrder(0)),
		}, nil
	case nft.MatchLabel:
		return matchLabelExpressions(s)
	case nft.MatchDNATed:
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: register(0)},
			bitwiseExpression(nfnetlink.HostOrder(statusDNAT), nfnetlink.HostOrder(0)),
			compareExpression(true, nfnetlink.HostOrder(0)),
		}, nil
	case nft.InSet:
		return append(loadFields(s.Key, family, 0), &expr.Lookup{SourceRegister: register(0), SetName: s.Set}), nil
	case nft.VMap:
		return append(loadFields(s.Key, family, 0), &expr.Lookup{
			SourceRegister: register(0), DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: s.Map,
		}), nil
	case nft.DNAT:
		return dnatExpressions(s, family), nil
	case nft.DNATTo:
		return natToExpressions(expr.NAT{Type: expr.NATTypeDestNAT}, s.Addr, family)
	case nft.Sample:
		hash := hashExpressions(s.Hash(), expr.Hash{Modulus: s.Of}, family, 0, wordsOfOne)
		return append(hash, compareExpression(false, nfnetlink.HostOrder(0))), nil
	case nft.Log:
		return []expr.Any{&expr.Log{Key: 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_SNAPLEN,
			Data: []byte(s.Prefix), Group: s.Group, Snaplen: s.Bytes}}, nil
	case nft.Limit:
		return []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(s.PerSecond), Unit: expr.LimitTimeSecond,
			Burst: s.Burst}}, nil
	case nft.Update:
		return updateExpressions(s, family)
	case nft.SetMark:
		return markExpressions(s.Mask, s.Mask), nil
	case nft.ClearMark:
		return markExpressions(s.Mask, 0), nil
	case nft.SetTimeout:
		return []expr.Any{&expr.Objref{Type: objectTimeout, Name: s.Name}}, nil
	case nft.SetLabel:
		return setLabelExpressions(s)
	case nft.Masquerade:
		return []expr.Any{&expr.Masq{FullyRandom: true}}, nil
	case nft.SNATTo:
		return natToExpressions(expr.NAT{Type: expr.NATTypeSourceNAT, FullyRandom: true}, s.Addr, family)
	case nft.Counter:
		return []expr.Any{&expr.Counter{}}, nil
	case nft.Reject:
		return []expr.Any{rejectExpression(s, family)}, nil
	case nft.Verdict:
		return []expr.Any{&expr.Verdict{Kind: expr.VerdictKind(verdictCode(s)), Chain: s.Chain}}, nil
	}
	return nil, fmt.Errorf("no encoding for %T %q", s, s.Text(family))
}

// verdictCode is the kernel's number of the verdict.
func verdictCode(v nft.Verdict) int32 {
	if v.Code == nft.Drop {
		return 0 // NF_DROP
	}
	return int32(v.Code)
}

// matchAddrExpressions compares only the bytes of a prefix that ends at a byte, as nft
// does. For any other prefix it masks the address.
func matchAddrExpressions(s nft.MatchAddr, family nft.Family) ([]expr.Any, error) {
	addr, bits := s.Prefix.Masked().Addr(), s.Prefix.Bits()
	if bits < 0 || addr.BitLen() != 8*family.AddrLen() {
		return nil, fmt.Errorf("prefix %v does not fit a table of family %s", s.Prefix, family)
	}
	field := loadField(s.Field, family, 0)
	if bits > 0 && bits%8 == 0 {
		field.(*expr.Payload).Len = uint32(bits / 8)
		return []expr.Any{field, compareExpression(s.Not, addr.AsSlice()[:bits/8])}, nil
	}
	mask := make([]byte, family.AddrLen())
	for i := range bits {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{field, bitwiseExpression(mask, make([]byte, len(mask))), compareExpression(s.Not, addr.AsSlice())},
		nil
}

// loadField loads a field into the register that starts at the word.
func loadField(f nft.Field, family nft.Family, word int) expr.Any {
	header := func(v4, v6 uint32) *expr.Payload {
		offset := v4
		if family == nft.IPv6 {
			offset = v6
		}
		return &expr.Payload{
			DestRegister: register(word), Base: expr.PayloadBaseNetworkHeader,
			Offset: offset, Len: uint32(family.AddrLen()),
		}
	}
	switch f {
	case nft.Saddr:
		return header(ipv4SaddrOffset, ipv6SaddrOffset)
	case nft.Daddr:
		return header(ipv4DaddrOffset, ipv6DaddrOffset)
	case nft.L4Proto:
		return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(word)}
	case nft.Dport, nft.Sport:
		offset := uint32(dportOffset)
		if f == nft.Sport {
			offset = sportOffset
		}
		return &expr.Payload{
			DestRegister: register(word), Base: expr.PayloadBaseTransportHeader,
			Offset: offset, Len: 2,
		}
	case nft.OrigSaddr:
		return originalField(family, expr.CtKeySRCIP, expr.CtKeySRCIP6, word)
	case nft.OrigDaddr:
		return originalField(family, expr.CtKeyDSTIP, expr.CtKeyDSTIP6, word)
	case nft.OrigDport:
		return originalField(family, expr.CtKeyPROTODST, expr.CtKeyPROTODST, word)
	}
	return indexExpression(numgenMod, word)
}

// originalField is a field of the connection's first packet as it arrived. nft reads
// addresses by keys that say the family (Linux 4.17).
func originalField(family nft.Family, v4, v6 expr.CtKey, word int) expr.Any {
	key := v4
	if family == nft.IPv6 {
		key = v6
	}
	return &expr.Ct{Key: key, Register: register(word), OptDirection: true, Direction: expr.CtDirOriginal}
}

func indexExpression(mod uint32, word int) expr.Any {
	return &expr.Numgen{Register: register(word), Modulus: mod, Type: unix.NFT_NG_RANDOM}
}

// loadFields loads a concatenation into the registers from the word on.
func loadFields(fields nft.Fields, family nft.Family, word int) []expr.Any {
	exprs := make([]expr.Any, 0, len(fields)+3)
	for i, f := range fields {
		exprs = append(exprs, loadField(f, family, word+fields[:i].Len(family)/4))
	}
	return exprs
}

func dnatExpressions(s nft.DNAT, family nft.Family) []expr.Any {
	// The map's data replaces the key in the registers: the address, then the port. The
	// kernel's dump also has the end of each range.
	addr, port := register(0), register(family.AddrLen()/4)
	exprs := loadFields(s.Key, family, 0)
	switch word := s.Key.Len(family) / 4; {
	case s.Mod > 0 && len(s.Hash) > 0:
		hash := expr.Hash{Modulus: s.Mod, Seed: nft.HashSeed}
		exprs = append(exprs, hashExpressions(s.Hash, hash, family, word, word+1+wordsOfOne)...)
	case s.Mod > 0:
		exprs = append(exprs, indexExpression(s.Mod, word))
	}
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: addr, RegAddrMax: addr}
	if !s.KeepPort {
		nat.RegProtoMin, nat.RegProtoMax = port, port
	}
	return append(exprs, &expr.Lookup{SourceRegister: register(0), DestRegister: register(0), IsDestRegSet: true,
		SetName: s.Map}, nat)
}

// natToExpressions load the address into the registers, and translate to it.
func natToExpressions(nat expr.NAT, to netip.Addr, family nft.Family) ([]expr.Any, error) {
	if to.BitLen() != 8*family.AddrLen() {
		return nil, fmt.Errorf("address %v does not fit a table of family %s", to, family)
	}
	nat.Family, nat.RegAddrMin, nat.RegAddrMax = uint32(family), register(0), register(0)
	return []expr.Any{&expr.Immediate{Register: register(0), Data: to.AsSlice()}, &nat}, nil
}

// hashExpressions put the hash of the fields into the register of the word. They load the fields from another one on:
// nft leaves a whole 128-bit register.
func hashExpressions(fields nft.Fields, hash expr.Hash, family nft.Family, word, from int) []expr.Any {
	hash.SourceRegister, hash.DestRegister = register(from), register(word)
	hash.Length, hash.Type = uint32(fields.Len(family)), expr.HashTypeJenkins
	return append(loadFields(fields, family, from), &hash)
}

// wordsOfOne is how many 32-bit words nft uses for a single field: a whole 128-bit
// register.
const wordsOfOne = 4

// updateExpressions loads the key into the registers and the data, if there is any, after
// it.
func updateExpressions(s nft.Update, family nft.Family) ([]expr.Any, error) {
	if err := s.Check(family); err != nil {
		return nil, fmt.Errorf("%q: %w", s.Text(family), err)
	}
	if len(s.Data) == 0 {
		return append(loadFields(s.Key, family, 0), &expr.Dynset{
			SrcRegKey: register(0), SetName: s.Map, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.Timeout,
		}), nil
	}
	dataWord := s.Key.Len(family) / 4
	if len(s.Key) == 1 {
		dataWord = wordsOfOne
	}
	return append(slices.Concat(loadFields(s.Key, family, 0), loadFields(s.Data, family, dataWord)), &expr.Dynset{
		SrcRegKey: register(0), SrcRegData: register(dataWord), SetName: s.Map,
		Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.Timeout,
	}), nil
}

// markExpressions clears the bits of the mask and sets those given.
func markExpressions(mask, set uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)},
		bitwiseExpression(nfnetlink.HostOrder(^mask), nfnetlink.HostOrder(set)),
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: register(0)},
	}
}

// labelBytes is how long the labels of a connection are.
const labelBytes = 16

// labelBit is the bit of a label in the registers. As in nft, the labels are one number in the byte
// order of the host.
func labelBit(bit uint8) ([]byte, error) {
	if bit >= 8*labelBytes {
		return nil, fmt.Errorf("label %d: want 0 to %d", bit, 8*labelBytes-1)
	}
	b := make([]byte, labelBytes)
	b[bit/8] = 1 << (bit % 8)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		slices.Reverse(b)
	}
	return b, nil
}

// labelOf is the label that labelBit gives the data; false if it is not one label's.
func labelOf(data []byte) (bit uint8, ok bool) {
	for bit := range uint8(8 * labelBytes) {
		if b, err := labelBit(bit); err == nil && string(b) == string(data) {
			return bit, true
		}
	}
	return 0, false
}

func matchLabelExpressions(s nft.MatchLabel) ([]expr.Any, error) {
	bit, err := labelBit(s.Bit)
	if err != nil {
		return nil, err
	}
	none := make([]byte, labelBytes)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyLABELS, Register: register(0)}, bitwiseExpression(bit, none), compareExpression(true, none),
	}, nil
}

func setLabelExpressions(s nft.SetLabel) ([]expr.Any, error) {
	bit, err := labelBit(s.Bit)
	if err != nil {
		return nil, err
	}
	return []expr.Any{
		&expr.Immediate{Register: register(0), Data: bit}, &expr.Ct{Key: expr.CtKeyLABELS, SourceRegister: true,
			Register: register(0)},
	}, nil
}

func rejectExpression(s nft.Reject, family nft.Family) expr.Any {
	switch {
	case s.TCPReset:
		return &expr.Reject{Type: unix.NFT_REJECT_TCP_RST}
	case family == nft.IPv6:
		return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpv6PortUnreachable}
	}
	return &expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: icmpPortUnreachable}
}

// compareExpression ends the rule unless the first register holds the data (with not: unless
// it holds other data).
func compareExpression(not bool, data []byte) expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Cmp{Op: op, Register: register(0), Data: data}
}

// matchInputExpressions compares a name with its padding, and a prefix without any.
func matchInputExpressions(s nft.MatchInput) ([]expr.Any, error) {
	most := unix.IFNAMSIZ - 1
	if s.Prefix {
		most-- // nft counts its asterisk
	}
	if len(s.Name) == 0 || len(s.Name) > most {
		return nil, fmt.Errorf("interface name %q: want 1 to %d bytes", s.Name, most)
	}
	name := []byte(s.Name)
	if !s.Prefix {
		name = make([]byte, unix.IFNAMSIZ)
		copy(name, s.Name)
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(0)}, compareExpression(s.Not, name)}, nil
}

// bitwiseExpression is (first register & mask) ^ xor.
func bitwiseExpression(mask, xor []byte) expr.Any {
	return &expr.Bitwise{
		SourceRegister: register(0), DestRegister: register(0),
		Len: uint32(len(mask)), Mask: mask, Xor: xor,
	}
}
