package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode"

	"nftproxy/model/ip"
	"nftproxy/model/service"
	"nftproxy/nft"
)

// ErrQuestion says that a text names no packet.
var ErrQuestion = errors.New("not a packet")

// FromNode is the text for a packet that the node itself sends.
const FromNode = "node"

// Destination is where a packet goes.
type Destination struct {
	// To has the port 0 for a protocol without ports.
	To       netip.AddrPort
	Protocol uint8
}

// ParseDestination reads ADDR:PORT, ADDR:PORT/PROTOCOL or ADDR/icmp. Without a protocol it is TCP. The error
// matches ErrQuestion.
func ParseDestination(text string) (Destination, error) {
	rest, name := text, "tcp"
	if at := strings.LastIndexByte(text, '/'); at >= 0 {
		rest, name = text[:at], strings.ToLower(text[at+1:])
	}
	if name == "icmp" {
		// A zone may be any text, and no address of a Service has one.
		a, err := netip.ParseAddr(strings.Trim(rest, "[]"))
		if err != nil || a.Zone() != "" {
			return Destination{}, fmt.Errorf("%w: %q: want an address before /icmp", ErrQuestion, text)
		}
		a = a.Unmap()
		return Destination{netip.AddrPortFrom(a, 0), nft.EchoProtocol(ip.Of(a))}, nil
	}
	protocol, err := service.ParseProtocol(name)
	if err != nil {
		return Destination{}, fmt.Errorf("%w: protocol %q: want tcp, udp, sctp or icmp", ErrQuestion, name)
	}
	to, err := netip.ParseAddrPort(rest)
	if err != nil || to.Port() == 0 || to.Addr().Zone() != "" {
		return Destination{}, fmt.Errorf("%w: %q: want ADDR:PORT or ADDR:PORT/PROTOCOL, such as 10.96.0.10:53/udp or "+
			"[fd00:96::a]:53", ErrQuestion, text)
	}
	return Destination{netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), uint8(protocol)}, nil
}

// String is the destination in a form that ParseDestination reads. It has letters, digits and ".:[]/" only.
func (d Destination) String() string {
	if d.Protocol == nft.ICMP || d.Protocol == nft.ICMPv6 {
		return d.To.Addr().String() + "/icmp"
	}
	return d.To.String() + "/" + nft.ProtocolText(d.Protocol)
}

// Origin is where a packet comes from. The zero Origin leaves it to the explanation to choose a likely client.
type Origin struct {
	// Addr is the client's address. It is not valid with Node.
	Addr netip.Addr
	// Interface is the one by which the packet comes in; empty if that is to be found out.
	Interface string
	// Node says that a process of the node sends the packet.
	Node bool
}

// maxInterface is the length of the longest name of an interface, in bytes (IFNAMSIZ without its zero).
const maxInterface = 15

// ParseOrigin reads ADDR, ADDR@INTERFACE, FromNode or an empty text. The error matches ErrQuestion.
func ParseOrigin(text string) (Origin, error) {
	address, device, at := strings.Cut(text, "@")
	switch {
	case text == "":
		return Origin{}, nil
	case address == "":
		return Origin{}, fmt.Errorf("%w: --from %q: want an address before the interface", ErrQuestion, text)
	case address == FromNode && at:
		return Origin{}, fmt.Errorf("%w: --from %q: packets of the node come in by no interface", ErrQuestion, text)
	case address == FromNode:
		return Origin{Node: true}, nil
	}
	a, err := netip.ParseAddr(address)
	if err != nil || a.Zone() != "" {
		return Origin{}, fmt.Errorf("%w: --from %q: want an address, an address and an interface as ADDR@INTERFACE, or %q",
			ErrQuestion, text, FromNode)
	}
	if at && !isInterface(device) {
		return Origin{}, fmt.Errorf("%w: --from %q: %q cannot be the name of an interface", ErrQuestion, text, device)
	}
	return Origin{Addr: a.Unmap(), Interface: device}, nil
}

// isInterface says whether an interface can have the name. The kernel takes names without "/", ":" and white
// space (dev_valid_name). Control characters and bytes that are no ASCII have no place in a question either.
func isInterface(name string) bool {
	return name != "" && len(name) <= maxInterface && name != "." && name != ".." &&
		!strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r == ':' || r <= ' ' || r >= unicode.MaxASCII })
}

// String is the origin in a form that ParseOrigin reads.
func (o Origin) String() string {
	switch {
	case o.Node:
		return FromNode
	case !o.Addr.IsValid():
		return ""
	case o.Interface != "":
		return o.Addr.String() + "@" + o.Interface
	}
	return o.Addr.String()
}
