package conntrack

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"nftproxy/internal/service"
)

// Flow is one entry of the kernel's connection tracking table, as far as this
// package has a use for it.
type Flow struct {
	// Protocol is any IP protocol, not only those that services have.
	Protocol service.Protocol
	// Original is the first packet's tuple as it came in, before any NAT;
	// Reply is what an answer looks like, so its Src is where a DNATed
	// connection really went.
	Original, Reply Tuple
	Status          Status
	// Zone keeps apart connections with equal tuples; 0 is the default one. It
	// may hold for one direction only.
	Zone uint16
	// ID tells this entry from a later one with the same tuple.
	ID uint32
	// Timeout is how long the entry stays if no further packet comes, in whole
	// seconds.
	Timeout time.Duration
	// Start is when the entry was made, by the node's clock and in UTC. It is
	// zero unless net.netfilter.nf_conntrack_timestamp was on by then.
	Start time.Time
	// TCPState is 0 for other protocols, and for entries that were not made by
	// packets.
	TCPState TCPState
}

// Tuple is one direction of a flow. The ports of an ICMP flow are, as in the
// kernel's own tuple, its identifier (Src) and type * 256 + code (Dst); those
// of a protocol without ports are 0.
type Tuple struct {
	Src, Dst netip.AddrPort
}

func (t Tuple) String() string { return fmt.Sprintf("%v -> %v", t.Src, t.Dst) }

// V6 says whether the flow is of IPv6.
func (f Flow) V6() bool { return f.Original.Dst.Addr().Is6() }

func (f Flow) String() string {
	return fmt.Sprintf("%v %v, reply %v [%v]", f.Protocol, f.Original, f.Reply, f.Status)
}

// Status holds an entry's IPS_* bits (Linux, nf_conntrack_common.h).
type Status uint32

const (
	// SeenReply means that there were packets both ways.
	SeenReply Status = 1 << 1
	// Assured means that the entry is not dropped early when the table is
	// full: a TCP or SCTP handshake was completed, or a UDP exchange lasted.
	Assured Status = 1 << 2
	// SrcNAT means that the source of original packets is rewritten.
	SrcNAT Status = 1 << 4
	// DstNAT means that the destination of original packets is rewritten. A
	// DNAT to the very destination that the packet has does not set it.
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

// TCPState is how far a TCP connection has come, as the kernel tracks it
// (Linux, nf_conntrack_tcp.h).
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
	// TCPSynSent2 means that both ends sent a SYN, each before the other's came.
	TCPSynSent2
)

func (s TCPState) String() string {
	switch s {
	case 0:
		return ""
	case TCPSynSent:
		return "syn-sent"
	case TCPSynReceived:
		return "syn-received"
	case TCPEstablished:
		return "established"
	case TCPFinWait:
		return "fin-wait"
	case TCPCloseWait:
		return "close-wait"
	case TCPLastAck:
		return "last-ack"
	case TCPTimeWait:
		return "time-wait"
	case TCPClosed:
		return "closed"
	case TCPSynSent2:
		return "syn-sent-2"
	}
	return strconv.Itoa(int(s))
}

// Filter selects flows; the zero value selects all of them. Where the kernel
// cannot tell by itself, the answer is the same, slower.
type Filter struct {
	// A flow is selected if its status has Status in the bits of Mask. The
	// kernel can tell from 5.15 on.
	Status, Mask Status
	// Protocol, Dst and Port are of the original destination; zero values
	// select all. The kernel can tell from 5.8 on, but neither IPv6 addresses
	// nor ports of other protocols than TCP and UDP, nor those without one.
	Protocol service.Protocol
	Dst      netip.Addr
	Port     uint16
}

// Selects says whether the filter selects the flow.
func (f Filter) Selects(flow *Flow) bool {
	return flow.Status&f.Mask == f.Status &&
		(f.Protocol == 0 || f.Protocol == flow.Protocol) &&
		(!f.Dst.IsValid() || f.Dst == flow.Original.Dst.Addr()) &&
		(f.Port == 0 || f.Port == flow.Original.Dst.Port())
}
