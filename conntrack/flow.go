package conntrack

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"nftproxy/model/ip"
	"nftproxy/model/service"
)

// Flow is one entry of the kernel's connection tracking table, with the fields that
// this package uses.
type Flow struct {
	// Protocol is any IP protocol, also one that Services cannot have.
	Protocol service.Protocol
	// Original is the tuple of the first packet, before any NAT. Reply is the tuple
	// of an answer, so its Src is where a DNATed connection leads.
	Original, Reply Tuple
	Status          Status
	// Zone separates connections with equal tuples; 0 is the default zone. It may
	// apply to one direction only. OnlyReply says that it applies to the reply only: the
	// original direction is in the default zone.
	Zone      uint16
	OnlyReply bool
	// ID distinguishes this entry from a later one with the same tuple.
	ID uint32
	// Timeout is the time until the kernel drops the entry if no further packet
	// comes, in whole seconds.
	Timeout time.Duration
	// Start is the time when the entry was made, by the node's clock and in UTC. It
	// is zero unless net.netfilter.nf_conntrack_timestamp was on then.
	Start time.Time
	// TCPState is 0 for other protocols, and for entries that a program made rather
	// than a packet.
	TCPState TCPState
	// Sent has the packets and bytes from the client, and Received those to it; zero unless
	// net.netfilter.nf_conntrack_acct was on when the entry was made.
	Sent, Received Traffic
	// Unacknowledged says that an end of a TCP connection has sent what the other one has not acknowledged.
	Unacknowledged bool
}

// Traffic counts packets, and their bytes from the network header on.
type Traffic struct{ Packets, Bytes uint64 }

// Tuple is one direction of a flow. As in the kernel's own tuple, the ports of an ICMP
// flow are its identifier (Src) and type * 256 + code (Dst). The ports of a protocol
// without ports are 0.
type Tuple struct {
	Src, Dst netip.AddrPort
}

func (t Tuple) String() string { return fmt.Sprintf("%v -> %v", t.Src, t.Dst) }

// Family is the family of the flow's addresses.
func (f Flow) Family() ip.Family { return ip.Of(f.Original.Dst.Addr()) }

// Translated reports whether the kernel rewrites the destination of the flow's original packets: by DNAT, or by IPVS,
// which sets no bit of the status but changes where replies come from (Linux, ip_vs_update_conntrack).
func (f *Flow) Translated() bool {
	if f.Status&DstNAT != 0 {
		return true
	}
	ported := f.Protocol == service.TCP || f.Protocol == service.UDP || f.Protocol == service.SCTP
	return ported && f.Reply.Src.IsValid() && f.Reply.Src != f.Original.Dst
}

func (f Flow) String() string {
	return fmt.Sprintf("%v %v, reply %v [%v]", f.Protocol, f.Original, f.Reply, f.Status)
}

// Status holds an entry's IPS_* bits (Linux, nf_conntrack_common.h).
type Status uint32

const (
	// SeenReply means that packets went in both directions.
	SeenReply Status = 1 << 1
	// Assured means that the kernel does not drop the entry early when the table is
	// full: a TCP or SCTP handshake was completed, or a UDP exchange lasted.
	Assured Status = 1 << 2
	// SrcNAT means that the kernel rewrites the source of original packets.
	SrcNAT Status = 1 << 4
	// DstNAT means that the kernel rewrites the destination of original packets. A
	// DNAT to the destination that the packet already has does not set it.
	DstNAT Status = 1 << 5
)

func (s Status) String() string {
	var names []string
	for _, bit := range []struct {
		status Status
		name   string
	}{{SeenReply, "seen-reply"}, {Assured, "assured"}, {SrcNAT, "snat"}, {DstNAT, "dnat"}} {
		if s&bit.status != 0 {
			names = append(names, bit.name)
		}
	}
	return strings.Join(names, " ")
}

// TCPState is the state of a TCP connection as the kernel tracks it (Linux,
// nf_conntrack_tcp.h).
type TCPState uint8

const (
	TCPSynSent TCPState = 1 + iota
	TCPSynReceived
	TCPEstablished
	TCPFinWait
	TCPCloseWait
	TCPLastAck
	TCPTimeWait
	TCPClosed
	// TCPSynSent2 means that each end sent a SYN before the SYN of the other came.
	TCPSynSent2
)

func (s TCPState) String() string {
	names := [...]string{
		"", "syn-sent", "syn-received", "established", "fin-wait", "close-wait", "last-ack", "time-wait", "closed",
		"syn-sent-2",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return strconv.Itoa(int(s))
}

// Filter selects flows; the zero value selects all of them. The kernel compares as many of the
// fields as it can, and this package compares the others: the result is the same but takes longer.
type Filter struct {
	// A selected flow has Status in the bits of Mask. The kernel compares it from
	// 5.15 on.
	Status, Mask Status
	// Protocol, Dst and Port are those of the original destination; a zero value
	// selects all. The kernel compares them from 5.8 on, except IPv6 addresses, and
	// ports with another protocol than TCP and UDP or without a protocol.
	Protocol service.Protocol
	Dst      netip.Addr
	Port     uint16
	// Endpoint is where the flow leads, the source of its replies; the zero value
	// selects all. The kernel compares the same parts of it as of Dst and Port, if
	// there is a Protocol.
	Endpoint netip.AddrPort
}

// Selects reports whether the filter selects the flow.
func (f Filter) Selects(flow *Flow) bool {
	return flow.Status&f.Mask == f.Status &&
		(f.Protocol == 0 || f.Protocol == flow.Protocol) &&
		(!f.Dst.IsValid() || f.Dst == flow.Original.Dst.Addr()) &&
		(f.Port == 0 || f.Port == flow.Original.Dst.Port()) &&
		(!f.Endpoint.IsValid() || f.Endpoint == flow.Reply.Src)
}
