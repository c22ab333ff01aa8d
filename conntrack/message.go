package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"

	"nftproxy/model/service"
)

// Messages and attributes of ctnetlink (Linux, nfnetlink_conntrack.h).
const (
	ctGet    = 1
	ctDelete = 2
	ctStats  = 5

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaID         = 12
	ctaZone       = 18
	ctaTimestamp  = 20
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum        = 1
	ctaProtoSrcPort    = 2
	ctaProtoDstPort    = 3
	ctaProtoICMPID     = 4
	ctaProtoICMPType   = 5
	ctaProtoICMPCode   = 6
	ctaProtoICMPv6ID   = 7
	ctaProtoICMPv6Type = 8
	ctaProtoICMPv6Code = 9

	ctaProtoInfoTCP      = 1
	ctaProtoInfoTCPState = 1
	ctaTimestampStart    = 1
	ctaFilterOrigFlags   = 1
	ctaFilterReplyFlags  = 2

	ctaStatsEntries    = 1
	ctaStatsMaxEntries = 2

	icmp   = 1
	icmpv6 = 58
)

// request makes a message. Marshaling cannot fail, since the attributes are our own.
func request(kind netfilter.MessageType, family netfilter.ProtoFamily, flags netlink.HeaderFlags, attrs ...netfilter.Attribute) netlink.Message {
	m, err := netfilter.MarshalNetlink(netfilter.Header{
		SubsystemID: netfilter.NFSubsysCTNetlink, MessageType: kind, Family: family, Flags: netlink.Request | flags,
	}, attrs)
	if err != nil {
		panic(fmt.Sprintf("marshal conntrack request: %v", err))
	}
	return m
}

// The parts of a tuple that CTA_FILTER has the kernel compare (Linux, nf_internals.h).
const (
	filterIPSrc    = 1 << 0
	filterIPDst    = 1 << 1
	filterProtoNum = 1 << 3
	filterSrcPort  = 1 << 4
	filterDstPort  = 1 << 5
)

// dumpRequests makes the requests for dumps with the parts of the filter that the
// kernel can compare. Kernels before 5.8 ignore the tuples, those before 5.15 the
// status.
func dumpRequests(f Filter) []netlink.Message {
	families := f.families()
	requests := make([]netlink.Message, len(families))
	for i, family := range families {
		requests[i] = request(ctGet, family, netlink.Dump, filterAttributes(f)...)
	}
	return requests
}

// families returns the families to dump, with a request for each.
func (f Filter) families() []netfilter.ProtoFamily {
	a := f.Dst
	if !a.IsValid() {
		a = f.Endpoint.Addr()
	}
	switch {
	case a.Is4():
		return []netfilter.ProtoFamily{netfilter.ProtoIPv4}
	case a.IsValid():
		return []netfilter.ProtoFamily{netfilter.ProtoIPv6}
	case f.Protocol != 0: // A tuple needs a family.
		return []netfilter.ProtoFamily{netfilter.ProtoIPv4, netfilter.ProtoIPv6}
	}
	return []netfilter.ProtoFamily{netfilter.ProtoUnspec}
}

// end is the part of a filter about one end of a tuple, with the kernel's names for it.
type end struct {
	addr     netip.Addr
	protocol service.Protocol
	port     uint16

	ipv4, portKind       uint16 // attributes
	byAddr, byPort       uint32 // flags
	tupleKind, flagsKind uint16 // attributes
}

func filterAttributes(f Filter) []netfilter.Attribute {
	var attrs, compare []netfilter.Attribute
	if f.Mask != 0 { // The kernel refuses an empty mask.
		attrs = append(attrs, be32(ctaStatus, uint32(f.Status)), be32(ctaStatusMask, uint32(f.Mask)))
	}
	for _, e := range []end{
		{f.Dst, f.Protocol, f.Port, ctaIPv4Dst, ctaProtoDstPort, filterIPDst, filterDstPort, ctaTupleOrig, ctaFilterOrigFlags},
		{f.Endpoint.Addr(), f.Protocol, f.Endpoint.Port(), ctaIPv4Src, ctaProtoSrcPort, filterIPSrc, filterSrcPort, ctaTupleReply, ctaFilterReplyFlags},
	} {
		if tuple, flags := e.tuple(); flags != 0 {
			attrs = append(attrs, nested(e.tupleKind, tuple...))
			// The flags are in the machine's byte order, unlike all other numbers.
			compare = append(compare, netfilter.Attribute{Type: e.flagsKind, Data: binary.NativeEndian.AppendUint32(nil, flags)})
		}
	}
	if len(compare) > 0 {
		attrs = append(attrs, nested(ctaFilter, compare...))
	}
	return attrs
}

