package livetrace

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"nftproxy/nfnetlink"
)

// EventKind says what the kernel reports.
type EventKind uint8

// The kinds of events, by the kernel's numbers (NFT_TRACETYPE_*).
const (
	// ByPolicy: the packet has come to the end of a base chain, and its policy applies.
	ByPolicy EventKind = unix.NFT_TRACETYPE_POLICY
	// Returned: the packet has come to the end of another chain, or back by a verdict.
	Returned EventKind = unix.NFT_TRACETYPE_RETURN
	// ByRule: a rule has matched, up to its last statement.
	ByRule EventKind = unix.NFT_TRACETYPE_RULE
)

// Event is one step of a packet.
type Event struct {
	Kind EventKind
	// ID is the same for all events of a packet on its way through the node. A later packet
	// may have it again.
	ID uint32
	// Family is that of the table, by the kernel's NFPROTO number: 1 is inet.
	Family       uint8
	Table, Chain string
	// Handle is the rule's number within its table; 0 with ByPolicy, and where a chain ended.
	Handle uint64
	// Verdict is what comes next, in nft's words: "goto endpoints-3", "accept", "continue".
	Verdict string
	// Mark is the packet's mark. It is 0 too if the kernel does not say.
	Mark uint32
	// Packet is what the packet's headers say. The kernel reports it with the first event in
	// each base chain; otherwise it is nil.
	Packet *Packet
}

// EndsChain says that no rule of the chain has decided, and no policy did.
func (e *Event) EndsChain() bool {
	return e.Kind != ByPolicy && (e.Handle == 0 || e.Kind == Returned && e.Verdict == codeText(unix.NFT_CONTINUE))
}

// Packet is a packet at one moment. The ports are those of TCP, UDP or SCTP, and the first four
// bytes of any other protocol's header.
type Packet struct {
	Source, Destination netip.AddrPort
	// Input and Output are the indices of interfaces; 0 is none.
	Input, Output uint32
}

// parseEvent reads a message of a type. ok is false for messages that are no trace.
func parseEvent(m nfnetlink.Message) (e Event, ok bool, err error) {
	if m.Kind != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE || m.Attributes() == nil {
		return e, false, nil
	}
	e.Family = m.Body[0]
	var network, transport []byte
	var input, output uint32
	for kind, v := range m.Attributes().Strict(&err) {
		switch kind {
		case unix.NFTA_TRACE_TABLE:
			e.Table = string(v.WithoutZero())
		case unix.NFTA_TRACE_CHAIN:
			e.Chain = string(v.WithoutZero())
		case unix.NFTA_TRACE_RULE_HANDLE:
			e.Handle = v.ReadUint64(&err)
		case unix.NFTA_TRACE_TYPE:
			e.Kind = EventKind(v.ReadUint32(&err))
		case unix.NFTA_TRACE_VERDICT:
			e.Verdict = verdictText(v, &err)
		case unix.NFTA_TRACE_POLICY:
			e.Verdict = codeText(int32(v.ReadUint32(&err)))
		case unix.NFTA_TRACE_ID:
			e.ID = v.ReadUint32(&err)
		case unix.NFTA_TRACE_MARK:
			e.Mark = v.ReadUint32(&err)
		case unix.NFTA_TRACE_IIF:
			input = v.ReadUint32(&err)
		case unix.NFTA_TRACE_OIF:
			output = v.ReadUint32(&err)
		case unix.NFTA_TRACE_NETWORK_HEADER:
			network = v
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = v
		}
	}
	if err != nil {
		return e, false, fmt.Errorf("decode trace: %w", err)
	}
	if e.Packet = parseHeaders(network, transport); e.Packet != nil {
		e.Packet.Input, e.Packet.Output = input, output
	}
	return e, true, nil
}

func verdictText(verdict nfnetlink.Attributes, err *error) string {
	code, chain := "", ""
	for kind, v := range verdict.Strict(err) {
		switch kind {
		case unix.NFTA_VERDICT_CODE:
			code = codeText(int32(v.ReadUint32(err)))
		case unix.NFTA_VERDICT_CHAIN:
			chain = " " + string(v.WithoutZero())
		}
	}
	return code + chain
}

// codeText is nft's word for a verdict, by the kernel's number.
func codeText(code int32) string {
	words := map[int32]string{
		unix.NFT_CONTINUE: "continue", unix.NFT_BREAK: "break", unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto",
		unix.NFT_RETURN: "return",
		0:               "drop", 1: "accept", 2: "stolen", 3: "queue", 4: "repeat",
	}
	const low = 0xff // a verdict may have more in the upper bits, such as a queue's number
	if word := words[code]; word != "" {
		return word
	}
	if word := words[code&low]; code > 0 && word != "" {
		return word
	}
	return fmt.Sprintf("verdict %d", code)
}

// parseHeaders returns nil if there is no header of IPv4 or IPv6.
func parseHeaders(network, transport []byte) *Packet {
	const length4, length6, version = 20, 40, 4
	var p Packet
	var src, dst netip.Addr
	switch {
	case len(network) >= length4 && network[0]>>version == 4:
		src, dst = netip.AddrFrom4([4]byte(network[12:])), netip.AddrFrom4([4]byte(network[16:]))
	case len(network) >= length6 && network[0]>>version == 6:
		src, dst = netip.AddrFrom16([16]byte(network[8:])), netip.AddrFrom16([16]byte(network[24:]))
	default:
		return nil
	}
	var sport, dport uint16
	if len(transport) >= 4 {
		sport, dport = binary.BigEndian.Uint16(transport), binary.BigEndian.Uint16(transport[2:])
	}
	p.Source, p.Destination = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return &p
}
