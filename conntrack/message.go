package conntrack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"

	"nftproxy/internal/service"
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

	ctaStatsEntries    = 1
	ctaStatsMaxEntries = 2

	icmp   = 1
	icmpv6 = 58
)

// request marshals attributes that were made here: it cannot fail on them.
func request(kind netfilter.MessageType, family netfilter.ProtoFamily, flags netlink.HeaderFlags, attrs ...netfilter.Attribute) netlink.Message {
	m, err := netfilter.MarshalNetlink(netfilter.Header{
		SubsystemID: netfilter.NFSubsysCTNetlink, MessageType: kind, Family: family, Flags: netlink.Request | flags,
	}, attrs)
	if err != nil {
		panic(fmt.Sprintf("marshal conntrack request: %v", err))
	}
	return m
}

// What CTA_FILTER says is to be compared of the original tuple (Linux,
// nf_internals.h).
const (
	filterIPDst    = 1 << 1
	filterProtoNum = 1 << 3
	filterDstPort  = 1 << 5
)

// dumpRequests makes the dumps that select as much of the filter as the kernel
// can. Kernels before 5.8 ignore the tuple, those before 5.15 the status.
func dumpRequests(f Filter) []netlink.Message {
	families := []netfilter.ProtoFamily{netfilter.ProtoUnspec}
	switch {
	case f.Dst.Is4():
		families[0] = netfilter.ProtoIPv4
	case f.Dst.IsValid():
		families[0] = netfilter.ProtoIPv6
	case f.Protocol != 0: // a tuple needs a family
		families = []netfilter.ProtoFamily{netfilter.ProtoIPv4, netfilter.ProtoIPv6}
	}
	requests := make([]netlink.Message, len(families))
	for i, family := range families {
		requests[i] = request(ctGet, family, netlink.Dump, filterAttributes(f)...)
	}
	return requests
}

func filterAttributes(f Filter) []netfilter.Attribute {
	var attrs, tuple []netfilter.Attribute
	var compare uint32
	if f.Mask != 0 { // the kernel refuses an empty mask
		attrs = append(attrs, be32(ctaStatus, uint32(f.Status)), be32(ctaStatusMask, uint32(f.Mask)))
	}
	// Not an IPv6 address: kernels from 5.8 to at least 6.18 compare it the
	// wrong way round, and select all entries but the wanted ones.
	if f.Dst.Is4() {
		compare |= filterIPDst
		tuple = append(tuple, nested(ctaTupleIP, netfilter.Attribute{Type: ctaIPv4Dst, Data: f.Dst.AsSlice()}))
	}
	if f.Protocol != 0 {
		compare |= filterProtoNum
		proto := []netfilter.Attribute{{Type: ctaProtoNum, Data: []byte{uint8(f.Protocol)}}}
		if f.Port != 0 && (f.Protocol == service.TCP || f.Protocol == service.UDP) { // it compares no others
			compare |= filterDstPort
			proto = append(proto, be16(ctaProtoDstPort, f.Port))
		}
		tuple = append(tuple, nested(ctaTupleProto, proto...))
	}
	if compare != 0 {
		attrs = append(attrs, nested(ctaTupleOrig, tuple...),
			// In the byte order of the machine, unlike all else.
			nested(ctaFilter, netfilter.Attribute{Type: ctaFilterOrigFlags, Data: binary.NativeEndian.AppendUint32(nil, compare)}))
	}
	return attrs
}

// deleteRequest names the entry by its original tuple and its ID, so that the
// kernel leaves alone a younger entry with the same tuple.
func deleteRequest(f *Flow) netlink.Message {
	family, src, dst := netfilter.ProtoIPv4, uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if f.V6() {
		family, src, dst = netfilter.ProtoIPv6, ctaIPv6Src, ctaIPv6Dst
	}
	attrs := []netfilter.Attribute{
		nested(ctaTupleOrig,
			nested(ctaTupleIP,
				netfilter.Attribute{Type: src, Data: f.Original.Src.Addr().AsSlice()},
				netfilter.Attribute{Type: dst, Data: f.Original.Dst.Addr().AsSlice()}),
			nested(ctaTupleProto, protoAttributes(f)...)),
		be32(ctaID, f.ID),
	}
	if f.Zone != 0 {
		attrs = append(attrs, be16(ctaZone, f.Zone))
	}
	return request(ctDelete, family, 0, attrs...)
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

// nfgenmsgLen is the length of what precedes the attributes.
const nfgenmsgLen = 4

// parseFlow decodes an entry. It does not allocate, since a table may hold a
// million of them.
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
	if !f.Original.Dst.IsValid() {
		return f, errMalformed
	}
	return f, nil
}

func (f *Flow) set(a attribute) (err error) {
	switch a.kind {
	case ctaTupleOrig:
		f.Original, err = f.parseTuple(a.data)
	case ctaTupleReply:
		f.Reply, err = f.parseTuple(a.data)
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

// parseStart decodes when the entry was made, in nanoseconds since 1970.
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

// parseTuple decodes one direction, and what both have or only it may have: the
// protocol and, where a zone holds for one direction, the zone.
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

// ports are a Tuple's.
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