// tuple returns the attributes that the kernel can compare, and the flags that select
// them.
func (e *end) tuple() (attrs []netfilter.Attribute, flags uint32) {
	// IPv6 addresses are left out: kernels from 5.8 to at least 6.18 compare them the
	// wrong way round, and select all entries but the wanted ones.
	if e.addr.Is4() {
		flags |= e.byAddr
		attrs = append(attrs, nested(ctaTupleIP, netfilter.Attribute{Type: e.ipv4, Data: e.addr.AsSlice()}))
	}
	if e.protocol != 0 {
		flags |= filterProtoNum
		proto := []netfilter.Attribute{{Type: ctaProtoNum, Data: []byte{uint8(e.protocol)}}}
		if e.port != 0 && (e.protocol == service.TCP || e.protocol == service.UDP) { // The kernel compares no other ports.
			flags |= e.byPort
			proto = append(proto, be16(e.portKind, e.port))
		}
		attrs = append(attrs, nested(ctaTupleProto, proto...))
	}
	return attrs, flags
}

// deleteRequest makes the deletion of an entry, with its original tuple and its ID. By
// the ID the kernel spares a younger entry with the same tuple.
func deleteRequest(f *Flow) netlink.Message {
	family, tuple := originalTuple(f)
	attrs := []netfilter.Attribute{tuple, be32(ctaID, f.ID)}
	if f.Zone != 0 && !f.OnlyReply { // The kernel looks for the original tuple.
		attrs = append(attrs, be16(ctaZone, f.Zone))
	}
	return request(ctDelete, family, 0, attrs...)
}

// findRequest asks for the entry with an original tuple in the default zone.
func findRequest(f *Flow) netlink.Message {
	family, tuple := originalTuple(f)
	return request(ctGet, family, 0, tuple)
}

func originalTuple(f *Flow) (netfilter.ProtoFamily, netfilter.Attribute) {
	family, src, dst := netfilter.ProtoIPv4, uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if f.V6() {
		family, src, dst = netfilter.ProtoIPv6, ctaIPv6Src, ctaIPv6Dst
	}
	return family, nested(ctaTupleOrig,
		nested(ctaTupleIP,
			netfilter.Attribute{Type: src, Data: f.Original.Src.Addr().AsSlice()},
			netfilter.Attribute{Type: dst, Data: f.Original.Dst.Addr().AsSlice()}),
		nested(ctaTupleProto, protoAttributes(f)...))
}

func protoAttributes(f *Flow) []netfilter.Attribute {
	src, dst := f.Original.Src.Port(), f.Original.Dst.Port()
	number := netfilter.Attribute{Type: ctaProtoNum, Data: []byte{uint8(f.Protocol)}}
	switch f.Protocol {
	case icmp:
		return []netfilter.Attribute{number, be16(ctaProtoICMPID, src),
			{Type: ctaProtoICMPType, Data: []byte{byte(dst >> 8)}}, {Type: ctaProtoICMPCode, Data: []byte{byte(dst)}}}
	case icmpv6:
		return []netfilter.Attribute{number, be16(ctaProtoICMPv6ID, src),
			{Type: ctaProtoICMPv6Type, Data: []byte{byte(dst >> 8)}}, {Type: ctaProtoICMPv6Code, Data: []byte{byte(dst)}}}
	}
	return []netfilter.Attribute{number, be16(ctaProtoSrcPort, src), be16(ctaProtoDstPort, dst)}
}

func nested(kind uint16, children ...netfilter.Attribute) netfilter.Attribute {
	return netfilter.Attribute{Type: kind, Nested: true, Children: children}
}

func be32(kind uint16, v uint32) netfilter.Attribute {
	return netfilter.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, v)}
}

func be16(kind, v uint16) netfilter.Attribute {
	return netfilter.Attribute{Type: kind, Data: binary.BigEndian.AppendUint16(nil, v)}
}

// nfgenmsgLen is the length of the header before the attributes, in bytes.
const nfgenmsgLen = 4

// parseFlow decodes an entry. It allocates no memory, since a table may have a million
// entries.
func parseFlow(b []byte) (Flow, error) {
	var f Flow
	if len(b) < nfgenmsgLen {
		return f, errMalformed
	}
	for a, err := range attributes(b[nfgenmsgLen:]) {
		if err == nil {
			err = f.set(a)
		}
		if err != nil {
			return f, err
		}
	}
	src, dst := f.Original.Src.Addr(), f.Original.Dst.Addr()
	if !src.IsValid() || !dst.IsValid() || src.Is6() != dst.Is6() {
		return f, errMalformed
	}
	return f, nil
}

