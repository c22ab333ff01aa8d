package conntrack

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nfnetlink"
)

// Messages and attributes of ctnetlink (Linux, nfnetlink_conntrack.h).
const (
	ctGet    = 1
	ctDelete = 2
	// ctStatsCPU asks for the statistics of each CPU, one answer for each, and ctStats for those of the table.
	ctStatsCPU = 4
	ctStats    = 5

	ctaTupleOrig        = 1
	ctaTupleReply       = 2
	ctaStatus           = 3
	ctaProtoInfo        = 4
	ctaTimeout          = 7
	ctaCountersOriginal = 9
	ctaCountersReply    = 10
	ctaID               = 12
	ctaZone             = 18
	ctaTimestamp        = 20
	ctaFilter           = 25
	ctaStatusMask       = 26

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

	ctaProtoInfoTCP              = 1
	ctaProtoInfoTCPState         = 1
	ctaProtoInfoTCPFlagsOriginal = 4
	ctaProtoInfoTCPFlagsReply    = 5
	ctaTimestampStart            = 1
	ctaFilterOrigFlags           = 1
	ctaFilterReplyFlags          = 2

	ctaCountersPackets = 1
	ctaCountersBytes   = 2

	ctaStatsEntries    = 1
	ctaStatsMaxEntries = 2

	ctaStatsCPUInvalid = 4

	// dataUnacknowledged is IP_CT_TCP_FLAG_DATA_UNACKNOWLEDGED (Linux, nf_conntrack_tcp.h).
	dataUnacknowledged = 0x10

	icmp   = 1
	icmpv6 = 58
)

// The parts of a tuple that CTA_FILTER has the kernel compare (Linux, nf_internals.h).
const (
	filterIPSrc    = 1 << 0
	filterIPDst    = 1 << 1
	filterProtoNum = 1 << 3
	filterSrcPort  = 1 << 4
	filterDstPort  = 1 << 5
)

// families returns the families to dump, with a request for each.
func (f Filter) families() []uint8 {
	a := f.Dst
	if !a.IsValid() {
		a = f.Endpoint.Addr()
	}
	switch {
	case a.Is4():
		return []uint8{unix.NFPROTO_IPV4}
	case a.IsValid():
		return []uint8{unix.NFPROTO_IPV6}
	case f.Protocol != 0: // A tuple needs a family.
		return []uint8{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}
	}
	return []uint8{unix.NFPROTO_UNSPEC}
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

// attributes is the parts of the filter that the kernel can compare. Kernels before 5.8 ignore the tuples, those
// before 5.15 the status.
func (f Filter) attributes() []byte {
	var e, compare nfnetlink.Encoder
	if f.Mask != 0 { // The kernel refuses an empty mask.
		e.Uint32(ctaStatus, uint32(f.Status)).Uint32(ctaStatusMask, uint32(f.Mask))
	}
	for _, end := range []end{
		{f.Dst, f.Protocol, f.Port, ctaIPv4Dst, ctaProtoDstPort, filterIPDst, filterDstPort, ctaTupleOrig,
			ctaFilterOrigFlags},
		{f.Endpoint.Addr(), f.Protocol, f.Endpoint.Port(), ctaIPv4Src, ctaProtoSrcPort, filterIPSrc, filterSrcPort,
			ctaTupleReply, ctaFilterReplyFlags},
	} {
		if flags := end.addTuple(&e); flags != 0 {
			// The flags are in the machine's byte order, unlike all other numbers.
			compare.Bytes(end.flagsKind, binary.NativeEndian.AppendUint32(nil, flags))
		}
	}
	if len(compare.B) > 0 {
		e.Bytes(ctaFilter|unix.NLA_F_NESTED, compare.B)
	}
	return e.B
}

// addTuple adds what the kernel can compare, and returns the flags that select it.
func (e *end) addTuple(to *nfnetlink.Encoder) (flags uint32) {
	at := len(to.B)
	tuple := to.BeginNest(e.tupleKind)
	// IPv6 addresses are left out: kernels from 5.8 to at least 6.18 compare them the
	// wrong way round, and select all entries but the wanted ones.
	if e.addr.Is4() {
		flags |= e.byAddr
		addrs := to.BeginNest(ctaTupleIP)
		to.Bytes(e.ipv4, e.addr.AsSlice()).EndNest(addrs)
	}
	if e.protocol != 0 {
		flags |= filterProtoNum
		proto := to.BeginNest(ctaTupleProto)
		to.Uint8(ctaProtoNum, uint8(e.protocol))
		if e.port != 0 && (e.protocol == service.TCP || e.protocol == service.UDP) { // The kernel compares no other ports.
			flags |= e.byPort
			to.Uint16(e.portKind, e.port)
		}
		to.EndNest(proto)
	}
	to.EndNest(tuple)
	if flags == 0 {
		to.B = to.B[:at]
	}
	return flags
}

// addDeletion adds the message that deletes an entry, with its original tuple and its ID. By the ID the kernel
// spares a younger entry with the same tuple.
func addDeletion(e *nfnetlink.Encoder, f *Flow, flags uint16, seq uint32) {
	at := e.BeginMessage(unix.NFNL_SUBSYS_CTNETLINK<<8|ctDelete, flags, seq, uint8(f.Family()))
	f.addTuple(e, ctaTupleOrig, f.Original)
	e.Uint32(ctaID, f.ID)
	if f.Zone != 0 && !f.OnlyReply { // The kernel looks for the original tuple.
		e.Uint16(ctaZone, f.Zone)
	}
	e.EndMessage(at)
}

// addTuple adds a tuple of the flow.
func (f *Flow) addTuple(e *nfnetlink.Encoder, kind uint16, t Tuple) {
	srcKind, dstKind := uint16(ctaIPv4Src), uint16(ctaIPv4Dst)
	if f.Family() == ip.V6 {
		srcKind, dstKind = ctaIPv6Src, ctaIPv6Dst
	}
	tuple := e.BeginNest(kind)
	addrs := e.BeginNest(ctaTupleIP)
	e.Bytes(srcKind, t.Src.Addr().AsSlice()).Bytes(dstKind, t.Dst.Addr().AsSlice()).EndNest(addrs)
	proto := e.BeginNest(ctaTupleProto)
	e.Uint8(ctaProtoNum, uint8(f.Protocol))
	src, dst := t.Src.Port(), t.Dst.Port()
	switch f.Protocol {
	case icmp:
		e.Uint16(ctaProtoICMPID, src).Uint8(ctaProtoICMPType, uint8(dst>>8)).Uint8(ctaProtoICMPCode, uint8(dst))
	case icmpv6:
		e.Uint16(ctaProtoICMPv6ID, src).Uint8(ctaProtoICMPv6Type, uint8(dst>>8)).Uint8(ctaProtoICMPv6Code, uint8(dst))
	default:
		e.Uint16(ctaProtoSrcPort, src).Uint16(ctaProtoDstPort, dst)
	}
	e.EndNest(proto)
	e.EndNest(tuple)
}

// parseFlow decodes the attributes of an entry. It allocates no memory, since a table may have a million entries.
func parseFlow(attributes nfnetlink.Attributes) (f Flow, err error) {
	for kind, v := range attributes.Strict(&err) {
		switch kind {
		case ctaTupleOrig:
			f.Original = f.parseTuple(v, &err)
		case ctaTupleReply:
			zone := f.Zone
			f.Zone = 0
			f.Reply = f.parseTuple(v, &err)
			if f.OnlyReply = f.Zone != 0; !f.OnlyReply {
				f.Zone = zone
			}
		case ctaStatus:
			f.Status = Status(v.ReadUint32(&err))
		case ctaID:
			f.ID = v.ReadUint32(&err)
		case ctaZone:
			f.Zone = v.ReadUint16(&err)
		case ctaTimeout:
			f.Timeout = time.Duration(v.ReadUint32(&err)) * time.Second
		case ctaCountersOriginal:
			f.Sent = parseTraffic(v, &err)
		case ctaCountersReply:
			f.Received = parseTraffic(v, &err)
		case ctaTimestamp:
			f.Start = parseStart(v, &err)
		case ctaProtoInfo:
			f.parseTCP(v, &err)
		}
	}
	src, dst := f.Original.Src.Addr(), f.Original.Dst.Addr()
	if err == nil && (!src.IsValid() || !dst.IsValid() || src.Is6() != dst.Is6()) {
		err = nfnetlink.ErrMalformed
	}
	return f, err
}

func parseTraffic(counters nfnetlink.Attributes, err *error) (t Traffic) {
	for kind, v := range counters.Strict(err) {
		switch kind {
		case ctaCountersPackets:
			t.Packets = v.ReadUint64(err)
		case ctaCountersBytes:
			t.Bytes = v.ReadUint64(err)
		}
	}
	return t
}

// parseStart decodes the time when the entry was made, in nanoseconds since 1970.
func parseStart(timestamp nfnetlink.Attributes, err *error) (start time.Time) {
	for kind, v := range timestamp.Strict(err) {
		if kind == ctaTimestampStart {
			start = time.Unix(0, int64(v.ReadUint64(err))).UTC()
		}
	}
	return start
}

func (f *Flow) parseTCP(protocols nfnetlink.Attributes, err *error) {
	for protocol, details := range protocols.Strict(err) {
		if protocol != ctaProtoInfoTCP {
			continue
		}
		for kind, v := range details.Strict(err) {
			switch kind {
			case ctaProtoInfoTCPState:
				f.TCPState = TCPState(v.ReadUint8(err))
			case ctaProtoInfoTCPFlagsOriginal, ctaProtoInfoTCPFlagsReply: // a byte of flags and one of their mask
				f.Unacknowledged = f.Unacknowledged || len(v) > 0 && v[0]&dataUnacknowledged != 0
			}
		}
	}
}

func parseCount(attributes nfnetlink.Attributes) (entries, limit int, err error) {
	for kind, v := range attributes.Strict(&err) {
		switch kind {
		case ctaStatsEntries:
			entries = int(v.ReadUint32(&err))
		case ctaStatsMaxEntries:
			limit = int(v.ReadUint32(&err))
		}
	}
	return entries, limit, err
}

// parseTuple decodes one direction. It sets the flow's protocol, which both directions
// have, and its zone, which may be in one direction only.
func (f *Flow) parseTuple(tuple nfnetlink.Attributes, err *error) Tuple {
	var src, dst netip.Addr
	var ports ports
	for part, details := range tuple.Strict(err) {
		switch part {
		case ctaTupleZone:
			f.Zone = details.ReadUint16(err)
		case ctaTupleIP:
			for kind, v := range details.Strict(err) {
				switch kind {
				case ctaIPv4Src, ctaIPv6Src:
					src = v.ReadAddr(err)
				case ctaIPv4Dst, ctaIPv6Dst:
					dst = v.ReadAddr(err)
				}
			}
		case ctaTupleProto:
			for kind, v := range details.Strict(err) {
				if kind == ctaProtoNum {
					f.Protocol = service.Protocol(v.ReadUint8(err))
				} else {
					ports.set(kind, v, err)
				}
			}
		}
	}
	return Tuple{netip.AddrPortFrom(src, ports.src), netip.AddrPortFrom(dst, ports.dst)}
}

// ports are the ports of a Tuple.
type ports struct{ src, dst uint16 }

func (p *ports) set(kind uint16, v nfnetlink.Attributes, err *error) {
	switch kind {
	case ctaProtoSrcPort, ctaProtoICMPID, ctaProtoICMPv6ID:
		p.src = v.ReadUint16(err)
	case ctaProtoDstPort:
		p.dst = v.ReadUint16(err)
	case ctaProtoICMPType, ctaProtoICMPv6Type:
		p.dst |= uint16(v.ReadUint8(err)) << 8
	case ctaProtoICMPCode, ctaProtoICMPv6Code:
		p.dst |= uint16(v.ReadUint8(err))
	}
}