func (f *Flow) set(a attribute) (err error) {
	switch a.kind {
	case ctaTupleOrig:
		f.Original, err = f.parseTuple(a.data)
	case ctaTupleReply:
		zone := f.Zone
		f.Zone = 0
		f.Reply, err = f.parseTuple(a.data)
		if f.OnlyReply = f.Zone != 0; !f.OnlyReply {
			f.Zone = zone
		}
	case ctaStatus:
		var v uint32
		v, err = a.uint32()
		f.Status = Status(v)
	case ctaID:
		f.ID, err = a.uint32()
	case ctaZone:
		f.Zone, err = a.uint16()
	case ctaTimeout:
		var seconds uint32
		seconds, err = a.uint32()
		f.Timeout = time.Duration(seconds) * time.Second
	case ctaTimestamp:
		f.Start, err = parseStart(a.data)
	case ctaProtoInfo:
		f.TCPState, err = parseTCPState(a.data)
	}
	return err
}

// parseStart decodes the time when the entry was made, in nanoseconds since 1970.
func parseStart(b []byte) (start time.Time, err error) {
	for a, err := range attributes(b) {
		if err == nil && a.kind == ctaTimestampStart {
			var ns uint64
			ns, err = a.uint64()
			start = time.Unix(0, int64(ns)).UTC()
		}
		if err != nil {
			return time.Time{}, err
		}
	}
	return start, nil
}

func parseTCPState(b []byte) (state TCPState, err error) {
	for protocol, err := range attributes(b) {
		if err != nil {
			return 0, err
		}
		if protocol.kind != ctaProtoInfoTCP {
			continue
		}
		for a, err := range attributes(protocol.data) {
			if err == nil && a.kind == ctaProtoInfoTCPState {
				var v uint8
				v, err = a.uint8()
				state = TCPState(v)
			}
			if err != nil {
				return 0, err
			}
		}
	}
	return state, nil
}

func parseCount(b []byte) (entries, limit int, err error) {
	if len(b) < nfgenmsgLen {
		return 0, 0, errMalformed
	}
	for a, err := range attributes(b[nfgenmsgLen:]) {
		var v uint32
		if err == nil {
			v, err = a.uint32()
		}
		if err != nil {
			return 0, 0, err
		}
		switch a.kind {
		case ctaStatsEntries:
			entries = int(v)
		case ctaStatsMaxEntries:
			limit = int(v)
		}
	}
	return entries, limit, nil
}

// parseTuple decodes one direction. It sets the flow's protocol, which both directions
// have, and its zone, which may be in one direction only.
func (f *Flow) parseTuple(b []byte) (Tuple, error) {
	var src, dst netip.Addr
	var ports ports
	for outer, err := range attributes(b) {
		if err == nil && outer.kind == ctaTupleZone {
			f.Zone, err = outer.uint16()
		}
		if err != nil {
			return Tuple{}, err
		}
		if outer.kind != ctaTupleIP && outer.kind != ctaTupleProto {
			continue
		}
		for a, err := range attributes(outer.data) {
			switch {
			case err != nil:
			case outer.kind == ctaTupleIP && (a.kind == ctaIPv4Src || a.kind == ctaIPv6Src):
				src, err = a.addr()
			case outer.kind == ctaTupleIP && (a.kind == ctaIPv4Dst || a.kind == ctaIPv6Dst):
				dst, err = a.addr()
			case outer.kind == ctaTupleProto && a.kind == ctaProtoNum:
				var v uint8
				v, err = a.uint8()
				f.Protocol = service.Protocol(v)
			case outer.kind == ctaTupleProto:
				err = ports.set(a)
			}
			if err != nil {
				return Tuple{}, err
			}
		}
	}
	return Tuple{netip.AddrPortFrom(src, ports.src), netip.AddrPortFrom(dst, ports.dst)}, nil
}

// ports are the ports of a Tuple.
type ports struct{ src, dst uint16 }

func (p *ports) set(a attribute) (err error) {
	var v uint8
	switch a.kind {
	case ctaProtoSrcPort, ctaProtoICMPID, ctaProtoICMPv6ID:
		p.src, err = a.uint16()
	case ctaProtoDstPort:
		p.dst, err = a.uint16()
	case ctaProtoICMPType, ctaProtoICMPv6Type:
		v, err = a.uint8()
		p.dst |= uint16(v) << 8
	case ctaProtoICMPCode, ctaProtoICMPv6Code:
		v, err = a.uint8()
		p.dst |= uint16(v)
	}
	return err
}
